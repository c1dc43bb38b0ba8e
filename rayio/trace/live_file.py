"""The progress of a run, in ``live.json`` of its directory; only on this machine."""

from __future__ import annotations

import contextlib
import json

from rayio.errors import StorageError
from rayio.files import parse_json
from rayio.records.record import DamagedRecordError
from rayio.records.running import Live
from rayio.trace.run_directory import RunDirectory

LIVE = "live.json"


def read_live(directory: RunDirectory) -> Live | None:
    """Return the progress of a run; None without the file.

    Raises:
        StorageError: the file is damaged.
    """
    if (content := directory.store.read(LIVE)) is None:
        return None
    try:
        return Live.of_json(parse_json(content))
    except (DamagedRecordError, ValueError) as error:
        raise StorageError(f"{directory.store.full(LIVE)}: {error}: the file is damaged") from None


def write_live(directory: RunDirectory, live: Live) -> None:
    """Write the progress of a run.

    Raises:
        StorageError: no space, no permission.
    """
    if directory.store.is_local:
        directory.write(LIVE, (json.dumps(live.as_json(), allow_nan=False) + "\n").encode())


def remove_live(directory: RunDirectory) -> None:
    """Remove the file; the result replaces it."""
    if directory.store.is_local:
        with contextlib.suppress(OSError):
            directory.store.local(LIVE).unlink()
