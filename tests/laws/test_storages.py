"""Laws of every storage: what is written is read, whole or not at all, and what is counted is what was asked for."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registered import every
from trials import Asked, Trial, trial_of

from rayio import storage
from rayio.data.formats import layout_of
from rayio.data.generate import prepare
from rayio.errors import DataError, RayioError, StorageError
from rayio.kinds import LOADERS, STORAGES
from rayio.storage.base import FSYNC, OPEN, READ, WRITE
from rayio.storage.stores.counted import WINDOW_BYTES, Traffic
from rayio.storage.stores.opening import Store
from scenarios import run_locally, scenario

every_scheme = every(STORAGES, "scheme")
#: Written at once, or streamed as readers of the counts have it.
STREAMED = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def trial(scheme: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    """A place where the scheme is tried."""
    with trial_of(scheme, request, tmp_path) as tried:
        yield tried


def random(nbytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def appended(content: bytes, piece: int = 1 << 20) -> Callable[[BinaryIO], None]:
    """Write a content in pieces, as a writer of checkpoints does."""

    def fill(file: BinaryIO) -> None:
        for start in range(0, len(content), piece):
            left = content[start : start + piece]
            while left:
                left = left[file.write(left) :]

    return fill


def put(store: Store, name: str, content: bytes, is_streamed: bool = False, **how: Any) -> Traffic | None:
    traffic = Traffic() if is_streamed else None
    store.write(name, appended(content), traffic=traffic, **how)
    return traffic


def prepared(trial: Trial) -> Store:
    store = trial.open()
    store.prepare()
    return store


def one_line(error: pytest.ExceptionInfo[RayioError], store: Store, name: str) -> bool:
    """Say whether an error names a file, by its address or by where it lies, in one line."""
    said = str(error.value)
    return "\n" not in said and (f"{store.full(name)}: " in said or f"/{name}: " in said)


@every_scheme
@STREAMED
def test_what_is_written_is_read_listed_replaced_and_removed(trial: Trial, is_streamed: bool) -> None:
    store, beside = trial.open(), trial.open("-beside")
    assert (store.exists, store.is_file, store.entries(), store.sizes()) == (False, False, [], {})
    store.prepare()
    beside.prepare()
    put(beside, "a", b"beside")
    for content in (b"first", b"", random(3 * WINDOW_BYTES + 5), b"short"):
        put(store, "a", content, is_streamed)
        assert (store.read("a"), store.size("a"), store.sizes()) == (content, len(content), {"a": len(content)})
        assert store.full("a") == f"{store.address}/a"
    put(store, "folder/b", b"second", is_streamed)
    assert store.exists
    assert sorted(store.entries()) == ["a", "folder"]
    assert (store.sizes(), store.sizes("folder"), store.sizes("none")) == ({"a": 5}, {"b": 6}, {})
    assert trial.open().read("folder/b") == b"second", "another process finds it by the address"
    store.tidy("folder")
    assert store.sizes("folder") == {"b": 6}
    assert not store.leads_out("folder")
    for _ in range(2):
        store.remove("a")
        assert (store.read("a"), store.size("a"), store.sizes()) == (None, None, {})
    store.remove_all()
    assert (store.exists, store.entries()) == (False, [])
    assert beside.read("a") == b"beside", "what lies beside an address is not below it"
    assert store.free_bytes() is None or store.free_bytes() >= 0  # type: ignore[operator]


@every_scheme
@pytest.mark.parametrize("has_links", [True, False], ids=["links", "none"])
def test_of_several_that_create_a_file_one_does(trial: Trial, has_links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.ENOTSUP, "Operation not supported")))
    store, each = prepared(trial), [f"of {number}".encode() for number in range(8)]
    with ThreadPoolExecutor(len(each)) as threads:
        made = [*threads.map(lambda own: store.create("a", own), each)]
    assert made.count(True) == 1
    assert store.read("a") == each[made.index(True)]
    assert store.sizes() == {"a": 4}
    store.remove("a")
    assert store.create("a", b"new")


@every_scheme
def test_what_goes_up_in_parts_is_one_file(trial: Trial) -> None:
    store = prepared(trial)
    for nbytes in (trial.part_bytes, trial.part_bytes + 1, 2 * trial.part_bytes + 4097):
        content = random(nbytes, nbytes)
        for is_streamed in (False, True):
            put(store, "large", content, is_streamed)
            assert store.size("large") == nbytes
            assert store.read("large") == content
            store.remove("large")


MOVES = st.lists(
    st.tuples(st.sampled_from(["read", "readinto", "seek", "end", "rest"]), st.integers(0, 4 * WINDOW_BYTES)),
    max_size=8,
)


@every_scheme
def test_a_file_reads_like_any_other(trial: Trial) -> None:
    store = prepared(trial)
    contents = [random(nbytes) for nbytes in (0, 1, WINDOW_BYTES - 1, WINDOW_BYTES, 3 * WINDOW_BYTES + 5)]
    for number, content in enumerate(contents):
        put(store, f"{number}", content)

    @settings(max_examples=25)
    @given(number=st.integers(0, len(contents) - 1), moves=MOVES)
    def law(number: int, moves: list[tuple[str, int]]) -> None:
        with store.open(f"{number}", Traffic()) as ours, io.BytesIO(contents[number]) as like:
            for move, many in moves:
                if move == "seek":
                    assert ours.seek(many) == like.seek(many)
                elif move == "end":
                    back = -min(many, len(contents[number]))
                    assert ours.seek(back, io.SEEK_END) == like.seek(back, io.SEEK_END)
                elif move == "readinto":
                    one, two = bytearray(many), bytearray(many)
                    assert ours.readinto(one) == like.readinto(two)  # type: ignore[attr-defined]
                    assert one == two
                else:
                    assert ours.read(many if move == "read" else -1) == like.read(many if move == "read" else -1)
                assert ours.tell() == like.tell()

    law()


@every_scheme
def test_what_is_missing_is_told_with_its_address(trial: Trial) -> None:
    store = prepared(trial)
    put(store, "folder/there", b"x")
    for name in ("gone", "folder/gone", "none/gone"):
        assert (store.read(name), store.size(name)) == (None, None)
        store.remove(name)
        with pytest.raises(DataError, match="is missing") as error, store.open(name, Traffic()) as file:
            file.read(1)
        assert one_line(error, store, name)


class BrokenError(Exception):
    """Whatever a writer's own code raises."""


@every_scheme
@STREAMED
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "there"])
def test_a_write_that_breaks_off_leaves_what_was_there(trial: Trial, is_streamed: bool, is_there: bool) -> None:
    store = prepared(trial)
    if is_there:
        put(store, "a", b"old")
    before = b"old" if is_there else None
    many = max(9000, trial.part_bytes + 1)

    def unchanged() -> None:
        assert store.read("a") == before
        assert store.sizes() == ({"a": 3} if is_there else {})

    def breaks(file: BinaryIO) -> None:
        appended(random(many))(file)
        unchanged()  # half of it is written, and nobody sees it
        raise BrokenError

    with pytest.raises(BrokenError):
        store.write("a", breaks, traffic=Traffic() if is_streamed else None)
    unchanged()
    assert store.entries() == (["a"] if is_there else []), "something unfinished stays"
    with trial.full(), pytest.raises(StorageError) as error:
        put(store, "a", random(2 * many), is_streamed, doing="saving it")
    assert one_line(error, store, "a")
    assert "saving it" in str(error.value)
    unchanged()
    assert store.entries() == (["a"] if is_there else []), "something unfinished stays"
    put(store, "a", b"again", is_streamed)
    assert store.read("a") == b"again"


@every_scheme
def test_readers_see_the_old_file_or_the_new_one(trial: Trial) -> None:
    store = prepared(trial)
    old, new = b"o" * 70_000, b"n" * 50_000
    put(store, "a", old)
    is_over, seen = threading.Event(), set[bytes | None]()

    def look() -> None:
        while not is_over.is_set():
            seen.add(store.read("a"))

    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        try:
            for number in range(20):
                put(store, "a", (new, old)[number % 2], number % 3 == 0)
        finally:
            is_over.set()
        assert all(one.result() is None for one in looking)
    assert seen <= {old, new}
    assert seen


@every_scheme
def test_several_threads_may_use_it(trial: Trial) -> None:
    store = prepared(trial)

    def work(number: int) -> bool:
        content = random(2 * WINDOW_BYTES, number)
        put(store, f"folder/{number}", content, number % 2 == 0)
        with store.open(f"folder/{number}", Traffic()) as file:
            return file.read() == content

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
    assert store.sizes("folder") == {str(number): 2 * WINDOW_BYTES for number in range(12)}


def rows(traffic: Traffic) -> dict[int, tuple[int, int]]:
    """How many requests of each kind were noted one by one, and their bytes."""
    assert traffic.issued is not None
    noted = traffic.issued.rows
    return {
        int(kind): (int((noted["kind"] == kind).sum()), int(noted["nbytes"][noted["kind"] == kind].sum()))
        for kind in np.unique(noted["kind"])
    }


def agrees(traffic: Traffic, asked: Asked) -> None:
    assert (traffic.requests, traffic.nbytes, traffic.syncs) == (asked.requests, asked.nbytes, asked.syncs)
    assert asked.opens in (None, traffic.opens)


@every_scheme
def test_what_is_counted_of_reads_is_what_the_system_was_asked(trial: Trial) -> None:
    store = prepared(trial)
    put(store, "folder/f", random(100_000))

    def use(traffic: Traffic) -> None:
        with store.open("folder/f", traffic) as file:
            file.seek(-22, io.SEEK_END)
            file.read(22)
            file.seek(0)
            file.read(100)
            file.read(200)
            file.readinto(bytearray(50_000))  # type: ignore[attr-defined]
            file.seek(60_000)
            assert len(file.read()) == 40_000

    use(Traffic())
    for traffic in (Traffic(), Traffic(0), Traffic(0, is_itemised=False)):
        with trial.counted() as asked:
            use(traffic)
        agrees(traffic, asked)
        assert traffic.opens == 1
    noted = Traffic(0)
    use(noted)
    assert rows(noted) == {OPEN: (1, 0), READ: (noted.requests, noted.nbytes)}
    assert noted.issued is not None
    assert noted.issued.files == ["folder/f"]
    reads = noted.issued.rows[noted.issued.rows["kind"] == READ]
    assert [*zip(reads["offset"], reads["nbytes"], strict=True)][-2:] == [(300, 50_000), (60_000, 40_000)]
    assert (reads["start"] <= reads["end"]).all()


@every_scheme
@pytest.mark.parametrize("fsync", [False, True], ids=["", "fsync"])
def test_what_is_counted_of_writes_is_what_the_system_was_asked(trial: Trial, fsync: bool) -> None:
    store = prepared(trial)
    put(store, "f", b"before", True)
    for nbytes in (0, 2500, trial.part_bytes, trial.part_bytes + 1):
        content = random(nbytes)
        traffic = Traffic(0)
        with trial.counted() as asked:
            store.write("f", appended(content, 1000 if nbytes < 5000 else 1 << 20), traffic=traffic, fsync=fsync)
        agrees(traffic, asked)
        assert (traffic.opens, traffic.nbytes) == (1, nbytes)
        noted = rows(traffic)
        assert noted.get(WRITE, (0, 0))[1] == nbytes
        assert noted.get(FSYNC, (0, 0))[0] == traffic.syncs
        assert store.size("f") == nbytes


@every(STORAGES, "scheme", lambda kind: getattr(kind, "has_fsync", False))
@STREAMED
def test_a_file_is_forced_to_the_device_whole_and_then_its_folder(trial: Trial, is_streamed: bool) -> None:
    store = prepared(trial)
    for number, nbytes in enumerate((0, 2500, trial.part_bytes + 1)):
        with trial.counted() as asked:
            put(store, f"folder/{number}", random(nbytes), is_streamed, fsync=True)
        assert asked.syncs, "has_fsync, and nothing was forced"
        assert asked.forced is None or asked.forced[-2:] == [nbytes, -1]


@every_scheme
def test_what_is_forbidden_is_told_in_one_line(trial: Trial) -> None:
    if trial.forbidden is None:
        pytest.skip("no permission can be taken away here")
    store = prepared(trial)
    put(store, "a", b"there")

    def use(file: str) -> bytes:
        with store.open(file, Traffic()) as opened:
            return opened.read()

    uses: dict[str, Callable[[], object]] = {
        "open": lambda: use("a"), "read": lambda: store.read("a"), "size": lambda: store.size("a"),
        "write": lambda: put(store, "a", b"new"), "stream": lambda: put(store, "b", b"new", True),
        "sizes": store.sizes, "entries": store.entries, "exists": lambda: trial.open().exists,
        "remove": lambda: store.remove("a"),
    }  # fmt: skip
    for name, asked in uses.items():
        with trial.forbidden(), pytest.raises(StorageError, match="permission") as error:
            asked()
        assert (said := str(error.value)).startswith(store.address), name
        assert "\n" not in said
    assert store.read("a") == b"there"
    assert store.entries() == ["a"]


@every_scheme
def test_a_request_that_may_pass_is_made_again_in_sight_and_not_for_ever(trial: Trial) -> None:
    store = prepared(trial)
    put(store, "a", random(10_000))
    if trial.failing is None:
        return

    def use(traffic: Traffic) -> bytes:
        with store.open("a", traffic) as file:
            return file.read()

    traffic = Traffic(0)
    with trial.failing(2):
        assert use(traffic) == random(10_000)
    assert (traffic.opens, traffic.requests, traffic.nbytes) == (1, 2, 10_000 + WINDOW_BYTES)
    assert traffic.retried is not None
    assert traffic.retried.files == ["a"]
    earlier, later = traffic.retried.rows
    assert earlier["start"] < earlier["end"] <= later["start"] < later["end"]
    with trial.failing(1000), pytest.raises(StorageError) as error:
        use(Traffic())
    assert one_line(error, store, "a")


@every_scheme
@every(LOADERS, "loader")
def test_a_run_reads_and_saves_there_as_in_a_folder(trial: Trial, loader: str, tmp_path: Path) -> None:
    done = []
    for place in (f"{tmp_path}/plain", trial.address):
        wanted = scenario(
            dataset__path=f"{place}/data", dataset__format="hdf5", dataset__samples_per_file=4, loader__kind=loader,
            loader__num_workers=0, train__compute="100 us",
            checkpoint={"every": {"steps": 2}, "path": f"{place}/ck", "model": {"bytes": 10_007}, "fsync": False},
        )  # fmt: skip
        prepare(layout_of(wanted), "hdf5", f"{place}/data", settings=trial.settings, threads=1)
        run = run_locally(wanted, tmp_path)
        assert run.ledger.even
        files = storage.open(f"{place}/ck", trial.settings).sizes()
        got = [(tally.steps, tally.samples, tally.digest) for tally in run.tallies]
        done.append((got, files))
    plain, there = done
    assert there == plain
