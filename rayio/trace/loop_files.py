"""Files of a watched training loop: rows of fixed size, appended while it trains, so that a killed rank loses little.

In the folder ``watch`` of a run directory, each rank has a header (``rank-00000.json``) and a file of its steps
(``rank-00000.steps``); each worker of its DataLoader has a file of the batches that it loaded
(``rank-00000-worker-000.loads``). Times are those of ``perf_counter_ns`` on the rank's host. A row that a killed
process wrote in part is left out. Writing needs only the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

from rayio.errors import StorageError
from rayio.files import NotAFileError, read_regular
from rayio.place import MAX_EPOCHS, MAX_STEPS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The folder of these files in a run directory, and the engine that ``run.json`` names.
FOLDER, ENGINE = "watch", "watch"

#: The largest time (ns): half a century.
MOST_NS = 1.6e18

#: Kinds of rows in a file of steps: a step (requested, arrived, done), pauses of the loop (begin, end, 0), and the end
#: of the rank (time, 1 if the loop failed, 0).
STEP, CHECKPOINT, EVALUATE, END = range(4)

_STEP = ("kind", "epoch", "step", "unused"), ("first", "second", "third")
#: A loaded batch: its number among those of its worker in an epoch, samples, the worker's process; its begin and end;
#: time within ``rayio.reading()`` (-1: never entered), processor time (ns), bytes and requests of ``read`` calls (-1:
#: unknown).
_LOAD = ("epoch", "number", "samples", "pid"), ("begin", "end", "reading", "cpu", "bytes", "requests")

pack_step = Struct("<iiiiqqq").pack
pack_load = Struct("<iiiiqqqqqq").pack


def header_path(folder: str | Path, rank: int) -> Path:
    """Return the path of a rank's header."""
    return Path(folder, f"rank-{rank:05d}.json")


def steps_path(folder: str | Path, rank: int) -> Path:
    """Return the path of a rank's steps."""
    return Path(folder, f"rank-{rank:05d}.steps")


def loads_path(folder: str | Path, rank: int, worker: int) -> Path:
    """Return the path of the batches that a worker of a rank loaded."""
    return Path(folder, f"rank-{rank:05d}-worker-{worker:03d}.loads")


def append(path: str | Path) -> int:
    """Return the descriptor of a file to which rows are appended.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def read_steps(path: Path) -> NDArray[np.void]:
    """Return the rows of a file of steps, as a structured array.

    Raises:
        StorageError: the file cannot be read, or has a row that no rank writes.
    """
    rows = _rows(path, *_STEP)
    strange = (rows["kind"] < STEP) | (rows["kind"] > END) | (rows["step"] < 0) | (rows["step"] >= MAX_STEPS)
    strange |= _are_outside(rows, "first", "second", "third")
    is_step = rows["kind"] == STEP
    strange |= is_step & ((rows["second"] < rows["first"]) | (rows["third"] < rows["second"]))
    if strange.any():
        raise StorageError(f"{path}: row {int(strange.argmax())} is no row of a step: the file is damaged; remove it")
    return rows


def read_loads(path: Path) -> NDArray[np.void]:
    """Return the rows of a file of loaded batches, as a structured array.

    Raises:
        StorageError: the file cannot be read, or has a row that no worker writes.
    """
    rows = _rows(path, *_LOAD)
    strange = (rows["number"] < 0) | (rows["end"] < rows["begin"]) | (rows["samples"] < 0) | (rows["pid"] < 0)
    strange |= (rows["number"] >= MAX_STEPS) | _are_outside(rows, "begin", "end", "bytes")
    if strange.any():
        raise StorageError(f"{path}: row {int(strange.argmax())} is no row of a batch: the file is damaged; remove it")
    return rows


def _are_outside(rows: NDArray[np.void], *times: str) -> NDArray[np.bool_]:
    """Return which rows have an epoch or a time that no run has."""
    import numpy as np

    outside: NDArray[np.bool_] = (rows["epoch"] < 0) | (rows["epoch"] >= MAX_EPOCHS)
    for name in times:
        outside |= np.abs(rows[name].astype(np.float64)) > MOST_NS
    return outside


def _rows(path: Path, whole: tuple[str, ...], long: tuple[str, ...]) -> NDArray[Any]:
    import numpy as np

    dtype = np.dtype([*((name, "<i4") for name in whole), *((name, "<i8") for name in long)])
    try:
        content = read_regular(path)
    except NotAFileError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    return np.frombuffer(content[: len(content) // dtype.itemsize * dtype.itemsize], dtype)
