from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rayio.trace.ids import span_id, span_ids, trace_id, trace_ids


def test_another_process_computes_the_same_ids() -> None:
    program = "from rayio.trace.ids import *; print(trace_id('r1', 'step', 0, 7), span_id('r1', 'rank-3', 12))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(trace_id("r1", "step", 0, 7)), str(span_id("r1", "rank-3", 12))]


def test_every_part_of_an_address_changes_the_trace() -> None:
    ids = {
        trace_id("r1", "step", 0, 7), trace_id("r2", "step", 0, 7), trace_id("r1", "batch", 0, 7),
        trace_id("r1", "step", 7, 0), trace_id("r1", "step", 0, 71), trace_id("r1", "step", "0", 7),
        trace_id("r1", "step", 0), trace_id("r1step", "", 0, 7), trace_id("r1", "step0", 7),
    }  # fmt: skip
    assert len(ids) == 9
    assert all(0 < number < 1 << 128 for number in ids)
    assert max(ids) >= 1 << 120  # the upper half is used too


def test_span_ids_of_runs_and_actors_and_sequences_differ() -> None:
    ids = {span_id(run, actor, n) for run in ("a", "b") for actor in ("rank-0", "rank-1") for n in range(1000)}
    assert len(ids) == 4000
    assert all(0 < number < 1 << 64 for number in ids)


@given(sequences=st.lists(st.integers(0, (1 << 63) - 1), min_size=1), actor=st.text())
def test_many_ids_at_once_are_the_single_ones(sequences: list[int], actor: str) -> None:
    assert span_ids("r", actor, np.array(sequences)).tolist() == [span_id("r", actor, n) for n in sequences]


@given(st.text(), st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)), max_size=20))
def test_many_traces_at_once_are_the_single_ones(run: str, places: list[tuple[int, int]]) -> None:
    columns = np.array(places, np.int64).reshape(len(places), 2).T
    found = [int(high) << 64 | int(low) for high, low in trace_ids(run, "step", *columns)]
    assert found == [trace_id(run, "step", *place) for place in places]
