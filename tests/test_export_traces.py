"""Traces: one per step, batch, checkpoint and role, with parents and links that exist; what a selection takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from exports import foreign, training
from handmade import Trace
from hypothesis import given
from hypothesis import strategies as st

from rayio.errors import ExportError
from rayio.export.select import chosen, parse, step_keys
from rayio.export.spans import KINDS, Spans, group_numbers
from rayio.export.trace_kinds import of_steps
from rayio.export.traces import epoch_ns, run_key, spans_of
from rayio.place import batch_id
from rayio.trace.ids import trace_id
from rayio.trace.span import schema


def rows(spans: Spans) -> list[dict[str, Any]]:
    """Give spans as dicts."""
    return [
        {
            "name": spans.name.texts[spans.name.codes[row]], "kind": int(spans.kind[row]),
            "trace": int(spans.trace[row, 0]) << 64 | int(spans.trace[row, 1]), "span": int(spans.span[row]),
            "parent": int(spans.parent[row]), "start": int(spans.start[row]), "end": int(spans.end[row]),
            "link_trace": int(spans.link_trace[row, 0]) << 64 | int(spans.link_trace[row, 1]),
            "link": int(spans.link[row]), "resource": spans.resources[spans.resource[row]],
            "made": bool(spans.is_added[row]),
            **{name: int(values[row]) for name, values in spans.numbers.items()},
        }
        for row in range(len(spans))
    ]  # fmt: skip


def made(table: pa.Table) -> list[dict[str, Any]]:
    return rows(spans_of(table, "r"))


def test_every_step_batch_checkpoint_and_role_has_a_trace_of_its_own() -> None:
    table = training()
    of_trace = Counter(row["trace"] for row in made(table))
    steps = {trace_id("r", "step", epoch, step) for epoch in range(2) for step in range(12)}
    batches = {
        trace_id("r", "batch", rank, epoch, step) for rank in range(2) for epoch in range(2) for step in range(12)
    }
    saved = {(row["epoch"], row["step"]) for row in table.to_pylist() if row["role"] == "checkpoint_writer"}
    checkpoints = {trace_id("r", "checkpoint", *place) for place in saved if place[0] >= 0}
    lives = {trace_id("r", "role", row["role"], row["index"]) for row in table.to_pylist() if row["name"] == "life"}
    assert len(checkpoints) == 8
    assert {*of_trace} == steps | batches | checkpoints | lives
    assert max(of_trace.values()) < 20


@pytest.mark.parametrize(
    "overrides", [{}, {"trace__level": "io"}, {"loader__num_workers": 0, "trace__level": "sample"}]
)
def test_a_parent_is_in_the_trace_and_around_its_children_and_a_root_in_each(overrides: dict[str, Any]) -> None:
    spans = made(training(**overrides))
    by_id = {row["span"]: row for row in spans}
    assert len(by_id) == len(spans)
    for row in spans:
        if row["parent"]:
            parent = by_id[row["parent"]]
            assert parent["trace"] == row["trace"]
            assert parent["start"] <= row["start"] <= row["end"] <= parent["end"], (row, parent)
    roots = Counter(row["trace"] for row in spans if not row["parent"])
    assert {*roots.values()} == {1}
    assert {*roots} == {row["trace"] for row in spans}


def test_requests_are_under_the_read_that_made_them() -> None:
    spans = made(training(trace__level="io"))
    names = {row["span"]: row["name"] for row in spans}
    above = {(row["name"], names[row["parent"]]) for row in spans if row["name"].startswith("io.")}
    assert ("io.read", "read") in above
    assert {parent for _, parent in above} == {"read", "write"}


def test_a_wait_is_linked_to_the_production_of_the_batch_that_came() -> None:
    table = training(loader__in_order=False, loader__num_workers=3)
    spans = made(table)
    waits = [row for row in spans if row["name"].startswith("receive")]
    by_id = {row["span"]: row for row in spans}
    taken = {(row["start_ns"], row["rank"]): row["link"] for row in table.to_pylist() if row["name"] == "data_wait"}
    assert len(waits) == 48
    for wait in waits:
        root = by_id[wait["link"]]
        place = (root["rayio.rank"], root["rayio.epoch"], root["rayio.step"])
        assert batch_id(*place) == taken[wait["start"], wait["rayio.rank"]]
        assert wait["link_trace"] == root["trace"] == trace_id("r", "batch", *place)
        assert (wait["kind"], root["kind"]) == (KINDS["consumer"], KINDS["producer"])
        assert wait["name"].removeprefix("receive") == root["name"].removeprefix("send")


def test_the_checkpoint_that_blocks_a_rank_is_linked_to_what_its_writer_did() -> None:
    spans = made(training())
    by_id = {row["span"]: row for row in spans}
    blocked = [row for row in spans if row["name"] == "checkpoint" and not row["made"]]
    assert len(blocked) == 8
    for row in blocked:
        assert by_id[row["link"]]["name"] == "checkpoint"
        assert by_id[row["link"]]["resource"].role == "checkpoint_writer"


def test_ids_do_not_depend_on_the_order_or_on_what_else_is_exported() -> None:
    table = training()
    ids = {(row["name"], row["start"], row["span"]) for row in made(table)}
    backwards = table.take(np.arange(len(table))[::-1])
    assert {(row["name"], row["start"], row["span"]) for row in made(backwards)} == ids
    some = of_steps(table, np.array([1, 5]))
    assert {(row["name"], row["start"], row["span"]) for row in made(some)} < ids


def test_spans_that_say_the_same_have_ids_of_their_own() -> None:
    trace = Trace()
    for _ in range(3):
        trace.add("reader", "read", 5, 9, rank=0, epoch=0, step=0)
    spans = [row for row in made(trace.spans) if not row["made"]]
    assert len({row["span"] for row in spans}) == 3


def test_without_readers_there_is_nothing_to_link_to() -> None:
    spans = made(training(trace__level="step"))
    assert not any(row["link"] for row in spans if row["name"].startswith("receive"))
    assert any(row["name"] == "step" for row in spans)


def test_spans_of_other_libraries_keep_their_ids() -> None:
    table = foreign()
    spans = spans_of(pa.concat_tables([training(), table]), "r")
    assert len(spans.foreign_spans) == 3
    for row in np.flatnonzero(spans.foreign >= 0):
        told = spans.foreign_spans[spans.foreign[row]]
        assert f"{spans.trace[row, 0]:016x}{spans.trace[row, 1]:016x}" == told["trace"]
        assert f"{spans.span[row]:016x}" == told["span"]
        assert f"{spans.parent[row]:016x}" == told.get("parent", "0" * 16)


def test_no_spans_make_no_traces() -> None:
    assert len(spans_of(schema().empty_table(), "r")) == 0
    assert not len(spans_of(schema().empty_table(), "r").trace_sizes)


def test_spans_that_say_the_same_do_not_change_the_ids_of_others() -> None:
    table = training()
    alone = spans_of(table, "r")
    recorded = alone.span[~alone.is_added]
    twice = spans_of(pa.concat_tables([table, table.slice(7, 1), table.slice(7, 1)]), "r")
    ids = twice.span[~twice.is_added]
    assert ids[: len(table)].tolist() == recorded.tolist()
    assert len({*ids.tolist()}) == len(table) + 2


def test_runs_without_an_id_have_one_all_the_same() -> None:
    assert run_key({"run_id": "r"}) == "r"
    assert run_key({"engine": "dlio", "started": "x"}) == run_key({"started": "x", "engine": "dlio"}) != run_key({})


def test_the_virtual_clock_starts_when_the_simulation_did() -> None:
    assert epoch_ns({"engine": "virtual", "started": "1970-01-01T00:00:02+00:00"}) == 2_000_000_000
    assert epoch_ns({"engine": "local", "started": "1970-01-01T00:00:02+00:00"}) == 0
    assert epoch_ns({"engine": "virtual", "started": None}) == 0


@given(st.lists(st.tuples(*[st.integers(-(1 << 62), 1 << 62) | st.integers(0, 3)] * 4), min_size=1, max_size=20))
def test_combinations_are_equal_when_all_their_values_are(combinations: list[tuple[int, ...]]) -> None:
    numbers = group_numbers(*np.array(combinations, np.int64).T).tolist()
    for one, number in zip(combinations, numbers, strict=True):
        assert [other == one for other in combinations] == [other == number for other in numbers]


def steps(lengths: list[int]) -> pa.Table:
    """Give a rank's steps of these lengths."""
    trace = Trace()
    trace.rank(0, [part for length in lengths for part in (("data_wait", 1), ("compute", length - 1))])
    return trace.spans


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("first", [0]),
        ("last", [5]),
        ("every:2", [0, 2, 4]),
        ("slowest:2", [1, 3]),
        ("slowest:1,first", [0, 3]),
        ("slowest:99", [0, 1, 2, 3, 4, 5]),
        (" first , last ", [0, 5]),
    ],
)
def test_a_selection_takes_the_steps_it_names(words: str, taken: list[int]) -> None:
    kept = chosen(steps([10, 30, 10, 40, 20, 10]), parse(words))
    assert kept is not None
    assert kept.tolist() == taken


def test_all_takes_everything() -> None:
    table = training()
    assert chosen(table, parse("first,all")) is None
    assert of_steps(table, None) is table


def test_the_chosen_steps_bring_the_batches_that_they_took_and_what_is_of_no_step() -> None:
    table = training(loader__in_order=False, loader__num_workers=3)
    some = of_steps(table, np.array([2]))
    waits = [row for row in some.to_pylist() if row["name"] == "data_wait"]
    assert {(row["epoch"], row["step"]) for row in waits} == {(0, 2)}
    reads = {row["batch"] for row in some.to_pylist() if row["name"] == "read"}
    assert {row["link"] for row in waits} <= reads
    placeless = int((step_keys(table) < 0).sum())
    assert int((step_keys(some) < 0).sum()) == placeless > 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("slowst:3", "slowest"), ("nothing", "all"), ("slowest", "slowest:20"), ("every:0", "every:20"),
        ("first:3", "first alone"), ("", "first"), ("every:x", "every:20"), ("slowest:-1", "slowest:20"),
    ],
)  # fmt: skip
def test_a_selection_that_cannot_be_is_one_line(text: str, word: str) -> None:
    with pytest.raises(ExportError, match=word):
        parse(text)
