"""Manifests of checkpoints. A manifest is written last: a checkpoint without one is not complete."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from rayio.errors import DataError, StorageError
from rayio.files import parse_json
from rayio.place import checkpoint_folder, checkpoint_place
from rayio.storage.stores.opening import Store
from rayio.units import format_bytes

NAME = "rayio-checkpoint.json"
VERSION = 2
#: The largest manifest that is read: one with a million files is smaller.
MOST_BYTES = 64 << 20
#: What a layout without an entry has.
DEFAULTS = {"engine": "raw"}
#: Passed-over checkpoints that a note names.
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """A saved model and its layout: only a run with both equal restores a checkpoint."""

    scenario: str
    #: The section ``checkpoint.model`` as plain data.
    model: Mapping[str, Any]
    #: The number of ranks, the kind of writers and the parallelism, as plain data.
    layout: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a complete checkpoint, by name and bytes of each file."""

    #: The run that wrote it, and the attempt in it.
    run: str
    attempt: int
    epoch: int
    step: int
    #: Time of writing, in ns since the Unix epoch.
    saved_ns: int
    scenario: str
    model: Mapping[str, Any]
    layout: Mapping[str, Any]
    #: Bytes of a write request: the content of a file repeats after that many.
    request_bytes: int
    files: Mapping[str, int]
    #: The folder of the checkpoint since which this one has the changes; empty for a full one.
    base: str = ""
    #: The share of the state that it has.
    fraction: float = 1.0

    @property
    def folder(self) -> str:
        """The name of the checkpoint's folder."""
        return checkpoint_folder(self.epoch, self.step)

    def content(self) -> bytes:
        """Return the manifest as it is written."""
        return (json.dumps({"version": VERSION} | asdict(self), indent=1) + "\n").encode()


class Link(NamedTuple):
    """A full checkpoint or an increment, as its manifest describes it."""

    epoch: int
    step: int
    #: The share of the state that it has, and the folder of the checkpoint since which it has the changes.
    fraction: float = 1.0
    base: str = ""

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return checkpoint_folder(self.epoch, self.step)


@dataclass(frozen=True, slots=True)
class Restored:
    """The complete checkpoint that a run begins with."""

    epoch: int
    step: int
    #: See :attr:`Manifest.request_bytes` and :attr:`Manifest.run`.
    request_bytes: int
    run: str = ""
    #: What is read, in order, if it is an increment.
    links: tuple[Link, ...] = ()
    #: The folders of those that are read from the burst tier, and of those that this run has to drain.
    in_burst: frozenset[str] = frozenset()
    undrained: frozenset[str] = frozenset()
    #: Their numbers in this run; none if another run wrote them.
    numbers: tuple[int, ...] = ()

    @property
    def chain(self) -> tuple[Link, ...]:
        """The checkpoints that are read, in order."""
        return self.links or (Link(self.epoch, self.step),)

    @property
    def folder(self) -> str:
        """The name of the checkpoint's folder."""
        return checkpoint_folder(self.epoch, self.step)


@dataclass(frozen=True, slots=True)
class Search:
    """The checkpoints of a folder: complete ones, the newest first, and those passed over, with the reason."""

    complete: Sequence[Manifest]
    passed: Mapping[str, str]
    #: What a restore of the newest reads, the full one first, each with its store.
    links: Sequence[tuple[Manifest, Store]] = ()

    def notes(self) -> list[str]:
        """Return a note that names incomplete checkpoints after the newest complete one, if there are any."""
        least = self.complete[0].folder if self.complete else ""
        later = [f"{folder} ({why})" for folder, why in self.passed.items() if folder > least]
        if not later:
            return []
        more = f" and {len(later) - MOST_NAMED} more" if len(later) > MOST_NAMED else ""
        return [f"incomplete checkpoints were passed over: {', '.join(later[:MOST_NAMED])}{more}"]


def read(store: Store, folder: str) -> Manifest:
    """Return the manifest of the checkpoint in a folder; its files are not looked at.

    Raises:
        DataError: there is none, or it is damaged; the message is the reason alone.
    """
    name = f"{folder}/{NAME}"
    try:
        if (size := store.size(name)) is None:
            raise DataError("it has no manifest, so it was not completed")
        if size > MOST_BYTES:
            raise DataError(f"{NAME} is damaged: it has {format_bytes(size)}")
        content = store.read(name)
    except StorageError as error:
        raise DataError(f"{NAME} cannot be read: {error}") from None
    if content is None:
        raise DataError("it has no manifest, so it was not completed")
    try:
        manifest = parse(content)
    except ValueError as error:
        raise DataError(f"{NAME} is damaged: {error}") from None
    if manifest.folder != folder:
        raise DataError(f"{NAME} is that of {manifest.folder}")
    return manifest


def parse(content: bytes) -> Manifest:
    """Return a manifest from its content.

    Raises:
        ValueError: it is no manifest; the message says why.
    """
    entries = parse_json(content)
    if not isinstance(entries, dict):
        raise ValueError("it is no JSON object")
    if (version := entries.pop("version", None)) != VERSION or isinstance(version, bool):
        raise ValueError(f"version must be {VERSION}")
    for field in fields(Manifest):
        if field.name not in entries:
            raise ValueError(f"{field.name} is missing")
        value = entries[field.name]
        match field.type:
            case "int":
                is_right = type(value) is int and 0 <= value < 1 << 63
            case "str":
                is_right = isinstance(value, str)
            case "float":
                is_right = type(value) in (int, float) and 0 < value <= 1
            case _:
                is_right = isinstance(value, dict)
        if not is_right:
            raise ValueError(f"{field.name} has a wrong value")
    manifest = Manifest(**{field.name: entries[field.name] for field in fields(Manifest)})
    if not manifest.files or not manifest.request_bytes:
        raise ValueError("it names no files" if not manifest.files else "request_bytes has a wrong value")
    if manifest.base and (checkpoint_place(manifest.base) or (math.inf,)) >= (manifest.epoch, manifest.step):
        raise ValueError("base is no earlier checkpoint")
    for name, size in manifest.files.items():
        if type(size) is not int or not 0 <= size < 1 << 63 or not name or "/" in name or name in (".", "..", NAME):
            raise ValueError("files has a wrong entry")
    return manifest


def missing(store: Store, manifest: Manifest) -> str:
    """Return why the files in a checkpoint's folder are not those of its manifest; empty if they are.

    Raises:
        StorageError: the folder cannot be listed.
    """
    there = store.sizes(manifest.folder)
    for name, size in manifest.files.items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != size:
            return f"{name} has {there[name]} B, its manifest {size} B"
    return ""


def search(store: Store, *others: Store) -> Search:
    """Look for the newest complete checkpoint below the store's address.

    Complete ones are sorted by the time of their manifests. The files of the first one were compared with its manifest,
    as were those that it is an increment since, which may be in ``others``.

    Raises:
        StorageError: the folder cannot be read.
    """
    complete, passed, links = list[Manifest](), dict[str, str](), list[tuple[Manifest, Store]]()
    for folder in sorted(store.entries()):
        if checkpoint_place(folder) is None:
            continue
        try:
            complete.append(read(store, folder))
        except DataError as error:
            passed[folder] = str(error)
    complete.sort(key=lambda manifest: (manifest.saved_ns, manifest.folder), reverse=True)
    while complete:
        try:
            links = spread((store, *others), complete[0])
            break
        except DataError as error:
            passed[complete.pop(0).folder] = str(error)
    return Search(complete, passed, links)


def chain(store: Store, newest: Manifest) -> list[Manifest]:
    """Return the checkpoints that a restore of one reads, the full one first; the files of all are there.

    Raises:
        DataError: one is missing or damaged, or was written again since; the message is the reason alone.
    """
    return [link for link, _ in spread((store,), newest)]


def spread(stores: Sequence[Store], newest: Manifest) -> list[tuple[Manifest, Store]]:
    """Return the checkpoints that a restore of one reads, each with the first of some stores that has all of it.

    Raises:
        DataError: see :func:`chain`.
    """
    links = [whole(stores, newest.folder, newest)]
    while base := (last := links[-1][0]).base:
        try:
            links.append(whole(stores, base, last))
        except DataError as error:
            raise DataError(f"it needs {base}{error}") from None
    return links[::-1]


def whole(stores: Sequence[Store], folder: str, later: Manifest | None = None) -> tuple[Manifest, Store]:
    """Return the first checkpoint in a folder of some stores whose files are all there, and its store.

    ``later`` is one that needs it, or itself.

    Raises:
        DataError: no store has one; the message is the reason.
    """
    reason, is_base = "", later is not None and later.folder != folder
    for store in stores:
        try:
            manifest = read(store, folder)
        except DataError as error:
            reason = reason or (f": {error}" if is_base else str(error))
            continue
        if later is not None and (manifest.run != later.run or manifest.attempt > later.attempt):
            reason = ", which was replaced since"
        elif why := missing(store, manifest):
            reason = f": {why}" if is_base else why
        else:
            return manifest, store
    raise DataError(reason)


def needed(kept: Sequence[Manifest], newest: int) -> set[str]:
    """Return the folders of the last ``newest`` complete checkpoints, and of all that these are increments since."""
    by_folder, folders = {manifest.folder: manifest for manifest in kept}, set[str]()
    for manifest in kept[max(0, len(kept) - newest) :]:
        link: Manifest | None = manifest
        while link is not None and link.folder not in folders:
            folders.add(link.folder)
            link = by_folder.get(link.base)
    return folders


def remove(store: Store, manifest: Manifest) -> None:
    """Remove a complete checkpoint: its manifest first, so that it is never half a checkpoint, then its files.

    Raises:
        StorageError: the system refuses.
    """
    store.remove(f"{manifest.folder}/{NAME}")
    for name in manifest.files:
        store.remove(f"{manifest.folder}/{name}")
    remove_folder(store, manifest.folder)


def remove_folder(store: Store, folder: str) -> None:
    """Remove a checkpoint's folder if nothing is in it; object stores have none."""
    if store.is_local:
        with suppress(OSError):  # it has files of others
            store.local(folder).rmdir()


def remove_unfinished(store: Store, names: Collection[str], before: tuple[float, float] = (math.inf, 0)) -> None:
    """Remove checkpoints without a manifest that ended attempts left: those of steps before (epoch, step).

    ``names`` are the files of a checkpoint; a folder with another one stays.

    Raises:
        StorageError: the system refuses.
    """
    for folder in sorted(store.entries()):
        place = checkpoint_place(folder)
        if place is None or place >= before or store.leads_out(folder):
            continue
        store.tidy(folder)
        there = store.sizes(folder)
        if NAME not in there and {*there} <= {*names}:
            for name in there:
                store.remove(f"{folder}/{name}")
            remove_folder(store, folder)


def check(manifest: Manifest, identity: Identity, files: Mapping[str, int]) -> None:
    """Refuse a checkpoint of another model or layout than a run's; ``files`` are those that the run would write.

    Raises:
        DataError: what differs, with both values; without the name of the checkpoint.
    """
    for what, theirs, ours in (
        ("model", manifest.model, identity.model),
        ("layout", manifest.layout, identity.layout),
    ):
        for key in {**ours, **theirs}:
            if theirs.get(key) != ours.get(key):
                there, here = (_shown(each.get(key), DEFAULTS.get(key, "none")) for each in (theirs, ours))
                why = "; checkpoints are not resharded" * (what == "layout")
                raise DataError(f"a checkpoint of another {what}: it has {key}={there}, the run {here}{why}")
    if dict(manifest.files) != dict(files):
        there, here = (f"{len(each)} files of {sum(each.values())} B" for each in (manifest.files, files))
        raise DataError(f"a checkpoint of another layout: it has {there}, the run's {here}")


def chosen(
    store: Store, wanted: str, identity: Identity, files: Callable[[float], Mapping[str, int]], *below: Store
) -> tuple[Restored, list[str]]:
    """Return the checkpoint to restore, and notes; ``wanted`` is ``newest`` or the name of a checkpoint's folder.

    ``files`` are those that the run would write of a share of its state. If ``store`` is a burst tier, the storage
    ``below`` it may have what the checkpoint is an increment since.

    Raises:
        DataError: there is no complete one, or one with another model or layout; the message is one line.
    """
    key = f"checkpoint.restore={wanted}"
    if wanted == "newest":
        there = search(store, *below)
        if not there.complete:
            passed = [f"{folder}: {why}" for folder, why in there.passed.items()]
            more = f"; and {len(passed) - MOST_NAMED} more" if len(passed) > MOST_NAMED else ""
            why = f" ({'; '.join(passed[-MOST_NAMED:])}{more})" if passed else ""
            raise DataError(
                f"{key}: {store.address} has no complete checkpoint{why}; use checkpoint.restore=none, or run once "
                "to save some"
            )
        manifest, notes, links = there.complete[0], there.notes(), there.links
    else:
        notes = []
        try:
            manifest = read(store, wanted)
            links = spread((store, *below), manifest)
        except DataError as error:
            raise DataError(f"{key}: {store.full(wanted)}: {error}; choose a complete checkpoint, or newest") from None
    try:
        for link, _ in links:
            check(link, identity, files(link.fraction))
    except DataError as error:
        raise DataError(
            f"{key}: {store.full(manifest.folder)} is {error}; choose another checkpoint.path, or the scenario that "
            "saved it"
        ) from None
    read_back = tuple(Link(link.epoch, link.step, link.fraction, link.base) for link, _ in links)
    in_burst = frozenset(link.folder for link, place in links if below and place is store)
    return Restored(manifest.epoch, manifest.step, manifest.request_bytes, manifest.run, read_back, in_burst), notes


def _shown(value: Any, default: str) -> str:
    return default if value is None else json.dumps(value) if isinstance(value, dict) else str(value)
