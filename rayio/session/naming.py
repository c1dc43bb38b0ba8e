"""Names of run directories: two runs that choose a name in the same second get two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from secrets import token_hex

from rayio import storage
from rayio.errors import StorageError
from rayio.scenario.model import Scenario
from rayio.storage.address import join
from rayio.storage.stores.opening import Store
from rayio.trace.run_directory import RESERVED


@contextmanager
def named(scenario: Scenario, base: str, out: str | Path | None) -> Iterator[str]:
    """Yield the address of a run's directory: ``out``, or a free name below ``base``, which no other run takes.

    After an error the chosen name is free again.
    """
    if out is not None:
        yield join(base, str(out))
        return
    stem = f"runs/{scenario.name}-{datetime.now(UTC).astimezone():%Y%m%d-%H%M%S}"
    stores = (storage.open(join(base, f"{stem}-{n}" if n else stem), scenario.stores) for n in count())
    store = next(store for store in stores if not store.exists and claimed(store))
    try:
        yield store.address
    except BaseException:
        with suppress(OSError, StorageError):
            if store.is_local:
                store.local("").rmdir()
            else:
                store.remove(RESERVED)
        raise


def claimed(store: Store) -> bool:
    """Claim an address that does not exist: make the folder, or in a bucket the file :data:`RESERVED`.

    Returns False if another process was first. Where nothing can be made the run reports why.
    """
    if store.is_local:
        folder = store.local("")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return True
        try:
            folder.mkdir()
        except OSError as error:
            return not isinstance(error, FileExistsError)
        return True
    return store.create(RESERVED, token_hex(8).encode())
