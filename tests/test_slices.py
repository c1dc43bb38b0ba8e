"""Long runs are read slice by slice, and come to the same numbers as when they are read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import Trace, with_foreign
from hypothesis import given
from hypothesis import strategies as st

import rayio
from rayio.analyze.access import Accesses
from rayio.analyze.arrays import LaidAside, RunArrays, arrays_of
from rayio.analyze.metrics import measure
from rayio.analyze.passes import Timelines, summed
from rayio.analyze.retries import retried
from rayio.analyze.rounds import Rounds
from rayio.analyze.run_scenario import scenario_of
from rayio.analyze.scaling import scaling
from rayio.analyze.service import Capacities
from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import attribute
from rayio.analyze.verdict import judge
from rayio.errors import StorageError
from rayio.place import batch_parts
from rayio.predict import learnable
from rayio.predict.calibrate import calibrate
from rayio.predict.explain import Seen, explained
from rayio.predict.observe import Trained, reads
from rayio.predict.replay import Measured
from rayio.report import figures, tracks
from rayio.report.build import write
from rayio.scenario import derive
from rayio.scenario.meetings import meetings_of
from rayio.session.calibration import Calibration
from rayio.trace.aside import Unnamed
from rayio.trace.order import dense_order, order_by
from rayio.trace.run_directory import RunDirectory
from rayio.trace.slices import SLICE_ROWS, Slices

SMALL: dict[str, Any] = {
    "dataset.path": "model://small", "dataset.num_files": 96, "dataset.sample_bytes": "1000 B",
    "cluster.ranks_per_node": 4, "loader.batch_size": 2, "loader.num_workers": 2, "train.epochs": 2,
    "train.compute": "10 ms", "loader.decode": {"kind": "exponential", "mean": "9 ms"},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "batch": {},
    "io": {"trace.level": "io", "storage.model": "lustre-theta"},
    "sample": {"trace.level": "sample", "dataset.format": "tfrecord", "dataset.samples_per_file": 4},
    "step": {"trace.level": "step"},
    "ranks read themselves": {"loader.num_workers": 0},
    "out of order": {"loader.assignment": "dynamic", "loader.in_order": False},
    "checkpoints of all ranks, and evaluations": {
        "checkpoint": {"every": {"steps": 5}, "path": "c", "model": {"bytes": "10 MB"}, "writers": "all_ranks"},
        "train.evaluate": {"every": {"steps": 4}, "compute": "5 ms", "batch_size": 1},
        "dataset.eval.num_files": 12, "trace.level": "io",
    },
    "messages that cost": {
        "costs": {"lease": "1 ms", "put": "0.5 ms", "take": "0.3 ms", "barrier": "1 ms", "transfer_latency": "0.2 ms"},
        "cluster.nodes": 2, "train.stragglers": {"ranks": [1], "factor": 1.5},
    },
    "readers of nodes that come and go, and requests that storage refused": {
        "loader.num_workers": {"min": 1, "max": 4, "every": "50 ms", "calm": "100 ms"}, "storage.model": "s3",
        "cluster.reader_pool": {"nodes": 2, "slots": 2, "start": "20 ms", "idle_timeout": "100 ms"},
        "storage.throttle": {"reads_per_second": 100, "split_after": "never"}, "storage.max_attempts": 30,
    },
    "replicas that meet now and then": {
        "train.parallelism.tensor": 2, "train.sync": {"kind": "barrier", "every": 4}, "loader.batch_size": 1,
        "train.compute": {"kind": "exponential", "mean": "10 ms"},
    },
    "bound on bytes": {"loader.max_bytes_in_flight": "3000 B", "loader.payload": "real", "dataset.path": "data/x"},
}  # fmt: skip


@pytest.fixture(params=CASES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunDirectory:
    """A simulated run whose spans are in several files, as those of long runs are."""
    keys = SMALL | CASES[request.param]
    rayio.simulate("unet3d-small", keys, out=tmp_path / "run", root=tmp_path)
    return in_files(RunDirectory.open(tmp_path / "run"), 3)


def in_files(directory: RunDirectory, number: int) -> RunDirectory:
    """Distribute the spans over files by their time, each sorted as compaction does."""
    spans, before = directory.spans(), directory.span_paths()
    for first in range(0, len(spans), size := -(-len(spans) // number)):
        directory.write_compacted(spans.slice(first, size))
    for path in before:
        path.unlink()
    return RunDirectory.open(directory.address)


def same(one: Any, other: Any) -> None:
    """Compare answers that may hold arrays and not-a-numbers."""
    np.testing.assert_equal(one, other)


def fields_of(value: Any) -> Any:
    """What a frozen dataclass of arrays holds."""
    if hasattr(value, "__slots__") and hasattr(value, "__dataclass_fields__"):
        return {name: fields_of(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {key: fields_of(each) for key, each in value.items()}
    return [fields_of(each) for each in value] if isinstance(value, list | tuple) else value


def test_numbers_are_those_of_the_whole_however_small_the_slices_are(run: RunDirectory) -> None:
    whole, cut, scenario = Slices.of(run.spans()), run.slices(100), scenario_of(run)
    assert len([*cut.parts()]) > 1
    shape, payload = RunShape.of(scenario), run.info.get("payload") == "real"
    aside = arrays_of(cut)
    assert isinstance(aside, LaidAside)
    measured = measure(RunArrays.of_spans(whole), shape).as_json()
    for run_of_slices in (aside, RunArrays.of_spans(cut)):
        same(measure(run_of_slices, shape).as_json(), measured)
    same(*(scaling(each, arrays_of(each)) for each in (cut, whole)))
    meetings = meetings_of(scenario)
    charged, expected = (attribute(spans, payload=payload, meetings=meetings) for spans in (cut, whole))
    same(fields_of(charged), fields_of(expected))
    same(fields_of(judge(charged, shape)), fields_of(judge(expected, shape)))
    readers = derive.num_readers(scenario)
    lives, steps = charged.lives, charged.steps
    bins = figures.time_bins(lives, steps)

    def found(spans: Slices) -> list[Any]:
        asked = Trained(scenario.train.epochs)
        sums: list[Any] = [
            Capacities(lives, steps, shape, readers, names=spans.names), Accesses(spans, lives),
            figures.Split(lives, steps, shape, bins),
            figures.Depths(spans, lives, bins), tracks.Drawn(lives, steps),
        ]  # fmt: skip
        Timelines(spans).go_through(*sums, asked)
        alone = summed(spans, Trained(scenario.train.epochs))
        told = [reads(part) for part in spans.parts()]
        mine = [each.of(batch_parts(each.batch)[1] < scenario.train.epochs) for each in told]
        expected = [sum(int(np.sum(ns)) for ns in each) for each in zip(
            *((np.ones(len(one.batch)), one.nbytes, one.requests) for one in mine), strict=True
        )]  # fmt: skip
        assert [alone.batches, alone.nbytes, alone.requests] == expected
        return [asked.batches, asked.nbytes, asked.requests, *(fields_of(each.result()) for each in sums)]

    same(found(cut), found(whole))
    for costs in (None, scenario.charges):
        same(*(fields_of(Measured.of(each, charged, scenario, costs=costs)) for each in (cut, whole)))
    assert (retried(cut), len(cut)) == (retried(whole), len(whole))


class InSlices(RunDirectory):
    """A run whose spans nobody may have whole; it notes how many were there together."""

    most = 0

    def spans(self) -> pa.Table:
        raise AssertionError("the spans were read whole")

    def slices(self, rows: int = 200) -> Slices:
        found = super().slices(rows)
        self.most = max(self.most, *map(len, found.parts()))
        return found


@pytest.mark.parametrize("simulate", [False, True])
def test_a_report_and_an_explanation_never_have_all_spans(
    simulate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rayio.simulate("unet3d-small", SMALL, out=tmp_path / "run")
    of_whole = tmp_path / "whole.html"
    write(RunDirectory.open(made.path), of_whole, simulate=simulate)
    if not simulate:  # a simulation of it takes all of its steps
        monkeypatch.setattr(Timelines, "steps", property(lambda _: pytest.fail("all steps were held together")))
    run = InSlices(made.path)
    write(run, tmp_path / "cut.html", simulate=simulate)
    assert (tmp_path / "cut.html").read_text() == of_whole.read_text()
    stored = run.stored
    assert stored > 500
    assert 0 < run.most <= 200 + stored // 4  # a slice, and the rank that goes beyond it
    seen = Seen(Timelines(run.slices()), scenario := scenario_of(run), run.info, derive.num_readers(scenario))
    seen.timed.go_through(*seen.sums)
    explained(run, scenario, seen, simulate=simulate)


def test_a_calibration_never_has_all_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = SMALL | CASES["checkpoints of all ranks, and evaluations"]
    made = rayio.simulate("unet3d-small", keys, out=tmp_path / "run")
    told = RunDirectory.open(made.path)  # as if a machine had lived it
    told.write_info({**told.info, "engine": "local", "modelled_storage": False})
    whole = Calibration.of(calibrate(made.path)).to_yaml()
    assert len([*InSlices.open(made.path).slices().parts()]) > 2
    monkeypatch.setattr(learnable, "RunDirectory", InSlices)
    assert Calibration.of(calibrate(made.path)).to_yaml() == whole


def test_every_span_of_rayio_is_in_one_slice_and_those_of_a_rank_together(tmp_path: Path) -> None:
    trace = Trace()
    for rank in range(5):
        trace.rank(rank, [("startup", 10), *[("data_wait", 5), ("compute", 30)] * 20])
    readers = [trace.recorder.register("reader", f"{rank}-0", 0) for rank in range(5)]
    for rank, writer in enumerate(readers):
        trace.recorder.add(writer, "read", 0, 10 + rank, 0, rank, 0, 0)
        trace.recorder.add(writer, "lost", 20, 30, 1)  # what was killed says of no rank
    trace.recorder.add(trace.recorder.register("barrier", "0", 0), "lost", 40, 50, 1)
    trace.recorder.add(trace.recorder.register("storage", "7", 0), "life", 0, 99, 1)
    spans = trace.spans
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(with_foreign(spans).slice(0, 150), "a")
    run.write_spans(with_foreign(spans).slice(150), "b")
    found = run.slices(90)
    parts = [*found.parts("role", "index", "name", "rank", "start_ns", "duration_ns")]
    assert [len(part) for part in parts] == [3 * 44 + 2, 2 * 44]
    together = pa.concat_tables(parts).to_pylist()
    names = ["role", "index", "name", "rank", "start_ns", "duration_ns"]
    assert sorted(map(str, together)) == sorted(map(str, spans.select(names).to_pylist()))
    where = {
        row["index"]: number for number, part in enumerate(parts) for row in part.to_pylist() if row["role"] == "reader"
    }
    assert where == {"0-0": 0, "1-0": 0, "2-0": 0, "3-0": 1, "4-0": 1}
    assert found.names == {"startup": 5, "data_wait": 100, "compute": 100, "life": 6, "read": 5, "lost": 6}
    assert [row["index"] for row in found.named("lost").to_pylist()] == ["0-0", "1-0", "2-0", "3-0", "4-0", "0"]


def test_killed_ranks_and_readers_are_charged_as_when_the_run_is_read_whole(tmp_path: Path) -> None:
    trace = Trace()
    for rank in range(4):
        over = trace.rank(rank, [("data_wait", 5), ("compute", 30), ("sync", rank), ("data_wait", 9)], life=False)
        story = [("startup", 3), *[("data_wait", 7), ("compute", 30), ("gap", 20)] * 9]
        trace.rank(rank, story, begin=over + 100 * rank, attempt=1)
        writer = trace.recorder.register("reader", f"{rank}-0", 0)
        for attempt, begin in ((0, 0), (1, over + 100 * rank)):
            trace.recorder.add(writer, "read", begin, begin + 4, 0, rank, 0, 0, attempt)
        trace.recorder.add(writer, "lost", over, over + 60, 1)
    trace.recorder.add(trace.recorder.register("barrier", "0", 0), "lost", 200, 600, 1)
    spans = trace.spans
    run = RunDirectory.create(tmp_path / "run")
    for number in range(4):
        run.write_spans(spans.slice(number * 40, 40), "part")
    cut = run.slices(50)
    assert len([*cut.parts()]) == 2
    charged, whole = attribute(cut), attribute(spans)
    assert charged.lost["outage"].any()
    same(fields_of(charged), fields_of(whole))


@pytest.mark.parametrize("apart", [1, 1 << 20])
def test_steps_have_the_numbers_of_their_rounds_in_every_slice(apart: int, tmp_path: Path) -> None:
    trace = Trace()
    for rank in range(4):
        for epoch in range(3):
            writer = trace.recorder.register("rank", str(rank), 0)
            for step in range(2 + rank):
                begin, place = 1000 * epoch + 100 * step, (rank, epoch * apart, step * apart, epoch % 2)
                trace.recorder.add(writer, "data_wait", begin, begin + 10, 0, *place)
                trace.recorder.add(writer, "compute", begin + 10, begin + 90, 0, *place)
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(trace.spans, "part")
    timed = Timelines(run.slices(20))
    rounds = Rounds(timed)
    parts = [*timed.by_slice()]
    assert len(parts) > 1
    numbers = np.concatenate([rounds.of(part) for part in parts])
    steps = timed.steps
    assert steps.number == len(numbers) == 3 * (2 + 3 + 4 + 5)
    assert 0 <= numbers.min() <= numbers.max() < rounds.number <= 8 * steps.number
    by_number = dict(zip(numbers.tolist(), zip(steps.attempt, steps.epoch, steps.step, strict=True), strict=True))
    assert len(by_number) == len(set(by_number.values())) == 3 * 5
    assert [by_number[number] for number in numbers.tolist()] == [
        *zip(steps.attempt, steps.epoch, steps.step, strict=True)
    ]


def test_a_damaged_file_is_named_and_the_others_count(tmp_path: Path) -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 5), ("compute", 30)] * 50)
    run = RunDirectory.create(tmp_path / "run")
    spans = trace.spans
    for number in range(3):
        run.write_spans(spans.slice(number * 30, 30), "part")
    path = run.span_paths()[1]
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)  # pages, not the end of the file
    path.write_bytes(content)
    found = run.slices(10)
    assert run.lost_files == (path.name,)
    assert len(found) == sum(len(part) for part in found.parts()) == 60


def test_a_short_run_is_one_slice(tmp_path: Path) -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 5), ("compute", 30)])
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(trace.spans, "part")
    assert [len(part) for part in run.slices(SLICE_ROWS).parts()] == [3]
    assert [len(part) for part in RunDirectory.create(tmp_path / "empty").slices(0).parts()] == [0]


def test_without_space_to_lay_spans_aside_it_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 5), ("compute", 30)] * 50)
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(trace.spans, "part")
    monkeypatch.setattr("tempfile.tempdir", "/proc/nobody")
    with pytest.raises(StorageError, match=r"^cannot lay spans aside in /proc/nobody: .*; make space there, or name"):
        run.slices(10)


def test_keys_that_are_all_far_from_nothing_are_ordered_without_sorting_them() -> None:
    rank, step = np.repeat([9000, 9001], 50), np.tile(np.arange(50)[::-1] - 70000, 2)
    order = dense_order(rank, step)
    assert order is not None
    assert order.tolist() == order_by(rank, step).tolist()
    assert dense_order(rank * 9000, step) is None
    assert dense_order(rank[:0], step[:0]) is not None


def test_columns_whose_numbers_are_all_alike_are_laid_aside_as_one_number() -> None:
    file = Unnamed()
    columns = [np.arange(9), np.full(9, -(2**62)), np.zeros(9, np.int64), np.arange(18)[::-2]]
    kept = file.keep(columns)
    assert file.end == 2 * 9 * 8
    for _ in range(2):
        assert [column.tolist() for column in kept.columns()] == [column.tolist() for column in columns]
    assert [column.tolist() for column in file.keep([np.ones(4, np.int64)]).columns()] == [[1] * 4]
    assert [len(column) for column in file.keep([np.zeros(0, np.int64)] * 2).columns()] == [0, 0]
    assert file.keep([]).columns() == []


keys = st.integers(1, 3).flatmap(
    lambda number: st.lists(
        st.tuples(*[st.one_of(st.integers(0, 3), st.integers(-(2**62), 2**62))] * number), max_size=30
    )
)


@given(keys)
def test_packed_keys_sort_as_the_keys_do(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.zeros(0, np.int64)]
    assert order_by(*columns).tolist() == np.lexsort(columns[::-1]).tolist()
