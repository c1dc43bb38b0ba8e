"""Spans that are laid aside by slices come back equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rayio.place import batch_ids
from rayio.trace.slice_file import SliceFile
from rayio.trace.span import COLUMNS

FARTHEST = (-(2**63), 2**63 - 1)
EDGES = [0, -1, 1, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, -(2**31), 2**31 - 1, *FARTHEST]


def spans(rank: list[int], **columns: list[int] | list[str]) -> pa.Table:
    """Spans of some ranks: of a reader's reads but for what is said."""
    texts = {"name": "read", "role": "reader", "status": "ok"}
    found = dict[str, Any]()
    for name, kind in COLUMNS.items():
        said = columns.get(name, [texts.get(name, "0") if kind == "text" else 0] * len(rank))
        values = pa.array(rank if name == "rank" else said, pa.string() if kind == "text" else kind)
        found[name] = values.dictionary_encode() if kind == "text" else values
    return pa.table(found)


def laid_aside(*tables: pa.Table, slice_of: list[int]) -> SliceFile:
    aside = SliceFile([*COLUMNS], max(slice_of, default=0) + 1, ("write",))
    for table in tables:
        aside.keep(table, np.array(slice_of, np.uint16))
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


@given(st.lists(rows_of_spans, max_size=3))
def test_every_slice_has_its_spans_as_they_came(files: list[list[tuple[Any, ...]]]) -> None:
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
    aside = laid_aside(*tables, slice_of=[0, 1, 1, 2])
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
    assert plainly(aside.table(3, ())) == [row for row in came if row["name"] == "write"]


def test_a_slice_without_spans_has_none_with_all_columns() -> None:
    aside = laid_aside(spans([]), spans([2]), slice_of=[0, 1, 2])
    assert [len(aside.table(number, ())) for number in range(4)] == [0, 0, 1, 0]
    assert aside.table(0, ()).column_names == [*COLUMNS]
    assert aside.table(1, ("link",)).to_pylist() == []
