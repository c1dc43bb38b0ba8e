"""A store that breaks off anywhere: every request is made again within the budget, and nothing lasts for ever."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from breaking import BREAKS, Fault, Server, another_page, breaking, busy, flooding, reset, silent, trickling
from objects import KEY, SECRET

from rayio import signals, storage
from rayio.errors import DataError, RayioError, StorageError
from rayio.scenario.s3 import S3Options
from rayio.storage.stores import retrying
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import PART_BYTES, Settings, Store
from rayio.storage.stores.s3 import bounds, bucket
from rayio.storage.stores.s3 import store as s3_store

#: Seconds in which anything ends that ends at all, on a machine that is busy with other work.
PATIENCE = 60
CONTENT = bytes(range(256)) * 40
LARGE = 2 * PART_BYTES + 4097


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Start a server that breaks off where it is told."""
    with breaking() as started:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in environment(started).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(retrying, "FIRST_SECONDS", 0.001)
        started.stored["/bucket/some/f"] = CONTENT
        yield started


def environment(server: Server) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": server.url}


def store_at(attempts: int = 4, timeout: float = 20.0) -> Store:
    options = S3Options.model_construct(max_attempts=attempts, timeout=timeout)
    return storage.open("s3://bucket/some", Settings({"s3": options}))


def streamed(store: Store, nbytes: int) -> Traffic:
    traffic = Traffic(0)
    store.write("big", lambda file: [file.write(bytes(1 << 20)) for _ in range(nbytes >> 20)], traffic=traffic)
    return traffic


def got(store: Store) -> Traffic:
    traffic, buffer = Traffic(0), bytearray(len(CONTENT))
    with store.open("f", traffic) as file:
        file.readinto(buffer)  # type: ignore[attr-defined]
    assert bytes(buffer) == CONTENT
    return traffic


def poured(store: Any) -> Traffic:
    traffic, buffer = Traffic(0), bytearray(len(CONTENT))

    def take(begin: int, content: Any) -> None:
        buffer[begin : begin + len(content)] = content

    assert store.pour("f", 0, len(CONTENT) + 1, traffic, take) == (len(CONTENT), len(CONTENT))
    assert bytes(buffer) == CONTENT
    return traffic


#: Stages, and a use of the store that passes them; it returns the traffic that was counted, if any is.
USES: dict[str, tuple[tuple[str, ...], Callable[[Store], Traffic | None]]] = {
    "open": (("get",), got),
    "pour": (("get",), poured),
    "read": (("get",), lambda store: expect(store.read("f"), CONTENT)),
    "size": (("head",), lambda store: expect(store.size("f"), len(CONTENT))),
    "put": (("put",), lambda store: store.write("g", lambda file: file.write(CONTENT))),
    "stream": (("put",), lambda store: streamed(store, 1 << 20)),
    "put in parts": (("create", "part", "complete"), lambda store: store.write("g", lambda f: f.write(bytes(LARGE)))),
    "stream in parts": (("create", "part", "complete"), lambda store: streamed(store, 17 << 20)),
    "sizes": (("list",), lambda store: expect(store.sizes()["f"], len(CONTENT))),
    "exists": (("list",), lambda store: expect(store.exists, True)),
    "remove": (("delete",), lambda store: store.remove("f")),
    "remove all": (("list", "delete"), lambda store: store.remove_all()),
}


def expect(value: object, expected: object) -> None:
    assert value == expected


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize(("use", "stage"), [(use, stage) for use, (stages, _) in USES.items() for stage in stages])
def test_what_breaks_off_is_made_again_at_every_stage(use: str, stage: str, broken: str, server: Server) -> None:
    server.faults[stage] = [BREAKS[broken]] * 2
    traffic = USES[use][1](store_at())
    is_harmless = broken == "cut" and stage in ("put", "part")  # the answer has no body that anybody needs
    assert server.asked[stage] >= (1 if is_harmless else 3)
    assert not server.faults[stage] or is_harmless
    if traffic is not None and not is_harmless and stage != "part":  # parts fail together, and some are sent anew
        assert traffic.retried is not None
        assert len(traffic.retried.rows) == 2
    if "parts" in use:
        name, nbytes = ("/bucket/some/big", 17 << 20) if "stream" in use else ("/bucket/some/g", LARGE)
        assert server.stored[name] == bytes(nbytes)
        if not (stage == "create" and broken == "cut"):  # then nobody but the server knows the upload's number
            assert not server.uploads, "parts stay, for which somebody pays"
    if "remove" in use:
        assert "/bucket/some/f" not in server.stored


@pytest.mark.parametrize("use", USES)
def test_the_budget_ends_what_does_not_end_by_itself(use: str, server: Server) -> None:
    stages, made = USES[use]
    server.lasting[stages[-1]] = reset
    with pytest.raises(StorageError, match=r"from http://127\.0\.0\.1:\d+ while .*, 2 times in") as error:
        made(store_at(attempts=2))
    assert "\n" not in str(error.value)


def test_a_writer_that_fails_leaves_no_parts(server: Server) -> None:
    def fails(file: Any) -> None:
        file.write(bytes(3 * PART_BYTES))
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        store_at().write("big", fails, traffic=Traffic())
    assert server.asked["create"] == server.asked["abort"] == 1
    assert not server.uploads


def test_an_attempt_that_failed_does_not_disturb_the_next_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's threads may go on reading after it has failed."""
    content, first, seen = bytes(range(256)) * (LARGE >> 8), list[Any](), list[bytes]()

    def put(client: Any, key: str, file: Any, **options: Any) -> None:
        if not first:
            first.append(file)
            raise OSError("error sending request")
        read = file.read(1000)
        first[0].read(1 << 20)
        seen.append(read + file.read())

    monkeypatch.setattr(obstore, "put", put)
    store_at().write("g", lambda file: file.write(content))
    assert seen == [content]


FLOODS: dict[str, tuple[str, Callable[[Store], object]]] = {
    "list": ("list", lambda store: store.sizes()), "read": ("get", lambda store: store.read("f")),
    "get": ("get", got), "pour": ("get", poured),
    "put": ("put", lambda store: store.write("g", lambda file: file.write(b"x"))),
    "delete": ("delete", lambda store: store.remove("f")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("use", "status"),
    [
        (use, status)
        for use in FLOODS
        for status in ("200 OK", "403 Forbidden", "503 Slow Down")
        if (use, status) != ("put", "200 OK")  # nobody reads the body of this answer
    ],
)
def test_an_answer_without_an_end_is_one_line_and_takes_bounded_memory(
    use: str, status: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, made = FLOODS[use]
    monkeypatch.setattr(bounds, "LOOK_SECONDS", 0.04)  # until then a flood takes both processors
    if status != "200 OK":
        monkeypatch.setattr(bounds, "MOST_BYTES", 4 << 20)  # the same look at less
    server.lasting[stage] = flooding(status)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RayioError) as error:
        made(store_at(attempts=2))
    assert "\n" not in str(error.value)
    if stage != "get" or status != "200 OK":  # such an answer to a get has no length, and is refused at once
        assert "an answer without an end" in str(error.value)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 2 << 30  # what arrives between two looks
    assert not isinstance(error.value, DataError)


@pytest.mark.parametrize("use", ["list", "read"])
def test_an_answer_without_an_end_is_cut_off_once_a_signal_came(
    use: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take processors and memory until the process has ended: 4.4 s on a busy one."""
    monkeypatch.setattr(bounds, "MOST_BYTES", 1 << 60)
    monkeypatch.setattr(signals, "asked_at", signals.asked_at)
    server.lasting[FLOODS[use][0]] = flooding("403 Forbidden")
    refused: list[RayioError] = []

    def made() -> None:
        with pytest.raises(RayioError) as error:
            FLOODS[use][1](store_at(attempts=1))
        refused.append(error.value)

    thread = threading.Thread(target=made)
    thread.start()
    while server.flooded < 8 << 20:
        time.sleep(0.01)
    assert not refused
    signals.ask()
    thread.join(PATIENCE)
    assert "an answer without an end" in str(*refused)
    server.lasting.clear()
    assert store_at().read("f") == CONTENT, "later calls are not abandoned"


def test_a_listing_without_an_end_is_one_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.lasting["list"] = another_page
    monkeypatch.setattr(bounds, "LOOK_SECONDS", 0.04)
    for name, value in (("LISTING_BYTES", 1 << 20), ("LISTING_SECONDS", 600.0)):
        monkeypatch.setattr(s3_store, name, value)
    monkeypatch.setattr(bounds, "MOST_BYTES", 1 << 20)
    with pytest.raises(StorageError, match=r"^s3://bucket/some: an answer without an end .* while listing"):
        store_at().sizes()
    monkeypatch.setattr(s3_store, "LISTING_BYTES", 1 << 40)
    monkeypatch.setattr(s3_store, "LISTING_SECONDS", 0.5)
    with pytest.raises(StorageError, match="an answer without an end"):
        store_at().entries()


def test_an_answer_that_trickles_has_a_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "SLOWEST_SECONDS", 0)
    monkeypatch.setattr(bucket, "SLOWEST", 1 << 40)
    server.lasting["get"] = server.lasting["list"] = trickling
    for use in (lambda s: s.read("f"), got, lambda s: s.sizes()):
        with pytest.raises(StorageError, match=r"while .*, 2 times in"):
            use(store_at(attempts=2, timeout=0.3))


#: A command that hangs in a call: by what it waits for, and whether in the main thread or in others.
HANGS: dict[str, tuple[str, Fault, tuple[str, ...]]] = {
    "listing": ("list", silent, ("generate",)),
    "pages": ("list", another_page, ("generate",)),
    "putting": ("put", silent, ("generate",)),
    "reading": ("get", silent, ("run", "--engine", "local")),
    "pauses": ("put", busy, ("generate",)),
}


@pytest.mark.parametrize(
    ("hang", "number"),
    [*zip(HANGS, itertools.cycle([signal.SIGINT, signal.SIGTERM]), strict=False), ("reading", signal.SIGINT)],
)
def test_a_signal_ends_a_command_whatever_the_store_does(
    hang: str, number: signal.Signals, server: Server, tmp_path: Path
) -> None:
    stage, fault, command = HANGS[hang]
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: s\ndataset: {path: data, num_files: 8, sample_bytes: 9 kB}\nloader: {batch_size: 2, num_workers: 1}\n"
        "train: {compute: 1 ms, epochs: 1}\nstorage: {max_attempts: 1000, timeout: 1 h}\n"
    )
    started = [sys.executable, "-m", "rayio"]
    there = ("--root", "s3://bucket/elsewhere")
    variables = {**os.environ, **environment(server)}
    if command[0] == "run":
        subprocess.run([*started, "generate", scenario, *there], env=variables, check=True, capture_output=True)
    server.asked.clear()
    is_data = fault if stage != "get" else lambda s, c, r: fault(s, c, r) if r.path.endswith(".npz") else plain(s, c, r)
    server.lasting[stage] = is_data
    running = subprocess.Popen(
        [*started, *command, scenario, *there], env=variables, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        ends = time.monotonic() + PATIENCE
        while server.asked[stage] < 1 and time.monotonic() < ends and running.poll() is None:
            time.sleep(0.05)
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.5)
        running.send_signal(number)
        _, said = running.communicate(timeout=PATIENCE)  # an hour without it
    finally:
        running.kill()
    assert running.returncode == 130
    assert "Traceback" not in said


def plain(server: Server, connection: Any, request: Any) -> None:
    """Answer as if nothing were wrong, and close."""
    status, headers, body = server.answer(request)
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)
    connection.close()
