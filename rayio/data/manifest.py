"""The manifest of a dataset: a file in its folder that identifies it and records whether all files were written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from rayio.data.layout import FILES_PER_FOLDER, Layout
from rayio.errors import DataError, RayioError
from rayio.files import parse_json
from rayio.kinds import FORMATS
from rayio.schema.choice import options_of
from rayio.storage.stores.opening import Store

NAME = "rayio-dataset.json"
#: Version of the manifest, the file names and the samples' bytes.
VERSION = 1
#: Entries that a file system may create in an empty folder.
IGNORED = frozenset({"lost+found"})


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of a dataset: datasets whose manifests are equal (except ``complete``) have equal bytes."""

    format: str
    num_files: int
    samples_per_file: int
    #: The distribution of sizes, as plain data: kind and parameters.
    sample_bytes: Any
    seed: int
    #: True once every file is written; until then the dataset can be resumed.
    complete: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: Layout, format: str) -> Manifest:
        """Return the manifest of a scenario's dataset."""
        sizes = layout.sample_bytes
        dump = getattr(sizes, "model_dump", None)
        spec = dump(mode="json", exclude_none=True) if dump else repr(sizes)
        options = to_jsonable_python(layout.stored.options.model_dump(exclude_none=True))
        defaults = {"compressibility": 1.0, "files_per_folder": FILES_PER_FOLDER, "sizes": "per_file"}
        others = {name: getattr(layout, name) for name in defaults}
        options |= {name: value for name, value in others.items() if value != defaults[name]}
        return cls(format, layout.num_files, layout.samples_per_file, spec, layout.seed, options=options)

    def write(self, store: Store) -> None:
        """Write the manifest to a dataset's folder, atomically.

        Raises:
            StorageError: no space or no permission.
        """
        text = json.dumps({"version": VERSION} | {name: getattr(self, name) for name in self.__slots__}, indent=2)
        store.write(NAME, lambda file: file.write(f"{text}\n".encode()), fsync=True)

    def agree(self, wanted: Manifest, root: str, section: str = "dataset") -> None:
        """Refuse a dataset in ``root`` that differs from the ``wanted`` one; ``section`` of the scenario describes it.

        Raises:
            DataError: names the field that differs and both values.
        """
        mine, theirs = self._identity(), wanted._identity()
        others = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
        if others:
            name = others[0]
            # An evaluation uses the format of training.
            owner = "dataset" if name == "format" or name not in self.__slots__ else section
            key = "seed" if name == "seed" else f"{owner}.{name}"
            more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
            raise DataError(
                f"{root}: this dataset has {key} = {_shown(mine.get(name))}, "
                f"the scenario has {_shown(theirs.get(name))}{more}; "
                f"choose another {section}.path, delete that folder, or change the scenario"
            )

    def _identity(self) -> dict[str, Any]:
        names = ("format", "num_files", "samples_per_file", "sample_bytes")
        options = {**_defaults(self.format), **self.options}
        return {**{name: getattr(self, name) for name in names}, **options, "seed": self.seed}


def _defaults(format: str) -> dict[str, Any]:
    """Return the options that a format has by default: manifests of earlier versions lack later ones."""
    try:
        options = options_of(FORMATS[format])()
    except (RayioError, ValidationError):  # a format that is not here, or whose options have no defaults
        return {}
    return dict(to_jsonable_python(options.model_dump(exclude_none=True)))


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def find(store: Store) -> Manifest | None:
    """Return the manifest in a dataset's folder; None if the folder is empty or missing.

    Raises:
        DataError: the path is a file or a folder of something else, or the manifest cannot be read.
        StorageError: no permission.
    """
    if store.is_file:
        raise DataError(f"{store.address}: dataset.path is a file; use a folder, new or of this dataset")
    if (text := store.read(NAME)) is None:
        foreign = sorted(name for name in store.entries() if not _is_ours(name))
        if foreign:
            raise DataError(
                f"{store.address}: the folder contains {foreign[0]!r} and no {NAME}, so it is no rayio dataset; "
                f"use a new or empty folder as dataset.path, or dataset.external=true to read files of another program"
            )
        return None
    try:
        return _parse(parse_json(text))
    except (ValueError, TypeError, KeyError) as error:
        message = f"{store.full(NAME)}: not a manifest of this version ({error}); delete the folder"
        raise DataError(message) from error


def _is_ours(name: str) -> bool:
    return name in IGNORED or name.startswith(NAME)


def _parse(fields: Any) -> Manifest:
    if not isinstance(fields, dict):
        raise TypeError("expected a mapping")
    if fields.get("version") != VERSION:
        raise ValueError(f"expected version {VERSION}, found {fields.get('version')!r}")
    chunk = fields.get("chunk")  # rayio 0.1 wrote its only option at the top level
    fields.setdefault("options", {} if chunk is None else {"chunk": chunk})
    if not isinstance(fields["options"], dict):
        raise TypeError("options must be a mapping")
    return Manifest(**{name: fields[name] for name in Manifest.__slots__})
