"""The folders that a run writes to: whether they lie apart, are what they should be, and have room."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from rayio import storage
from rayio.data.manifest import IGNORED, NAME
from rayio.errors import ScenarioError, StorageError
from rayio.place import checkpoint_folder
from rayio.reporter import Reporter
from rayio.scenario import apart, derive
from rayio.scenario.model import Scenario
from rayio.storage.address import is_path, join, path_of
from rayio.storage.real import random_bytes
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import Store
from rayio.trace.run_directory import INFO
from rayio.units import format_bytes

#: Folders of checkpoints (:func:`rayio.place.checkpoint_folder`), and files in them as our kinds of writers name them.
_CHECKPOINT, _FILE = re.compile(r"epoch-\d{4,}-step-\d{8,}"), re.compile(r"(shard|rank)-\d{5,}\.bin")

#: Bytes of a file that are looked at to tell whether rayio wrote it.
LOOKED_AT = 64


def refuse_overlaps(scenario: Scenario, base: str, out: str | None = None) -> None:
    """Refuse folders of a run that lie in each other, or are the same, as they are: links are followed.

    Raises:
        ScenarioError: one line that names both.
    """
    folders = apart.folders_of(scenario) | ({} if out is None else {"--out": out})
    for line in apart.refusals(folders, lambda folder: apart.as_it_is(join(base, folder))):
        raise ScenarioError(line)


def refuse_inside(out: str) -> None:
    """Refuse a run directory in a folder that holds a dataset or a run, as it is: links are followed.

    Raises:
        ScenarioError: one line that names both.
    """
    if not is_path(out):
        return
    for folder in Path(os.path.realpath(path_of(out))).parents:
        for name, what in ((NAME, "a dataset"), (INFO, "a run")):
            if (folder / name).is_file():
                raise ScenarioError(f"--out={out}: lies in {folder}, which holds {what}; choose folders that lie apart")


class Checkpoints:
    """The checkpoints of a run, in their folder, before it begins."""

    def __init__(self, scenario: Scenario, base: str) -> None:
        assert scenario.checkpoint is not None
        self.scenario = scenario
        self.path = scenario.checkpoint.path
        self.store: Store = storage.open(join(base, self.path), scenario.stores)
        #: Names and bytes of the files of each checkpoint.
        writers = scenario.checkpoint.writers
        self.files: Mapping[str, int] = {
            writers.file_name(number): size for number, size in enumerate(derive.checkpoint_shards(scenario))
        }
        #: Bytes of files that are there and will be replaced.
        self.replaced = 0

    def look(self) -> None:
        """Refuse a folder that holds anything but checkpoints; remove what writers that are gone left unfinished.

        Raises:
            StorageError: one line that names what else is there.
        """
        if self.store.is_file:
            raise StorageError(f"checkpoint.path={self.path}: is a file; choose a folder")
        there = [name for name in sorted(self.store.entries()) if name not in IGNORED]
        for name in there:
            if not _CHECKPOINT.fullmatch(name):
                raise self._refusal(name)
            if self.store.leads_out(name):
                raise StorageError(
                    f"checkpoint.path={self.path}: {name} in it is a link that leads out of it, where nothing is "
                    "written; remove the link"
                )
            self.store.tidy(name)
        self.replaced = 0
        due = {checkpoint_folder(epoch, step) for epoch, step in derive.checkpoint_steps(self.scenario)}
        for folder in there if self.store.is_local else sorted(due & {*there}):
            for name, size in self.store.sizes(folder).items():
                is_replaced = folder in due and name in self.files
                # A name that we know, and nobody writes to, need not be looked into.
                if (is_replaced or not _FILE.fullmatch(name)) and not self._is_ours(f"{folder}/{name}", size):
                    raise self._refusal(f"{folder}/{name}")
                self.replaced += size if is_replaced else 0

    def check_space(self) -> str:
        """Refuse a run whose checkpoints do not fit beside what is there; say what they take and what is free.

        Raises:
            StorageError: with what they take, what is free, and what to do.
        """
        each, number = sum(self.files.values()), derive.num_checkpoints(self.scenario)
        total, free = each * number, self.store.free_bytes()
        # A file that is replaced stays until the one that replaces it is whole.
        needed = max(0, total - self.replaced) + (each if self.replaced and number else 0)
        said = f"{number} of {format_bytes(each)}, {format_bytes(total)} in all"
        if free is None:
            return f"{said}; what is free there is not known"
        if needed > free:
            beside = f", {format_bytes(self.replaced)} of it in place of what is there" if self.replaced else ""
            raise StorageError(
                f"checkpoint.path={self.path}: all are kept, {said}{beside}; {format_bytes(free)} are free: free some, "
                "choose another checkpoint.path, or fewer or smaller ones (checkpoint.every, checkpoint.model.bytes)"
            )
        return f"{said}; {format_bytes(free)} are free"

    def prepare(self, reporter: Reporter) -> None:
        """Have the folder there, and room in it.

        Raises:
            StorageError: it cannot be, or there is too little.
        """
        try:
            self.store.prepare("making the checkpoint folder")
        except StorageError as error:
            raise StorageError(f"checkpoint.path={error}") from None
        reporter.say(f"checkpoints {self.store.address}: {self.check_space()}")

    def _is_ours(self, name: str, size: int) -> bool:
        """Say whether rayio wrote a file: then it begins as all that it writes."""
        length = min(size, LOOKED_AT)
        with self.store.open(name, Traffic()) as file:
            return bytes(file.read(length)) == bytes(random_bytes(length))

    def _refusal(self, name: str) -> StorageError:
        return StorageError(
            f"checkpoint.path={self.path}: the folder holds {name!r}, which is no checkpoint of rayio; "
            "choose a new or empty folder"
        )
