from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.place import MAX_EPOCHS, MAX_RANKS, MAX_STEPS, batch_id, batch_ids
from rayio.trace.arrow import numbers, taken
from rayio.trace.order import distinct, is_among
from rayio.trace.progress import Progress
from rayio.trace.recorder import Recorder
from rayio.trace.span import ADDED, COLUMNS, ROLES, SPANS, schema


def test_every_field_of_a_span_reaches_its_column() -> None:
    recorder = Recorder()
    recorder.register("rank", "0", 0)
    reader = recorder.register("reader", "3-1", 2)
    recorder.add(reader, "read", 1_000, 1_250, 1, 3, 2, 17, 4, 4096, 5, 6, 7, "error")
    table = recorder.drain()
    assert table is not None
    assert table.schema.equals(schema(), check_metadata=True)
    assert table.to_pylist() == [
        {
            "name": "read",
            "role": "reader",
            "index": "3-1",
            "node": 2,
            "lane": 1,
            "rank": 3,
            "epoch": 2,
            "step": 17,
            "attempt": 4,
            "batch": (3 << 42) | (2 << 30) | 17,
            "start_ns": 1_000,
            "duration_ns": 250,
            "bytes": 4096,
            "requests": 5,
            "parent": 6,
            "link": 7,
            "status": "error",
            "pid": os.getpid(),
            "thread": 0,
            "file": "",
            "offset": -1,
            "attributes": "",
        }
    ]


def test_a_span_without_a_place_in_the_run_has_no_batch() -> None:
    recorder = Recorder()
    recorder.add(recorder.register("queue", "0", 0), "memory_bound", 5, 9)
    table = recorder.drain()
    assert table is not None
    row = table.to_pylist()[0]
    assert [row[c] for c in ("lane", "rank", "epoch", "step", "attempt", "batch", "bytes", "requests", "status")] == [
        0, -1, -1, -1, 0, -1, 0, 0, "ok",
    ]  # fmt: skip


def test_a_drained_span_is_never_given_again_and_the_count_goes_on() -> None:
    recorder = Recorder()
    writer = recorder.register("rank", "0", 0)
    assert recorder.drain() is None
    recorder.add(writer, "compute", 0, 1)
    recorder.add(writer, "compute", 1, 2)
    first = recorder.drain()
    recorder.add(writer, "compute", 2, 3)
    second = recorder.drain()
    assert first is not None
    assert second is not None
    assert first["start_ns"].to_pylist() == [0, 1]
    assert second["start_ns"].to_pylist() == [2]
    assert recorder.drain() is None
    assert recorder.recorded == 3


def test_spans_keep_their_order_and_their_roles_across_chunks() -> None:
    recorder = Recorder(chunk_rows=3)
    for number in range(10):  # roles register between spans, as actors that start late do
        recorder.add(recorder.register("rank", str(number), number % 2), "compute", number, number + 1)
    table = recorder.drain()
    assert table is not None
    assert table["start_ns"].to_pylist() == list(range(10))
    assert table["index"].to_pylist() == [str(number) for number in range(10)]
    assert table["node"].to_pylist() == [0, 1] * 5
    assert table["start_ns"].num_chunks == 4
    assert recorder.recorded == 10


def test_a_role_that_registers_again_keeps_its_number() -> None:
    recorder = Recorder()
    first, other = recorder.register("rank", "0", 0), recorder.register("rank", "1", 0)
    assert (recorder.register("rank", "0", 0), recorder.register("rank", "1", 0)) == (first, other)
    assert first != other


def test_names_outside_the_table_are_kept_as_they_are() -> None:
    recorder = Recorder()
    writer = recorder.register("loader", "0", 0)
    recorder.add(writer, "GET /bucket", 0, 1, status="throttled")
    table = recorder.drain()
    assert table is not None
    assert (table["name"].to_pylist(), table["role"].to_pylist()) == (["GET /bucket"], ["loader"])
    assert table["status"].to_pylist() == ["throttled"]


def test_nothing_is_lost_or_doubled_when_threads_add_while_another_drains() -> None:
    recorder = Recorder(chunk_rows=64)
    threads, each = 4, 3_000

    def add(thread: int) -> None:
        writer = recorder.register("reader", str(thread), 0)
        for number in range(each):
            recorder.add(writer, "read", thread * each + number, thread * each + number)

    running = [Thread(target=add, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    seen: list[int] = []
    while any(thread.is_alive() for thread in running):
        if (table := recorder.drain()) is not None:
            seen += table["start_ns"].to_pylist()
    if (table := recorder.drain()) is not None:
        seen += table["start_ns"].to_pylist()
    assert sorted(seen) == list(range(threads * each))
    assert recorder.recorded == threads * each


def test_a_span_added_while_others_are_converted_comes_with_the_next_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    writer = recorder.register("rank", "0", 0)
    convert = recorder._table

    def slowly(number: int, columns: dict[str, Any]) -> pa.Table:
        recorder.add(writer, "compute", 2, 3)
        return convert(number, columns)

    monkeypatch.setattr(recorder, "_table", slowly)
    recorder.add(writer, "compute", 1, 2)
    first = recorder.drain()
    monkeypatch.undo()
    second = recorder.drain()
    assert [t["start_ns"].to_pylist() for t in (first, second) if t is not None] == [[1], [2]]
    assert recorder.recorded == 2


@given(
    places=st.lists(
        st.tuples(st.integers(-1, MAX_RANKS - 1), st.integers(-1, MAX_EPOCHS - 1), st.integers(-1, MAX_STEPS - 1)),
        unique=True,
        min_size=1,
    )
)
def test_every_batch_has_a_number_of_its_own(places: list[tuple[int, int, int]]) -> None:
    rank, epoch, step = np.array(places, np.int32).T
    ids = batch_ids(rank, epoch, step).tolist()
    whole = [place for place in places if min(place) >= 0]
    assert [number for number in ids if number != -1] == [batch_id(*place) for place in whole]
    assert len({batch_id(*place) for place in whole}) == len(whole)
    assert all(0 <= batch_id(*place) < 1 << 62 for place in whole)


@pytest.mark.parametrize("name", SPANS)
def test_every_name_in_the_table_says_who_records_it(name: str) -> None:
    assert SPANS[name].lanes
    assert set(SPANS[name].lanes) <= set(ROLES)


def test_the_columns_are_those_of_schema_version_2() -> None:
    assert " ".join(COLUMNS) == (
        "name role index node lane rank epoch step attempt batch start_ns duration_ns bytes requests parent link status"
        " pid thread file offset attributes"
    )
    assert tuple(COLUMNS)[17:] == tuple(ADDED[2])


def test_progress_sums_what_ranks_did_whatever_names_a_table_may_have() -> None:
    recorder, progress = Recorder(), Progress()
    rank, queue = (recorder.adder(recorder.register(role, "0", 0)) for role in ("rank", "queue"))
    tables = []
    for step in range(3):
        rank("data_wait", 0, 10, (0, 0, step, 0), 0, 100)
        rank("compute", 10, 30, (0, 0, step, 0))
        rank("shard", 10, 17, (0, 0, step, 0), 1)  # beside what the rank does
        queue("compute", 0, 9, (0, 0, step, 0))  # no rank's
        rank(f"own {step}", 30, 31, (0, 0, step, 0))
        tables += [table for table in [recorder.drain()] if table is not None]
    progress.add(pa.concat_tables([tables[0], tables[1]]))  # dictionaries differ
    progress.add(tables[2])
    progress.add(tables[2].slice(0, 0))
    assert progress.snapshot() == {
        "steps": 3, "bytes": 300, "spans": 15,
        "time": {"data_wait": 30, "compute": 60, "own 0": 1, "own 1": 1, "own 2": 1},
    }  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
def test_a_step_that_is_done_again_after_a_failure_is_one_step(together: bool) -> None:
    recorder, progress, tables = Recorder(), Progress(), []
    rank = recorder.adder(recorder.register("rank", "0", 0))
    done = [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (0, 1, 1), (0, 2, 1), (1, 0, 1), (1, 1, 1)]
    for number in range(2):
        for epoch, step, attempt in done:
            rank("compute", 10, 30, (number, epoch, step, attempt))
            tables += [] if together else [recorder.drain()]
    for table in [recorder.drain()] if together else tables:
        assert table is not None
        progress.add(table)
    assert progress.steps == 2 * 5


def test_rows_taken_by_numpy_are_those_that_arrow_takes() -> None:
    recorder = Recorder(chunk_rows=4)
    reader, rank = recorder.register("reader", "0.0", 0), recorder.register("rank", "0", 0)
    for start in range(11):
        recorder.add((reader, rank)[start % 2], ("read", "compute")[start % 2], start, start + 5, rank=start % 3)
    table = recorder.drain()
    assert table is not None
    assert table["name"].num_chunks > 1
    for chosen in (np.array([7, 2, 2, 10]), np.arange(11)[::-1], np.zeros(0, np.int64)):
        assert taken(table, chosen).to_pylist() == table.take(numbers(chosen)).to_pylist()
    other = pa.table({"floats": [1.5, 2.5], "missing": pa.array([None, 3])})
    assert taken(other, np.array([1])).to_pylist() == [{"floats": 2.5, "missing": 3}]


#: A program that simulates, and prints the slow modules that this loaded.
SIMULATES = """
import sys, rayio
rayio.simulate("unet3d-small", ["train.steps=2", "train.epochs=1"], out=sys.argv[1])
print(sorted({"numpy.ma", "pandas", "pyarrow.compute"} & {*sys.modules}))
"""


def test_a_simulation_loads_no_slow_modules(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIMULATES, str(tmp_path / "run")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("wanted", [[], [5], [0, 3, 3, 9]])
def test_values_among_others_are_those_of_numpy(wanted: list[int]) -> None:
    values, them = np.array([3, 0, 8, 3, 9, 12]), np.array(wanted, np.int64)
    assert is_among(values, them).tolist() == np.isin(values, them).tolist()
    assert distinct(them).tolist() == np.unique(them).tolist()
