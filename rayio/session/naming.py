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
from rayio.files import REMOVALS, make_folders, remove_folders
from rayio.scenario.model import Scenario
from rayio.storage.address import is_path, join, path_of
from rayio.storage.stores.opening import Store
from rayio.trace.run_directory import RESERVED


@contextmanager
def named(scenario: Scenario, base: str, out: str | Path | None) -> Iterator[str]:
    """Yield the address of a run's directory: ``out``, or a free name below ``base``, which no other run takes.

    After an error the chosen name is free again, and folders that were made for it are removed if they are empty.
    """
    if out is not None:
        address, made = join(base, str(out)), list[Path]()
        if is_path(address):
            with suppress(OSError):  # the run reports why
                made = make_folders(path_of(address).absolute().parent)
        try:
            yield address
        except BaseException:
            remove_folders(made)
            raise
        return
    stem = f"runs/{scenario.name}-{datetime.now(UTC).astimezone():%Y%m%d-%H%M%S}"
    stores = (storage.open(join(base, f"{stem}-{n}" if n else stem), scenario.stores) for n in count())
    made = []
    store = next(store for store in stores if not store.exists and claimed(store, made))
    try:
        yield store.address
    except BaseException:
        with suppress(OSError, StorageError):
            if store.is_local:
                remove_folders([store.local(""), *made])
            else:
                store.remove(RESERVED)
        raise


def claimed(store: Store, made: list[Path]) -> bool:
    """Claim an address that does not exist: make the folder, or in a bucket the file :data:`RESERVED`.

    Folders above it that are made are added to ``made``. Returns False if another process was first. Where nothing can
    be made the run reports why.
    """
    if not store.is_local:
        return store.create(RESERVED, token_hex(8).encode())
    folder = store.local("")
    for _ in range(REMOVALS):
        try:
            made[:0] = make_folders(folder.parent)
            folder.mkdir()
        except FileNotFoundError:  # a command that was refused removed the empty folder above
            continue
        except OSError as error:
            return not isinstance(error, FileExistsError)
        break
    return True
