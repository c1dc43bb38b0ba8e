from __future__ import annotations

import asyncio
import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from objects import (
    KEY,
    PATIENCE,
    SECRET,
    Objects,
    broken_off,
    elsewhere,
    first,
    reset,
    round_in_a_circle,
    s3_error,
    silent,
    slow_down,
)

from rayio import storage
from rayio.errors import DataError, RayioError, StorageError
from rayio.scenario.s3 import S3Options
from rayio.storage.base import Opener, Requests, Served
from rayio.storage.real import RealStorage
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import PART_BYTES, Settings, Store

T = TypeVar("T")
NOTHING = Requests((0, 0, 0), 0, np.zeros(0, np.int64))


def reached(**options: Any) -> Settings:
    """How stores are reached, whatever a scenario would say of it."""
    return Settings({"s3": S3Options.model_construct(**options)})


def store_at(place: str, **settings: Any) -> Store:
    return storage.open(place, reached(**{"max_attempts": 3, "timeout": 20, **settings}))


def put(store: Store, name: str, content: bytes) -> None:
    store.write(name, lambda file: file.write(content))


async def inline(function: Callable[[], T]) -> T:
    return function()


def read(store: Store, load: Callable[[Opener], T]) -> Served[T | None]:
    return asyncio.run(RealStorage(store, inline, 0).read(NOTHING, load))


def one_line(error: pytest.ExceptionInfo[RayioError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert KEY not in text
    assert SECRET not in text
    return text


def test_the_server_counts_the_requests_that_the_file_does_and_is_never_asked_for_a_size(
    objects: Objects, place: str
) -> None:
    store = store_at(place)
    put(store, "f", bytes(range(256)) * 400)
    objects.forget()

    def load(opener: Opener) -> None:
        with opener("f") as file:
            file.seek(-22, io.SEEK_END)
            file.read(22)
            file.seek(0)
            file.read(100)
            file.read(200)
            file.readinto(bytearray(50_000))  # type: ignore[attr-defined]

    served = read(store, load)
    assert [(method, asked) for method, _, asked in objects.asked] == [
        ("GET", "bytes=0-4095"), ("GET", "bytes=98304-102399"), ("GET", "bytes=300-50299"),
    ]  # fmt: skip
    assert (served.opens, served.requests, served.nbytes) == (1, 3, 2 * 4096 + 50_000)
    assert served.issued is not None
    reads = served.issued.rows[served.issued.rows["kind"] == 1]
    assert reads["offset"].tolist() == [0, 98304, 300]


def test_an_upload_holds_some_parts_and_not_the_object(objects: Objects, place: str) -> None:
    # In a process of its own: the server keeps what it gets in the memory of this one.
    program = (
        "import resource, sys; from rayio import storage; from rayio.storage.stores.counted import Traffic\n"
        "store, piece = storage.open(sys.argv[1]), bytes(1 << 20)\n"
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "store.write('small', lambda file: file.write(piece), traffic=Traffic()); before = most()\n"
        "store.write('big', lambda file: [file.write(piece) for _ in range(160)], traffic=Traffic())\n"
        "print(most() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, place], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 125 << 10
    assert store_at(place).size("big") == 160 << 20


@pytest.mark.parametrize("fault", [slow_down, reset, broken_off, silent], ids=lambda fault: fault.__name__)
def test_what_may_pass_is_tried_again_and_shows(objects: Objects, place: str, fault: Any) -> None:
    store = store_at(place, timeout=PATIENCE if fault is silent else 20)
    put(store_at(place), "f", b"0123456789" * 1000)
    objects.forget()

    def load(opener: Opener) -> bytes:
        with opener("f") as file:
            buffer = bytearray(10_000)
            file.readinto(buffer)  # type: ignore[attr-defined]
            return bytes(buffer)

    with objects.misbehaving(first(2, fault)):
        served = read(store, load)
    assert served.value == b"0123456789" * 1000
    assert (served.requests, len(objects.asked), len(objects.served)) == (1, 3, 1)
    assert served.retried is not None
    assert len(served.retried.rows) == 2
    assert served.retried.files == ["f"]
    one, two = served.retried.rows
    assert one["end"] <= two["start"]
    assert two["end"] - two["start"] >= 100e6  # 0.2 s, of which half is drawn


@pytest.mark.parametrize("nbytes", [100, PART_BYTES + 5])
def test_a_put_that_failed_is_made_again(objects: Objects, place: str, nbytes: int) -> None:
    store = store_at(place, timeout=60)
    with objects.misbehaving(first(2, slow_down, method="PUT")):
        written = asyncio.run(RealStorage(store, inline, 0).write("shard", nbytes, 1 << 20, fsync=False))
    assert written.retried is not None
    # Parts go up side by side: both fail in one try, or one in each of two.
    assert len(written.retried.rows) in ((2,) if nbytes == 100 else (1, 2))
    assert store.size("shard") == nbytes


def test_nobody_waits_for_another_attempt_when_a_run_ends(objects: Objects, place: str) -> None:
    store, ending = store_at(place, max_attempts=50), threading.Event()
    ending.set()  # as the kernel of a run that was interrupted does
    with objects.misbehaving(slow_down), pytest.raises(StorageError, match="f: reading was given up"):
        asyncio.run(RealStorage(store, inline, ending=ending).read(NOTHING, lambda opener: opener("f").read()))
    assert len(objects.asked) == 1


def test_waits_double_and_are_drawn_by_the_seed_and_the_name() -> None:
    from rayio.storage.stores.retrying import FIRST_SECONDS, LONGEST_SECONDS, Budget

    waits = [Budget(20, seed=4).seconds(attempt, "f") for attempt in range(1, 20)]
    whole = [min(LONGEST_SECONDS, FIRST_SECONDS * 2**number) for number in range(19)]
    assert all(0.5 * most < wait < most for wait, most in zip(waits, whole, strict=True))
    assert waits == [Budget(9, seed=4).seconds(attempt, "f") for attempt in range(1, 20)]
    assert waits[0] != Budget(20, seed=5).seconds(1, "f")
    assert waits[0] != Budget(20, seed=4).seconds(1, "g")


def test_redirects_are_followed_for_everything(objects: Objects, place: str) -> None:
    store = store_at(place, timeout=60)
    with objects.misbehaving(elsewhere(objects)):
        put(store, "a", b"first")
        asyncio.run(RealStorage(store, inline).write("shard", 3 * PART_BYTES, 1 << 20, fsync=False))
        assert store.read("a") == b"first"
        assert store.sizes() == {"a": 5, "shard": 3 * PART_BYTES}
        with store.open("shard", Traffic()) as file:
            assert file.seek(0, io.SEEK_END) == 3 * PART_BYTES
        store.remove("a")
        assert store.size("a") is None
    assert {path.split("/")[1] for _, path, _ in objects.served} == {"elsewhere"}
    assert store_at(place).size("shard") == 3 * PART_BYTES


REFUSALS: dict[str, tuple[Any, type[RayioError], str]] = {
    "403": (lambda _: s3_error("403 Forbidden", "AccessDenied"), StorageError, "no permission for reading"),
    "key": (
        lambda _: s3_error("403 Forbidden", "InvalidAccessKeyId", f"<AWSAccessKeyId>{KEY}</AWSAccessKeyId>"),
        StorageError, "the access key is not known there",
    ),
    "signature": (
        lambda _: s3_error("403 Forbidden", "SignatureDoesNotMatch", f"<StringToSign>{SECRET}</StringToSign>"),
        StorageError, "the secret key does not fit",
    ),
    "region": (
        lambda _: s3_error("400 Bad Request", "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"),
        StorageError, "not in region us-east-1: it says eu-west-3; set storage.region",
    ),
    "moved": (lambda _: s3_error("301 Moved", "PermanentRedirect"), StorageError, "not in region us-east-1; set"),
    "storm": (slow_down, StorageError, r"503 SlowDown from .* while reading, 3 times in .*; raise"),
    "broken": (broken_off, StorageError, "the answer broke off from .* while reading, 3 times in"),
    "reset": (reset, StorageError, "the connection broke from .* while reading, 3 times in"),
    "silent": (silent, StorageError, "no answer in time from .* while reading, 3 times in"),
    "circle": (round_in_a_circle, StorageError, "redirects of .* go round in a circle; check storage.endpoint"),
}  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_a_store_refuses_is_one_line(objects: Objects, place: str, refusal: str) -> None:
    fault, kind, says = REFUSALS[refusal]
    store = store_at(place, timeout=0.5 if fault is silent else 20)
    put(store_at(place), "f", b"0123456789" * 1000)

    def load(opener: Opener) -> None:
        with opener("f") as file:
            file.readinto(bytearray(10_000))  # type: ignore[attr-defined]

    with objects.misbehaving(fault), pytest.raises(kind, match=says) as error:
        read(store, load)
    assert one_line(error).startswith(f"{place}/f: ")
    if refusal in ("storm", "broken", "reset", "silent"):
        assert len(error.value.retried.rows) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("refusal", ["403", "storm", "reset", "circle"])
def test_what_a_store_refuses_to_take_is_one_line(objects: Objects, place: str, refusal: str) -> None:
    fault, kind, says = REFUSALS[refusal]
    for nbytes in (10, PART_BYTES + 1):
        with objects.misbehaving(fault), pytest.raises(kind, match=says.replace("reading", "writing it")) as error:
            store_at(place).write("f", lambda file, n=nbytes: file.write(bytes(n)), doing="writing it")  # type: ignore[misc]
        one_line(error)
        assert store_at(place).size("f") is None


def test_an_object_or_a_bucket_that_is_gone(place: str) -> None:
    def load(opener: Opener) -> None:
        with opener("f") as file:
            file.read()

    with pytest.raises(DataError, match=f"^{place}/f: the object is missing; generate the dataset again"):
        read(store_at(place), load)
    for gone in ("s3://no-such-bucket-of-ours", "s3://no-such-bucket-of-ours/below"):
        for use in (lambda s: s.exists, lambda s: s.prepare(), lambda s: put(s, "f", b"x"), lambda s: s.read("f")):
            with pytest.raises(StorageError, match="there is no bucket 'no-such-bucket-of-ours' at http") as error:
                use(store_at(gone))
            one_line(error)


def test_nobody_at_the_endpoint_is_said_at_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:  # bound and not listening: every connection is refused
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bound.getsockname()[1]}")
        store = storage.open(place, reached(max_attempts=50))
        with pytest.raises(
            StorageError, match=r"cannot reach http.* the connection was refused; is it running"
        ) as error:
            store.read("f")
    one_line(error)


def test_no_credentials_is_said_and_anonymous_needs_none(
    objects: Objects, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(store_at(place), "f", b"x")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"{objects.url}/latest")
    with pytest.raises(StorageError, match=r"there are no credentials for http.*; set AWS_ACCESS_KEY_ID") as error:
        store_at(place).read("f")
    one_line(error)
    signed: list[bool] = []

    def public(environ: dict[str, Any]) -> Any:
        signed.append("HTTP_AUTHORIZATION" in environ or "Signature" in environ.get("QUERY_STRING", ""))
        headers = {"ETag": '"x"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        return "200 OK", headers, b"everybody's" if environ["REQUEST_METHOD"] == "GET" else b""

    with objects.misbehaving(public):
        assert store_at(place, anonymous=True).read("f") == b"everybody's"
        with objects.misbehaving(elsewhere(objects)):
            put(store_at(place, anonymous=True), "g", b"unsigned")
    assert signed == [False] * len(signed)
    assert len(signed) >= 2


def test_credentials_of_a_profile_are_found_and_told_to_nobody(
    objects: Objects, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / ".aws/credentials").write_text(f"[other]\n{keys}")
    (tmp_path / ".aws/config").write_text("[profile other]\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_PROFILE", "other")
    store = store_at(place)
    assert KEY not in repr(store.place)  # type: ignore[attr-defined]
    assert store.place.region == "eu-central-1"  # type: ignore[attr-defined]
    seen: list[str] = []
    with objects.misbehaving(lambda environ: seen.append(environ.get("HTTP_AUTHORIZATION", ""))):
        put(store, "f", b"x")
    assert any(f"Credential={KEY}/" in said and "/eu-central-1/s3/" in said for said in seen)


@pytest.mark.parametrize(
    ("address", "settings", "says"),
    [
        ("s3://", {}, "there is no bucket in it"),
        ("s3:///prefix", {}, "there is no bucket in it"),
        (f"s3://{KEY}:{SECRET}@bucket/prefix", {}, "no credentials, which belong into the environment"),
        ("s3://b", {"endpoint": f"http://{KEY}:{SECRET}@host"}, "a user or a password"),
        (
            "s3://b",
            {"endpoint": "localhost:9000"},
            "storage.endpoint='localhost:9000' is no address of a service; write http://host:port",
        ),
        ("s3://b", {"endpoint": f"http://host/?token={SECRET}"}, "has a query in it"),
        (f"s3://b/x?X-Amz-Credential=a&X-Amz-Signature={SECRET}", {}, "has a signature or a token in it"),
        ("s3://b/x/../y", {}, r"cannot have the parts \. and \.\."),
        ("s3://b/./y", {}, r"cannot have the parts \. and \.\."),
        ("gopher://b", {}, r"no storage serves gopher://; give a path, or one of file://, s3://"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(StorageError, match=says) as error:
        storage.open(address, reached(**settings))
    one_line(error)
    assert SECRET not in str(error.value)


def test_the_host_has_the_bucket_where_that_is_asked_for(
    objects: Objects, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def host(environ: dict[str, Any]) -> Any:
        seen.append(environ["HTTP_HOST"] + environ["PATH_INFO"])
        return s3_error("403 Forbidden", "AccessDenied")

    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):  # no name here is known; a proxy knows all
        monkeypatch.setenv(name, objects.url if "http" in name.lower() else "")
    bucket = place.split("/")[2]
    with objects.misbehaving(host), pytest.raises(StorageError, match="no permission"):
        store_at(place, addressing_style="virtual", endpoint="http://store.example").read("f")
    assert seen == [f"{bucket}.store.example/some/prefix/f"]


def test_a_fork_of_a_process_that_has_used_it_is_told(place: str) -> None:
    put(store_at(place), "f", b"x")
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            store_at(place).read("f")
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"was forked from one that has used s3:// already" in os.read(reader, 1000)
    os.close(reader)
    os.close(writer)


def test_importing_files_loads_no_client() -> None:
    program = "import sys, rayio.storage.stores.posix, rayio.model.plan; assert 'obstore' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
