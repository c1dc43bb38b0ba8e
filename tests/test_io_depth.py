"""``loader.io_depth`` on real storage: how many requests of a batch are in flight, and what objects are asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, cast

import numpy as np
import pytest
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st
from objects import Answer, Objects, s3_error
from packages import TOY, installed

import rayio
from rayio import storage
from rayio.data.formats import FORMATS, at_once, sample
from rayio.errors import RayioError, ScenarioError, StorageError
from rayio.kinds import REGISTRIES
from rayio.scenario.model import Scenario
from rayio.storage.ahead import Ahead, _File, _Request
from rayio.storage.base import WHOLE_BYTES, AtOnce, Placed, Requests
from rayio.storage.crew import Crew
from rayio.storage.in_flight import InFlight
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixFile, PosixStore
from rayio.storage.stores.s3 import direct, getting
from scenarios import run_locally, scenario, simulated

#: A reader waits no longer for others to come; it is never waited for by a run that is right.
PATIENCE = 20.0
REQUEST = ("io.read", "io.open")
Taking = Callable[[int, memoryview], None]


class Together:
    """Counts who is inside at a time; ``number`` of them wait for each other, in groups."""

    def __init__(self, number: int) -> None:
        self.barrier = threading.Barrier(number)
        self.lock = threading.Lock()
        self.inside = self.most = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Be in flight."""
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            self.barrier.wait(PATIENCE)
            yield
        finally:
            with self.lock:
                self.inside -= 1


def deep(place: str, depth: int, **overrides: Any) -> Scenario:
    """Give a scenario of one reader with batches of 8 samples, an object each."""
    return scenario(**{
        "cluster": {"ranks_per_node": 1}, "train": {"epochs": 1, "compute": 0}, "trace__level": "io",
        "dataset": {"path": place, "num_files": 16, "sample_bytes": "9 kB"},
        "loader": {"batch_size": 8, "num_workers": 1, "io_depth": depth}, **overrides,
    })  # fmt: skip


class Rounds:
    """Holds the gets of each batch until as many wait as may be in flight, or all that are left: so many rounds."""

    def __init__(self, depth: int, number: int) -> None:
        self.depth = self.room = depth
        self.number = self.left = number
        self.rounds = self.waiting = self.most = 0
        self.changed = threading.Condition()

    def __call__(self, environ: dict[str, Any]) -> None:
        if environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(".npz"):
            return
        with self.changed:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            mine = self.rounds
            if self.waiting == min(self.depth, self.left):
                self.rounds, self.left, self.waiting = mine + 1, self.left - self.waiting or self.number, 0
                self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.rounds > mine, PATIENCE)


@pytest.mark.parametrize(
    ("depth", "level"), [(1, "io"), (4, "io"), (8, "io"), (1, "batch"), (2, "batch"), (4, "batch"), (8, "batch")]
)
def test_so_many_requests_to_a_bucket_are_in_flight_and_a_batch_takes_the_simulated_rounds(
    depth: int, level: str, objects: Objects, place: str, home: Path
) -> None:
    dataset = {"path": f"{place}/data", "num_files": 18, "sample_bytes": "9 kB"}
    wanted = deep(place, depth, trace__level=level, dataset=dataset, loader__batch_size=9)
    slow = {"first_byte": "1 s", "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s", "gap": "1 MiB"}
    rayio.generate(wanted, root=home)
    rounds = Rounds(depth, 9)
    with objects.misbehaving(rounds):  # fewer in flight would wait for one another until they fail
        run = rayio.run(wanted, engine="local", root=home, out=home / "run")
    assert run.exit_code == 0
    assert rounds.most == depth
    model = deep(place, depth, trace__level=level, dataset=dataset, loader__batch_size=9, storage__model=slow)
    seconds = sum(row["duration_ns"] for row in simulated(model).rows("read")) / 1e9
    assert seconds == pytest.approx(rounds.rounds, abs=1e-3)


@pytest.mark.parametrize("depth", [2, 8])
def test_so_many_requests_to_files_are_in_flight_and_no_more(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, fetch = Together(depth), PosixFile._fetch

    def fetched(file: PosixFile, position: int, buffer: Any) -> int:
        with together.request():
            return fetch(file, position, buffer)

    monkeypatch.setattr(PosixFile, "_fetch", fetched)
    wanted = deep("data", depth, dataset={"path": "data", "num_files": 16, "sample_bytes": "9 kB"})
    outcome = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert outcome.ledger.even
    assert together.most == depth


def test_files_of_one_sample_are_read_whole_by_so_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 4
    together, filling = Together(depth), PosixStore.filling

    def noted(store: PosixStore) -> AtOnce | None:
        fill = filling(store)
        assert fill is not None

        def filled(*request: Any) -> bool:
            with together.request():
                return fill(*request)

        return filled

    monkeypatch.setattr(PosixStore, "filling", noted)
    monkeypatch.delattr(Ahead, "__init__")
    wanted = deep(
        "data", depth, dataset={"path": "data", "num_files": 16, "sample_bytes": "9 kB"}, trace__level="batch"
    )
    outcome = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert outcome.ledger.even
    assert together.most == depth


@pytest.mark.parametrize(
    ("form", "whole", "is_library", "problem"),
    [
        (form, whole, is_library, problem)
        for form, whole, is_library in [
            *((form, WHOLE_BYTES, False) for form in ("npz", "npy", "jsonl", "parquet", "indexed_binary")),
            *((form, WHOLE_BYTES, True) for form in ("npz", "tfrecord", "hdf5")),
            *((form, 0, is_library) for form in ("npz", "indexed_binary") for is_library in (False, True)),
        ]
        for problem in ("", "missing", "damaged")
    ],
)
def test_objects_without_a_trace_of_requests_are_counted_and_judged_as_with_one(
    form: str, whole: int, is_library: bool, problem: str, home: Path, objects: Objects, place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for module in (getting, at_once):
        monkeypatch.setattr(module, "WHOLE_BYTES", whole)
    monkeypatch.setattr(getting, "POURED_BYTES", 1000)
    monkeypatch.setattr(direct, "PIECE_BYTES", 1000)
    if is_library:
        monkeypatch.setattr(direct, "_is_plain", lambda place: False)
    keys = {
        "dataset": {"path": f"{place}/data", "format": form, "num_files": 8, "sample_bytes": "9 kB"},
        "loader": {"batch_size": 4, "num_workers": 1, "io_depth": 4},
    }
    wanted = {level: deep(place, 4, **keys, trace__level=level) for level in ("io", "batch")}
    rayio.generate(wanted["io"], root=home)

    store, victim = storage.open(f"{place}/data"), f"000000/000000005{FORMATS[form].extension}"
    if problem == "damaged":
        content = bytearray(store.read(victim) or b"")
        content[len(content) // 2] ^= 255
        store.write(victim, lambda file: file.write(content))

    def missing(environ: dict[str, Any]) -> Answer | None:
        is_hit = problem == "missing" and environ["PATH_INFO"].endswith(victim)
        return s3_error("404 Not Found", "NoSuchKey") if is_hit else None

    counted, said = dict[str, Any](), dict[str, str]()
    for level, chosen in wanted.items():
        if not whole and not problem and level == "batch":
            monkeypatch.setattr(sample, "judge", lambda seed: None)  # samples are judged as they arrive
        objects.forget()
        try:
            with objects.misbehaving(missing):
                run = rayio.run(chosen, engine="local", root=home, out=home / level)
        except RayioError as error:
            said[level] = str(error)
            continue
        reads = run.spans()
        reads = reads[reads["name"] == "read"]
        made = [path for _, path, _ in objects.methods("GET") if "/data/0" in path and "list-type" not in path]
        assert reads["requests"].sum() == len(made)
        counted[level] = reads["requests"].sum(), reads["bytes"].sum()
    assert len({*said.values()}) == bool(problem)
    assert len({*counted.values()}) == (not problem)


#: A format for each way to find samples in an object; by default laws of formats and of stores have the others.
SOME = ("npz", "hdf5", "tfrecord", "parquet", "indexed_binary")


def requests(run: rayio.Run) -> Counter[tuple[Any, ...]]:
    spans = run.spans()
    spans = spans[spans["name"].isin(REQUEST)]
    columns = (spans[column] for column in ("name", "epoch", "step", "file", "offset", "bytes"))
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize(("samples_per_file", "depth"), [(1, 4), (4, 1)])
@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SOME)) for name in FORMATS]
)
def test_an_object_of_one_sample_is_one_get_and_records_close_together_are_one(
    form: str, depth: int, samples_per_file: int, home: Path, objects: Objects, place: str
) -> None:
    num_files = 16 // samples_per_file
    dataset = {
        "path": f"{place}/data", "format": form, "num_files": num_files, "samples_per_file": samples_per_file,
        "sample_bytes": "9 kB",
    }  # fmt: skip
    wanted = deep(place, depth, dataset=dataset)
    rayio.generate(wanted, root=home)
    objects.forget()
    real = rayio.run(wanted, engine="local", root=home, out=home / "real")
    asked = Counter(
        (path.partition("/data/")[2], ranges)
        for _, path, ranges in objects.methods("GET")
        if "/data/0" in path and "list-type" not in path  # neither the manifest nor listings
    )
    assert not objects.methods("HEAD")
    listed = requests(real)
    assert asked == Counter(
        (file, f"bytes={offset}-{offset + nbytes - 1}")
        for (name, *_, file, offset, nbytes), times in listed.items()
        for _ in range(times)
        if name == "io.read"
    )
    assert requests(rayio.simulate(wanted, root=home, out=home / "model")) == listed
    batches = 16 // 8
    if samples_per_file == 1:
        assert set(asked.values()) <= {1}
        data = [file for file, _ in asked if file.endswith(FORMATS[form].extension)]
        assert len(data) == len(set(data)) == (0 if form == "synthetic" else 16)  # an index is an object of its own
    else:
        objects_of_a_file = len({file for file, _ in asked}) / num_files
        assert asked.total() <= batches * num_files * objects_of_a_file  # each object at most once in a batch


def test_a_depth_that_cannot_act_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.syspath_prepend(installed(tmp_path / "toy", TOY / "pyproject.toml"))
    monkeypatch.syspath_prepend(str(TOY))
    wanted = deep("data", 4, dataset={"path": "data", "format": "toy", "num_files": 16, "sample_bytes": "9 kB"})
    with pytest.raises(ScenarioError, match=r"loader\.io_depth=4: format toy plans no offsets"):
        rayio.run(wanted, engine="local", root=tmp_path, out=tmp_path / "run")
    assert rayio.simulate(wanted, root=tmp_path, out=tmp_path / "model").exit_code == 0


def test_sixteen_requests_of_8_mb_are_in_flight_together() -> None:
    number, together = 16, Together(16)

    class Answer:
        has_handle, size, traffic = False, 0, Traffic()

        def bytes_at(self, offset: int, nbytes: int) -> bytes:
            with together.request():
                return b""

    names, each = [f"{n}.npz" for n in range(number)], np.arange(number)
    requests = Requests((0, 0, 0), number, np.full(number, 8_000_900), lambda: Placed(names, each, np.zeros_like(each)))
    ahead = Ahead(requests, lambda name, traffic: Answer(), Traffic(), depth=number, crew=Crew(number))
    for name in names:
        assert ahead.take(name, 0, bytearray(1)) == 0
    ahead.finish()
    assert together.most == number


@pytest.mark.parametrize(("has", "size", "is_read"), [(10, 10, True), (11, 10, False), (9, 10, False), (11, -1, True)])
def test_an_object_of_another_size_is_left_to_the_reader_of_open_files(has: int, size: int, is_read: bool) -> None:
    class Store:
        address, source = "s3://bucket", "network"

        def pour(self, name: str, position: int, nbytes: int, traffic: Traffic, take: Taking) -> tuple[int, int]:
            content = memoryview(bytes(has))[position : position + nbytes]
            take(position, content)
            return has, len(content)

    planned = Requests(
        (0, 0, 0), 1, np.full(1, 10), lambda: Placed(["0"], np.zeros(1, np.int64), np.zeros(1, np.int64))
    )
    alone = InFlight(planned, cast(Any, Store()), Traffic(), depth=1, crew=Crew(1), is_watched=False)

    def work(items: Iterator[str]) -> bool:
        assert alone.fill is not None
        return alone.fill(next(items), size, 10, 0, (bytearray(10),))

    assert alone.each(work, iter(["0"]), 1) == [is_read]


def test_a_run_that_ends_does_not_wait_for_other_threads_and_has_no_batch() -> None:
    going, ending, inside = Event(), Event(), Event()

    class Store:
        address, source = "s3://bucket", "network"

        def pour(self, name: str, position: int, nbytes: int, traffic: Traffic, take: Taking) -> tuple[int, int]:
            if threading.current_thread() is threading.main_thread():
                assert inside.wait(PATIENCE)
                ending.set()
            else:
                inside.set()
                going.wait(PATIENCE)
            take(position, memoryview(bytes(nbytes)))
            return nbytes, nbytes

    names, each, traffic = ["0", "1"], np.arange(2), Traffic(ending=ending)
    planned = Requests((0, 0, 0), 2, np.full(2, 10), lambda: Placed(names, each, np.zeros_like(each)))
    together = InFlight(planned, cast(Any, Store()), traffic, depth=2, crew=Crew(2), is_watched=False)

    def work(items: Iterator[tuple[str]]) -> None:
        for (name,) in items:
            assert together.fill is not None
            together.fill(name, 10, 10, 0, (bytearray(10),))

    with pytest.raises(StorageError, match="reading was given up, the run is ending"):
        together.each(work, zip(names, strict=True), 2)
    going.set()


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 14), st.integers(0, 6)), max_size=12),
)
def test_a_read_is_answered_by_its_own_request_or_the_first_that_has_its_bytes(
    planned: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    """Held against a look through all requests, which takes the square of their number in a batch."""
    file, left = _File("f", 1), [*enumerate(planned)]
    for offset, nbytes in planned:
        file.add(_Request(file, offset, nbytes))
    for position, nbytes in asked:
        own = next((place for place, each in left if each == (position, nbytes)), None)
        wider = (n for n, (o, size) in enumerate(planned) if o <= position and position + nbytes <= o + size)
        wanted = own if own is not None else next(wider, None)
        left = [each for each in left if each[0] != own]
        found = file.covering(position, nbytes)
        assert found is (None if wanted is None else file.requests[wanted])


def test_reads_as_planned_look_through_no_list_of_requests() -> None:
    file, looks = _File("f", 1), 0

    class Watched(list[_Request]):
        def __iter__(self) -> Iterator[_Request]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    for number in range(1000):
        file.add(_Request(file, 10 * number, 10))
    file.requests = Watched(file.requests)
    assert all(file.covering(10 * n, 10) is not None for n in reversed(range(1000)))
    assert all(file.covering(10 * n + 3, 5) is not None for n in range(1000))
    assert looks <= 1
