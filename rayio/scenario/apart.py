"""Check that no folder of a run (dataset, evaluation's dataset, checkpoints, run directory) is inside another one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rayio.errors import ScenarioError
from rayio.scenario import evaluation, stage_checks
from rayio.scenario.model import Scenario
from rayio.storage.address import is_path, join, path_of
from rayio.storage.stores.refusals import refusal

#: The parts of an address from the top; those of a folder are a prefix of those of its files.
Place = tuple[str, ...]


def folders_of(scenario: Scenario) -> dict[str, str]:
    """Return the folders that a scenario names and a run writes to, by their keys."""
    if scenario.dataset.is_modelled:
        return {}
    folders = {"dataset.path": scenario.dataset.path}
    if scenario.train.evaluate is not None:
        folders["dataset.eval.path"] = evaluation.path_of(scenario)
    if scenario.checkpoint is not None:
        folders["checkpoint.path"] = scenario.checkpoint.path
        if scenario.checkpoint.burst is not None:
            folders["checkpoint.burst.path"] = scenario.checkpoint.burst.path
    for number, stage in enumerate(scenario.stages):
        folders[f"stages[{number}].path"] = stage_checks.path_of(scenario, stage)
    return folders


def saving_folders(scenario: Scenario) -> dict[str, str]:
    """Return the folders of checkpoints by their keys, of modelled storage too."""
    saved = scenario.checkpoint
    if saved is None or saved.burst is None:
        return {}
    return {"checkpoint.path": saved.path, "checkpoint.burst.path": saved.burst.path}


def refusals(folders: Mapping[str, str], place: Callable[[str], Place]) -> Iterator[str]:
    """Return a line for each folder that is in another or equals it; ``place`` returns a folder's parts."""
    places = {key: place(folder) for key, folder in folders.items()}
    keys = [*folders]
    for number, key in enumerate(keys):
        for other in keys[:number]:
            inner, outer = (key, other) if len(places[key]) >= len(places[other]) else (other, key)
            if places[inner][: len(places[outer])] == places[outer]:
                where = "is the folder of" if places[inner] == places[outer] else "lies in"
                yield f"{inner}={folders[inner]}: {where} {outer}={folders[outer]}; choose folders that lie apart"


def as_written(address: str) -> Place:
    """Return the place of an address as written, without following links; relative ones have a common root."""
    if is_path(address):
        return _parts("file", os.path.normpath(path_of(address)), is_below=not path_of(address).is_absolute())
    scheme, _, rest = address.partition("://")
    return _parts(scheme.lower(), rest)


def as_it_is(address: str) -> Place:
    """Return the place of an address, with links followed where it is a path."""
    return as_written(os.path.realpath(path_of(address)) if is_path(address) else address)


def _parts(scheme: str, path: str, *, is_below: bool = False) -> Place:
    return (scheme, "." if is_below else "/", *(part for part in path.split("/") if part not in ("", ".")))


def refuse_overlaps(scenario: Scenario, base: str = "", out: str | None = None) -> None:
    """Refuse folders of a scenario that are equal or inside each other, after following links.

    Relative ones are below ``base``, or the working directory; ``out`` is the run directory.

    Raises:
        ScenarioError: two overlap.
    """
    folders = folders_of(scenario) | saving_folders(scenario) | ({} if out is None else {"--out": out})
    for line in refusals(folders, lambda folder: as_it_is(join(base, folder))):
        raise ScenarioError(line)


def refuse_files(scenario: Scenario, base: str = "") -> dict[str, tuple[Path, Path]]:
    """Refuse folders of a scenario that are something else on this machine, or below it, such as ``/dev/null/x``.

    Relative ones are below ``base``, or the working directory.

    Returns:
        By key, the path of a folder, and the nearest one above it that is there, or itself.

    Raises:
        ScenarioError: a path is a file, a device or a pipe, or below one, or a link that leads nowhere.
    """
    places: dict[str, tuple[Path, Path]] = {}
    for key, folder in folders_of(scenario).items():
        if not is_path(address := join(base, folder)):
            continue
        path = path_of(address).absolute()
        try:
            here = _there(path)
        except PermissionError:
            continue  # a machine of the run may permit it, and a run here is refused by the store
        except OSError as error:
            raise ScenarioError(f"{key}={refusal(error, path, 'reading')}") from None
        if not here.is_dir():
            raise ScenarioError(f"{key}={folder} is a file; choose a folder")
        places[key] = path, here
    return places


def refuse_unusable(scenario: Scenario, base: str) -> None:
    """Refuse the same, and folders that this process may not use. Nothing is made: a file system may still refuse.

    Raises:
        ScenarioError: a path is no folder, or there is no permission.
    """
    for key, (path, here) in refuse_files(scenario, base).items():
        if here == path and not os.access(here, os.R_OK | os.X_OK):
            raise ScenarioError(f"{key}={refusal(PermissionError(errno.EACCES, ''), path, 'reading')}")
        # Files of another program are never written, and an existing dataset may be complete.
        is_written = key.startswith("checkpoint.") or (here != path and not scenario.dataset.external)
        if is_written and not os.access(here, os.W_OK | os.X_OK):
            raise ScenarioError(f"{key}={path}: no permission to write in {here}; choose another path")


def _there(path: Path) -> Path:
    """Return the path, or if nothing is there, the nearest folder above it.

    Raises:
        OSError: a part of the path is a file, a link that leads nowhere, or not permitted.
    """
    while True:
        try:
            path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            path = path.parent
        else:
            return path
