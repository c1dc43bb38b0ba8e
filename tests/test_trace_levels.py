from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rayio.scenario.model import Scenario
from rayio.storage.base import FSYNC, OPEN, READ, WRITE
from rayio.storage.itemise import itemise
from rayio.storage.stores.counted import slots
from rayio.trace.span import REQUEST_LANE, REQUESTS
from scenarios import Outcome, run_locally, scenario, simulated

CHECKPOINT = {"every": {"steps": 3}, "path": "ck", "model": {"bytes": 5000}, "request_bytes": 1500, "fsync": True}


def at_level(level: str, **overrides: Any) -> Scenario:
    """Give a scenario of files of two sizes, with a checkpoint, whose storage has real files or a model."""
    dataset = {"path": "data", "num_files": 12, "samples_per_file": 4, "sample_bytes": "2000 B"}
    return scenario(**{"trace__level": level, "dataset": dataset, "checkpoint": CHECKPOINT, **overrides})


def real(wanted: Scenario, root: Path) -> Outcome:
    return run_locally(on_disk(wanted, root), root)


def modelled(wanted: Scenario, root: Path) -> Outcome:
    return simulated(wanted)


Engine = Callable[[Scenario, Path], Outcome]
engines = pytest.mark.parametrize("engine", [real, modelled])


def of(outcome: Outcome, *names: str) -> list[dict[str, Any]]:
    return [row for row in outcome.all_rows if row["name"] in names]


def test_the_codes_of_requests_are_those_of_their_names() -> None:
    assert [REQUESTS[code] for code in (OPEN, READ, WRITE, FSYNC)] == ["io.open", "io.read", "io.write", "io.fsync"]


@engines
@pytest.mark.parametrize("workers", [0, 2])
def test_the_requests_of_a_read_are_all_there_with_its_bytes_inside_its_time(
    engine: Engine, workers: int, tmp_path: Path
) -> None:
    run = engine(at_level("io", loader__num_workers=workers), tmp_path)
    reads = of(run, "read")
    assert reads
    for read in reads:
        who = {key: read[key] for key in ("role", "index", "batch")}
        mine = [row for row in of(run, "io.open", "io.read") if who.items() <= row.items()]
        requests = [row for row in mine if row["name"] == "io.read"]
        assert sum(row["requests"] for row in mine) == len(requests) == read["requests"] > 0
        assert sum(row["bytes"] for row in requests) == read["bytes"] > 0
        assert len(mine) > len(requests)
        for row in mine:
            assert row["lane"] >= REQUEST_LANE
            assert read["start_ns"] <= row["start_ns"]
            assert row["start_ns"] + row["duration_ns"] <= read["start_ns"] + read["duration_ns"]


@engines
def test_the_requests_of_a_checkpoint_are_all_there_and_its_fsyncs(engine: Engine, tmp_path: Path) -> None:
    run = engine(at_level("io"), tmp_path)
    writes = of(run, "write")
    assert writes
    for write in writes:
        mine = [row for row in of(run, *REQUESTS) if (row["batch"], row["role"]) == (write["batch"], write["role"])]
        assert [row["name"] for row in mine] == ["io.open", *["io.write"] * 4, "io.fsync", "io.fsync"]
        assert [row["bytes"] for row in mine if row["name"] == "io.write"] == [1500, 1500, 1500, 500]
        assert [row["offset"] for row in mine if row["name"] == "io.write"] == [0, 1500, 3000, 4500]
        assert sum(row["requests"] for row in mine) == write["requests"]
        assert {row["file"] for row in mine} == {f"epoch-{write['epoch']:04d}-step-{write['step']:08d}/shard-00000.bin"}


@pytest.mark.parametrize("shuffle", ["none", "global"])
@pytest.mark.parametrize("samples_per_file", [1, 4])
@pytest.mark.parametrize(
    "kind",
    [
        {"format": "npz"},
        {"format": "tfrecord"},
        {"format": "hdf5"},
        {"format": "hdf5", "chunk": "1500 B"},
        {"format": "hdf5", "chunk": "11 kB"},
    ],
    ids=lambda kind: "-".join(kind.values()),
)
def test_the_model_issues_the_requests_that_the_library_does(
    kind: dict[str, str], samples_per_file: int, shuffle: str, tmp_path: Path
) -> None:
    sizes = {"kind": "uniform", "low": "1 kB", "high": "12 kB"}  # some files take more requests than others
    dataset = {"path": "data", "num_files": 12, "samples_per_file": samples_per_file, "sample_bytes": sizes, **kind}
    wanted = at_level("io", dataset=dataset, loader__shuffle=shuffle)

    def calls(run: Outcome) -> list[tuple[Any, ...]]:
        rows = [row for row in of(run, "io.open", "io.read") if row["role"] == "reader"]
        rows.sort(key=lambda row: (row["batch"], row["start_ns"], row["offset"]))
        return [tuple(row[key] for key in ("batch", "name", "file", "offset", "bytes")) for row in rows]

    issued = calls(real(wanted, tmp_path))
    assert calls(simulated(wanted)) == issued
    assert all((tmp_path / "data" / file).stat().st_size >= offset + nbytes for _, _, file, offset, nbytes in issued)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel's own count is Linux's")
@pytest.mark.parametrize("format", ["npz", "hdf5", "tfrecord"])
def test_the_kernel_counts_the_reads_that_the_trace_has(format: str, tmp_path: Path) -> None:
    dataset = {"path": "data", "num_files": 300, "samples_per_file": 4, "sample_bytes": "20 kB", "format": format}
    quick = {"checkpoint": None, "train__compute": "10 us", "train__epochs": 1}
    wanted = on_disk(at_level("io", dataset=dataset, **quick), tmp_path)
    few = at_level("io", dataset=dataset, train__steps=2, **quick)
    run_locally(few, tmp_path)  # whatever is loaded only once

    def counted() -> tuple[int, int]:
        said = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(said["syscr"]), int(said["rchar"])

    before = counted()
    run = run_locally(wanted, tmp_path)
    calls, nbytes = (after - at for after, at in zip(counted(), before, strict=True))
    reads = of(run, "io.read")
    assert len(reads) > 1000
    # Before and after each batch its thread asks the kernel what came from the device. What else is read is little.
    others = calls - 2 * len(of(run, "read"))
    assert len(reads) <= others <= 1.02 * len(reads) + 50
    assert sum(row["bytes"] for row in reads) <= nbytes <= 1.02 * sum(row["bytes"] for row in reads) + (1 << 20)


@engines
def test_every_sample_has_a_span_inside_its_read(engine: Engine, tmp_path: Path) -> None:
    run = engine(at_level("sample"), tmp_path)
    assert not of(run, *REQUESTS)
    for read in of(run, "read"):
        mine = [row for row in of(run, "sample") if row["batch"] == read["batch"]]
        assert [row["bytes"] for row in mine] == [2000, 2000]
        assert all((row["file"].endswith(".npz"), row["lane"]) == (True, 1) for row in mine)
        for row in mine:
            assert read["start_ns"] <= row["start_ns"]
            assert row["start_ns"] + row["duration_ns"] <= read["start_ns"] + read["duration_ns"]
            assert row["duration_ns"] > 0


@engines
def test_at_level_step_only_ranks_are_heard(engine: Engine, tmp_path: Path) -> None:
    run = engine(at_level("step"), tmp_path)
    assert {row["role"] for row in run.all_rows} == {"rank"}
    assert {"data_wait", "compute", "checkpoint", "life"} <= {row["name"] for row in run.all_rows}


@engines
def test_at_level_none_only_lives_are_left(engine: Engine, tmp_path: Path) -> None:
    run = engine(at_level("none"), tmp_path)
    assert [(row["name"], row["role"]) for row in run.spans.to_pylist()] == [("life", "rank")] * 2
    assert run.ledger.even


@pytest.mark.parametrize("level", ["none", "step"])
def test_delays_of_workers_are_not_kept_without_their_reads(level: str) -> None:
    model = {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    model["servers"] = {"number": 2, "bandwidth": "1 MB/s"}
    run = simulated(scenario(trace__level=level, storage__model=model, dataset__num_files=600, loader__batch_size=1))
    assert {row["role"] for row in run.all_rows} == {"rank"}


def test_the_level_changes_nothing_but_what_is_recorded() -> None:
    def ranks(level: str) -> list[Any]:
        rows = simulated(at_level(level)).spans.to_pylist()
        return sorted(str(row) for row in rows if row["role"] == "rank")

    assert ranks("step") == ranks("batch") == ranks("sample") == ranks("io")


def test_the_virtual_clock_has_no_process() -> None:
    assert {row["pid"] for row in simulated(at_level("io")).spans.to_pylist()} == {0}


def test_concurrent_modelled_requests_have_lanes_of_their_own() -> None:
    run = simulated(at_level("io", loader__io_depth=3, loader__batch_size=4))
    lanes: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for row in of(run, "io.read"):
        end = row["start_ns"] + row["duration_ns"]
        lanes.setdefault((row["role"], row["index"], row["lane"]), []).append((row["start_ns"], end))
    assert {lane for _, _, lane in lanes} == {2, 3, 4}
    for spans in lanes.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


intervals = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), min_size=1, max_size=40)


@given(intervals=intervals)
def test_slots_never_overlap_and_are_as_few_as_can_be(intervals: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = start + np.array([length for _, length in intervals])
    given_ = slots(start, end)
    for slot in set(given_.tolist()):
        mine = sorted(zip(start[given_ == slot], end[given_ == slot], strict=True))
        assert all(a[1] <= b[0] for a, b in pairwise(mine))
    most = max(int(((start <= t) & (t < end)).sum()) for t in start.tolist())
    instants = int((start == end).sum())
    assert max(most, 1) <= len(set(given_.tolist())) <= most + instants + (not most)


numbers = st.floats(0, 10).map(lambda x: round(x, 6))


@given(
    requests=st.lists(numbers, min_size=1, max_size=20),
    opens=st.lists(numbers, max_size=20),
    depth=st.integers(1, 5),
    length=st.integers(0, 10**10),
)
def test_requests_of_a_lease_fill_its_time_whatever_they_are(
    requests: list[float], opens: list[float], depth: int, length: int
) -> None:
    sizes: NDArray[np.int64] = np.arange(len(requests)) + 1
    issued = itemise(READ, 50, 50 + length, np.array(requests), sizes, np.array(opens), depth=depth)
    rows = issued.rows
    assert len(rows) == len(requests) + len(opens)
    assert rows["nbytes"][rows["kind"] == READ].tolist() == sizes.tolist()
    assert (rows["start"] >= 50).all()
    assert (rows["start"] <= rows["end"]).all()
    assert rows["slot"].max() < depth
    if sum(requests) + sum(opens) > 1e-3:
        assert rows["end"].max() == 50 + length
