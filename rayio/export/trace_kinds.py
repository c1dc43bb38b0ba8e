"""Kinds of traces: of a step, a batch, a checkpoint, a role's life, or another library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.export.select import step_keys
from rayio.export.spans import Ints, Unsigned
from rayio.trace.arrow import plain, rows
from rayio.trace.span import FOREIGN_LANE

if TYPE_CHECKING:
    import pyarrow as pa

#: Spans of ranks that make a step; other spans of a rank with a batch are its production.
_PHASES = (
    "data_wait", "device_copy", "bubble", "compute", "sync", "drain_wait", "checkpoint", "evaluate", "overshoot",
    "eval_data_wait", "eval_compute", "snapshot", "checkpoint_wait", "restore", "broadcast", "gap",
)  # fmt: skip
#: Spans in which a rank waits for a batch.
WAITS = ("data_wait", "eval_data_wait")
#: Spans of ranks that make a step of an evaluation, which is never selected.
EVALUATED = ("eval_data_wait", "eval_compute")
#: Spans inside a read or a write.
WITHIN = ("sample", "io.open", "io.read", "io.write", "io.fsync")

LIFE, STEP, BATCH, CHECKPOINT, FOREIGN = range(5)


def of_steps(table: pa.Table, steps: Ints | None) -> pa.Table:
    """Return the spans of these steps, of the production of their batches, and without a step."""
    if steps is None:
        return table
    keys = step_keys(table)
    kept = (keys < 0) | np.isin(keys, steps)
    waits = kept & is_named(table, WAITS)
    taken = np.unique(plain(table["link"])[waits])
    return rows(table, kept | np.isin(plain(table["batch"]), taken) & (trace_kinds(table) == BATCH))


def batches_made(table: pa.Table) -> bool:
    """Return True if the production of any batch was recorded, so that spans can link to it."""
    return bool((trace_kinds(table) == BATCH).any())


def trace_keys(table: pa.Table) -> Unsigned:
    """Return a number for each span, equal for spans of one trace; 0 for lives of roles, 1 for foreign spans."""
    kinds, step, batch = trace_kinds(table), step_keys(table), plain(table["batch"])
    number = np.where(kinds == BATCH, batch, np.where((kinds == STEP) | (kinds == CHECKPOINT), step, 0))
    keys: Unsigned = number.astype(np.uint64) | kinds.astype(np.uint64) << np.uint64(62)
    return np.where(kinds == FOREIGN, np.uint64(1), keys)


def codes_of(table: pa.Table, column: str) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct texts of a column, and each row's index in them."""
    values = table[column].unify_dictionaries().combine_chunks()
    chunk = values.chunk(0) if hasattr(values, "chunk") and values.num_chunks else values
    if not len(table):
        return [], np.zeros(0, np.int32)
    return chunk.dictionary.to_pylist(), plain(chunk.indices).astype(np.int32)


def is_named(table: pa.Table, names: Iterable[str]) -> NDArray[np.bool_]:
    """Return a mask of the spans with one of these names."""
    mask: NDArray[np.bool_] = np.isin(codes_of(table, "name")[1], _codes(table, "name", names))
    return mask


def _codes(table: pa.Table, column: str, texts: Iterable[str]) -> list[int]:
    wanted = {*texts}
    return [code for code, text in enumerate(codes_of(table, column)[0]) if text in wanted]


def trace_kinds(table: pa.Table) -> NDArray[np.int8]:
    """Return the kind of each span's trace."""
    role, name = codes_of(table, "role")[1], codes_of(table, "name")[1]
    is_rank = np.isin(role, _codes(table, "role", ["rank"]))
    is_phase = is_rank & np.isin(name, _codes(table, "name", _PHASES))
    is_writer = np.isin(role, _codes(table, "role", ["checkpoint_writer"]))
    kinds = np.where(is_phase, STEP, np.where(is_writer, CHECKPOINT, BATCH))
    kinds[plain(table["batch"]) < 0] = LIFE
    kinds[plain(table["lane"]) >= FOREIGN_LANE] = FOREIGN
    return kinds.astype(np.int8)
