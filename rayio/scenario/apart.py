"""Check that no folder of a run (dataset, evaluation's dataset, checkpoints, run directory) is inside another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from rayio.errors import ScenarioError
from rayio.scenario import evaluation, stage_checks
from rayio.scenario.model import Scenario
from rayio.storage.address import is_path, path_of

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


def refuse_files(scenario: Scenario) -> None:
    """Refuse folders of a scenario that are something else on this machine, such as ``/dev/null``.

    Raises:
        ScenarioError: a path is a file, a device or a pipe.
    """
    for key, folder in folders_of(scenario).items():
        with suppress(OSError):  # a run says what is wrong with it
            if is_path(folder) and (path := path_of(folder)).is_absolute() and path.exists() and not path.is_dir():
                raise ScenarioError(f"{key}={folder} is a file; choose a folder")
