"""What is laid aside in few bytes comes back as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import Trace
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rayio.place import batch_ids
from rayio.trace.narrow import Narrow, Narrowed
from rayio.trace.span import COLUMNS
from rayio.trace.span_files import ordered

FARTHEST = (-(2**63), 2**63 - 1)
EDGES = [0, -1, 1, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, -(2**31), 2**31 - 1, *FARTHEST]


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([7], 0), ([-3, -3, -3], 0), ([FARTHEST[0]] * 2, 0), ([-1, 254], 1), ([-1, 255], 2), ([5, 5 + 2**16 - 1], 2),
        ([5, 5 + 2**16], 4), ([-(2**31), 2**31 - 1], 4), ([0, 2**32], 8), ([*FARTHEST], 8), ([-2, FARTHEST[1]], 8),
    ],
)  # fmt: skip
def test_numbers_take_the_bytes_that_their_differences_need(values: list[int], width: int) -> None:
    assert Narrow.of(min(values), max(values)).width == width
    assert back(np.array(values, np.int64)).tolist() == values


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@given(numbers=st.lists(st.one_of(st.sampled_from(EDGES), st.integers(*FARTHEST), st.integers(-9, 9)), min_size=1))
def test_any_numbers_come_back(kind: type[np.signedinteger[Any]], numbers: list[int]) -> None:
    limits = np.iinfo(kind)
    values = np.array([number for number in numbers if limits.min <= number <= limits.max] or [limits.min], kind)
    assert back(values).tolist() == values.tolist()


def back(values: NDArray[np.signedinteger[Any]]) -> NDArray[np.signedinteger[Any]]:
    how, found = Narrow.of(int(values.min()), int(values.max())), np.full_like(values, 77)
    how.widened(how.narrowed(values, np.full(8 * len(values), 99, np.uint8)), found)
    return found


def spans(rank: list[int], **columns: list[int] | list[str]) -> pa.Table:
    """Spans of some ranks: of a reader's reads but for what is said."""
    texts = {"name": "read", "role": "reader", "status": "ok"}
    found = dict[str, Any]()
    for name, kind in COLUMNS.items():
        said = columns.get(name, [texts.get(name, "0") if kind == "text" else 0] * len(rank))
        values = pa.array(rank if name == "rank" else said, pa.string() if kind == "text" else kind)
        found[name] = values.dictionary_encode() if kind == "text" else values
    return pa.table(found)


def laid_aside(*tables: pa.Table, slice_of: list[int], rows: int = 100) -> Narrowed:
    aside = Narrowed([*COLUMNS], max(slice_of, default=0) + 1, ("write",))
    for table in tables:
        aside.keep(table, np.array(slice_of, np.uint16), rows)
    return aside


def plainly(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: row[name] for name in COLUMNS} for row in table.to_pylist()]


rows_of_spans = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(("read", "write", "compute")), st.sampled_from(("rank", "reader")),
        st.one_of(st.sampled_from(EDGES), st.integers(*FARTHEST)), st.integers(-1, 4), st.integers(-1, 9),
        st.sampled_from(("own", "none", "other", "odd")),
    ),
    max_size=30,
)  # fmt: skip


@given(st.lists(rows_of_spans, max_size=3), st.integers(1, 12))
def test_every_slice_has_its_spans_as_they_came(files: list[list[tuple[Any, ...]]], rows: int) -> None:
    tables = []
    for file in files:
        rank, name, role, start, epoch, step, batch = ([row[at] for row in file] for at in range(7))
        place = [np.array(column, np.int32) for column in (rank, epoch, step)]
        own = batch_ids(*place).tolist()
        links = [
            {"own": one, "none": 0, "other": 1 << 42, "odd": 5}[kind] for one, kind in zip(own, batch, strict=True)
        ]
        is_own = [kind == "own" for kind in batch]
        batches = own if not file or any(is_own) else links
        tables.append(
            spans(
                rank, name=name, role=role, start_ns=start, epoch=epoch, step=step, batch=batches, link=links,
                bytes=[one % 7 for one in start],
            )
        )  # fmt: skip
    aside = laid_aside(*tables, slice_of=[0, 1, 1, 2], rows=rows)
    came = [row for table in tables for row in plainly(table)]
    for number, ranks in enumerate(((0,), (1, 2), (3,))):
        mine = [row for row in came if row["rank"] in ranks]
        assert plainly(aside.table(number, ())) == mine
        assert aside.table(number, ("batch", "name")).to_pylist() == [
            {"batch": row["batch"], "name": row["name"]} for row in mine
        ]
        for column in COLUMNS:  # what lies between two columns is in nobody's way
            found = aside.table(number, ("start_ns", column))
            assert found[column].to_pylist() == [row[column] for row in mine]
            assert found["start_ns"].to_pylist() == [row["start_ns"] for row in mine]
        of_ranks = [row for row in plainly(aside.table(number, (), of_ranks=True)) if row["role"] == "rank"]
        assert of_ranks == [row for row in mine if row["role"] == "rank"]
    assert plainly(aside.table(3, ())) == [row for row in came if row["name"] == "write"]


def test_what_is_alike_takes_no_bytes_and_a_batch_of_its_own_next_to_none() -> None:
    number = 90
    place = [np.full(number, 3, np.int32), np.zeros(number, np.int32), np.arange(number, dtype=np.int32)]
    own = batch_ids(*place).tolist()
    links = [one if at % 3 else 0 for at, one in enumerate(own)]
    table = spans(
        [3] * number, step=[*range(number)], batch=own, link=links, start_ns=[10**18 + 300 * at for at in range(number)]
    )
    aside = laid_aside(table, slice_of=[0, 0, 0, 0])
    assert aside.size == number * (1 + 1 + 2)  # step, whether it links to its own, start
    assert plainly(aside.table(0, ())) == plainly(table)
    other = spans([3] * 2, step=[4, 5], batch=own[4:6], link=[0, own[9]])
    aside = laid_aside(other, slice_of=[0, 0, 0, 0])
    assert aside.size == 2 * (1 + 8)
    assert plainly(aside.table(0, ())) == plainly(other)


def test_spans_of_ranks_alone_are_less_to_read() -> None:
    trace = Trace()
    trace.rank(0, [("data_wait", 5), ("compute", 30)])
    trace.recorder.add(trace.recorder.register("reader", "0-0", 0), "read", 4, 10, 0, 0, 0, 0)
    aside = laid_aside(ordered(trace.spans, ["role"]), slice_of=[0])
    assert {*aside.table(0, ("role",))["role"].to_pylist()} == {"rank", "reader"}
    assert {*aside.table(0, ("role",), of_ranks=True)["role"].to_pylist()} == {"rank"}


def test_a_slice_without_spans_has_none_with_all_columns() -> None:
    aside = laid_aside(spans([]), spans([2]), slice_of=[0, 1, 2])
    assert [len(aside.table(number, ())) for number in range(4)] == [0, 0, 1, 0]
    assert aside.table(0, ()).column_names == [*COLUMNS]
    assert aside.table(1, ("link",), of_ranks=True).to_pylist() == []
