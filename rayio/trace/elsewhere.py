"""What is where a run directory was to be, and where runs are instead."""

from __future__ import annotations

import difflib
from contextlib import suppress
from pathlib import Path

from rayio.storage.stores.opening import Store

#: Folders in one that are looked into for runs.
MOST_FOLDERS = 100
#: What else folders hold, by a file in them, and what to do with it.
HOLDERS = {
    "sweep.json": "holds a sweep: see its sweep.html",
    "summary.json": "holds results of DLIO: rayio import dlio-results makes a run of them",
    "rayio-dataset.json": "holds a dataset: rayio run reads it",
}


def told_apart(store: Store, info: str) -> str:
    """Say what there is in place of a run directory, which holds a file named ``info``.

    Raises:
        StorageError: the system refuses.
    """
    if store.is_file:
        return "a file"
    place = store.local("") if store.is_local else None
    if not store.exists:
        return f"no such path{_similar(place)}" if place else "no such path"
    if place is None:
        return f"it has no {info}"
    if runs := _runs(place, info):
        return f"it has no {info}; name a run in it: {_some(runs)}"
    for name, what in HOLDERS.items():
        if (place / name).exists():
            runs = _runs(place / "runs", info)
            return f"it {what}" + (f", or name a run of it: {_some(runs)}" if runs else "")
    return f"it has no {info}"


def _runs(folder: Path, info: str) -> list[Path]:
    with suppress(OSError):
        return [one for one in sorted(folder.iterdir())[:MOST_FOLDERS] if (one / info).exists()]
    return []


def _some(runs: list[Path]) -> str:
    return ", ".join(map(str, runs[:3])) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def _similar(place: Path) -> str:
    """Name what is beside it and called nearly so."""
    found: list[str] = []
    with suppress(OSError):
        found = difflib.get_close_matches(place.name, [one.name for one in place.parent.iterdir()], 1)
    return f"; did you mean {place.parent / found[0]}?" if found else ""
