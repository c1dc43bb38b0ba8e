"""Checks of the folders that a run writes to: apart from each other, with the right content, with enough space."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rayio import storage
from rayio.data.manifest import IGNORED, NAME
from rayio.errors import DataError, ScenarioError, StorageError
from rayio.kinds import SAVERS
from rayio.model import manifest
from rayio.model.manifest import Restored
from rayio.model.plan import Plan
from rayio.model.saving import Checkpointing
from rayio.place import checkpoint_folder, checkpoint_place
from rayio.reporter import Reporter
from rayio.scenario import apart, derive
from rayio.scenario.checkpoint import NOTHING
from rayio.scenario.model import Scenario
from rayio.storage.address import is_path, join, path_of
from rayio.storage.real import random_bytes
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import Store
from rayio.trace.run_directory import INFO
from rayio.units import format_bytes

#: Names of files by built-in checkpoint kinds.
_FILE = re.compile(r"((model|optimizer)-)?(shard|rank|node|group)-\d{5,}(-layer-\d{5,})?\.bin")

#: Bytes at the start of a file, and of the state in it, that identify rayio's files.
HEADER_BYTES, BEGINNING_BYTES = 4096, 64

#: Chooses between the checkpoints of a store and others.
Choose = Callable[[Store, str, Checkpointing], tuple[Restored, list[str]]]


def refuse_folders(scenario: Scenario, base: str, out: str | None = None) -> None:
    """Refuse folders of a run that cannot be used, and those equal or inside each other, after following links.

    Raises:
        ScenarioError: a folder cannot be used, or two overlap.
    """
    apart.refuse_unusable(scenario, base)
    apart.refuse_overlaps(scenario, base, out)


def refuse_inside(out: str) -> None:
    """Refuse a run directory inside a dataset or a run, after following links.

    Raises:
        ScenarioError: it is inside one.
    """
    if not is_path(out):
        return
    for folder in Path(os.path.realpath(path_of(out))).parents:
        for name, what in ((NAME, "a dataset"), (INFO, "a run")):
            if (folder / name).is_file():
                raise ScenarioError(f"--out={out} is inside {folder}, which holds {what}; choose another folder")


def remove_unfinished(plan: Plan, base: str) -> None:
    """Remove the checkpoints that ended attempts of a run left without a manifest, once it is over."""
    saved = plan.checkpointing
    if saved is not None and not plan.modelled:
        manifest.remove_unfinished(plan.store(base, saved.path), saved.files())


class Checkpoints:
    """The folder of a run's checkpoints, before the run starts."""

    #: The key of its path.
    key = "checkpoint.path"

    def __init__(self, scenario: Scenario, plan: Plan, base: str) -> None:
        assert scenario.checkpoint is not None
        self.scenario = scenario
        self.path = scenario.checkpoint.path
        self.store: Store = storage.open(join(base, self.path), scenario.stores)
        checkpointing = plan.checkpointing
        assert checkpointing is not None
        self._checkpointing = checkpointing
        #: The files of one checkpoint with their bytes, and those that ranks save with the bytes of their state.
        self.files: Mapping[str, int] = checkpointing.files()
        self.parts: Mapping[str, int] = checkpointing.parts
        #: Bytes of existing files that the run replaces, and whether a checkpoint of it exists in part or whole.
        self.replaced, self.is_replacing = 0, False

    def look(self) -> None:
        """Refuse a folder that holds anything but checkpoints; remove unfinished files of earlier writers.

        Raises:
            StorageError: the folder holds something else.
        """
        if self.store.is_file:
            raise StorageError(f"{self.key}={self.path} is a file; choose a folder")
        there = [name for name in sorted(self.store.entries()) if name not in IGNORED]
        for name in there:
            if checkpoint_place(name) is None:
                raise self._refusal(name)
            if self.store.leads_out(name):
                raise StorageError(
                    f"{self.key}={self.path}: {name} is a link out of the folder, and rayio writes nothing "
                    "outside; remove the link"
                )
            self.store.tidy(name)
        self.replaced = 0
        due = self._due(there)
        self.is_replacing = not due.isdisjoint(there)
        for folder in there if self.store.is_local else sorted(due & {*there}):
            there_are = self.store.sizes(folder)
            if self.store.is_local and self.store.local(f"{folder}/{manifest.NAME}").is_dir():
                raise StorageError(
                    f"{self.key}={self.path}: {folder}/{manifest.NAME} is a folder, and a checkpoint's manifest "
                    "is a file; remove it"
                )
            for name, size in there_are.items():
                if name == manifest.NAME:
                    continue
                is_replaced = folder in due and name in self.files
                # known names that this run does not write need no check of content
                if (is_replaced or not _FILE.fullmatch(name)) and not self._is_ours(folder, name, size):
                    raise self._refusal(f"{folder}/{name}")
                self.replaced += size if is_replaced else 0

    def _due(self, there: Sequence[str]) -> set[str]:
        """Return the folders of the run's checkpoints; by the clock, those of ``there`` that it may write."""
        saved = self._checkpointing
        if saved.seconds is None:
            return {checkpoint_folder(epoch, step) for epoch, step in derive.checkpoint_steps(self.scenario)}
        places = {folder: checkpoint_place(folder) for folder in there}
        return {folder for folder, place in places.items() if place is not None and saved.may_write(*place)}

    def begin(self, plan: Plan, reporter: Reporter, run: str, choose: Choose | None = None) -> tuple[Plan, list[str]]:
        """Return the plan of a run that begins with the wanted checkpoint, and notes; after :meth:`look`.

        ``run`` is the run's id in manifests. ``choose`` returns the checkpoint to restore, if there is a burst tier.

        Raises:
            DataError: there is no complete checkpoint, or one with another model or layout.
        """
        saved, wanted = plan.checkpointing, self.scenario.checkpoint
        assert saved is not None
        assert wanted is not None
        restored, notes = None, list[str]()
        if wanted.restore != NOTHING:
            if choose is None:
                restored, notes = manifest.chosen(self.store, wanted.restore, saved.identity, saved.files)
            else:
                restored, notes = choose(self.store, wanted.restore, saved)
            where = f"{restored.folder} from the burst tier" if restored.in_burst else ""
            reporter.say(f"restoring {where or self.store.full(restored.folder)}")
        for note in notes:
            reporter.warn(note)
        if added := sum(self.files.values()) - sum(self.parts.values()):
            state = format_bytes(sum(self.parts.values()))
            notes = [
                *notes,
                f"checkpoint.engine={saved.engine}: adds {format_bytes(added)} to the {state} of a checkpoint",
            ]
        saved = replace(saved, restored=restored, is_replacing=self.is_replacing, run=run)
        return replace(plan, checkpointing=saved), notes

    def check_space(self) -> str:
        """Refuse a run whose checkpoints do not fit; return text on needed and free space.

        Raises:
            StorageError: too little space.
        """
        each, number = sum(self.files.values()), derive.num_checkpoints(self.scenario)
        kept = self.scenario.checkpoint.keep if self.scenario.checkpoint is not None else None
        if kept is not None and self._checkpointing.incremental is None:
            number = min(number, kept + 1)  # an older one stays until a newer one is complete
        total, free = each * number, self.store.free_bytes()
        what = f"{number} of {format_bytes(each)}"
        if (kind := self._checkpointing.incremental) is not None:
            increment, fulls = sum(self._checkpointing.files(kind.fraction).values()), kind.number_full(number)
            what = f"{fulls} of {format_bytes(each)} and {number - fulls} increments of {format_bytes(increment)}"
            total = fulls * each + (number - fulls) * increment
            total = total if kept is None else kind.most_kept(number, kept, each, increment)
        # a replaced file stays until its replacement is complete
        needed = max(0, total - self.replaced) + (each if self.replaced and number else 0)
        fewest = "at least " * (self._checkpointing.seconds is not None)
        is_part = kept is not None and self._checkpointing.incremental is not None
        demand = f"{fewest}{what}, {format_bytes(total)} {'at most at a time' if is_part else 'in all'}"
        if free is None:
            return f"{demand}; free space unknown"
        if needed > free:
            replacing = f", {format_bytes(self.replaced)} of it replacing existing files" if self.replaced else ""
            raise StorageError(
                f"{self.key}={self.path}: only {format_bytes(free)} are free for checkpoints, {demand}"
                f"{replacing}; free some space, choose another checkpoint.path, or fewer or smaller checkpoints "
                "(checkpoint.every, checkpoint.model)"
            )
        return f"{demand}; {format_bytes(free)} are free"

    def prepare(self, reporter: Reporter) -> None:
        """Make the folder and check its space.

        Raises:
            StorageError: the folder cannot be made, or has too little space.
        """
        try:
            self.store.prepare("making the checkpoint folder")
        except StorageError as error:
            raise StorageError(f"{self.key}={error}") from None
        reporter.say(f"checkpoints {self.store.address}: {self.check_space()}")

    def _is_ours(self, folder: str, name: str, size: int) -> bool:
        """Return True if a file begins as one that an engine has written, or is in its checkpoint's manifest.

        The manifest names a damaged file too, of which the restore then says which byte is wrong.
        """
        try:
            with self.store.open(f"{folder}/{name}", Traffic()) as file:
                head = bytes(file.read(min(size, HEADER_BYTES)))
        except DataError:
            if self.store.size(f"{folder}/{name}") is None:  # a writer that is not over yet removed it
                return True
            raise
        beginning = min(size, self.parts.get(name, size), BEGINNING_BYTES)
        if any(saver.is_ours(head, bytes(random_bytes(beginning))) for saver in SAVERS.usable().values()):
            return True
        try:
            return manifest.read(self.store, folder).files.get(name) == size
        except DataError:
            return False

    def _refusal(self, name: str) -> StorageError:
        return StorageError(
            f"{self.key}={self.path}: the folder holds {name!r}, which is not a checkpoint of rayio; "
            "choose a new or empty folder"
        )
