"""Messages for a path that is no run directory: its actual content, and nearby runs."""

from __future__ import annotations

import difflib
from contextlib import suppress
from pathlib import Path

from rayio.storage.stores.opening import Store

#: Entries of a folder that are checked for runs.
MOST_FOLDERS = 100
#: Other kinds of folders by one of their files, with a remedy.
HOLDERS = {
    "capacity.html": "contains a capacity search: see its capacity.html",
    "advice.html": "contains an advice: see its advice.html",
    "sweep.json": "contains a sweep: see its sweep.html",
    "summary.json": "contains results of DLIO: rayio import dlio-results makes a run of them",
    "rayio-dataset.json": "contains a dataset: rayio run reads it",
}


def explained(store: Store, info: str) -> str:
    """Return the reason why a path is no run directory, which contains a file named ``info``.

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
        return [path for path in sorted(folder.iterdir())[:MOST_FOLDERS] if (path / info).exists()]
    return []


def _some(runs: list[Path]) -> str:
    return ", ".join(map(str, runs[:3])) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")


def _similar(place: Path) -> str:
    """Return a hint to a folder next to it with a similar name, or an empty text."""
    matches: list[str] = []
    with suppress(OSError):
        folders = [entry.name for entry in place.parent.iterdir() if entry.is_dir()]
        matches = difflib.get_close_matches(place.name, folders, 1)
    return f"; did you mean {place.parent / matches[0]}?" if matches else ""
