"""Kinds of ``checkpoint.model``: the state that a checkpoint holds, and its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rayio.kinds import STATES
from rayio.scenario.topology import Topology
from rayio.schema.choice import KindOf
from rayio.schema.fields import Bytes, Reads, RefusedError, Section
from rayio.units import BYTES

#: The most files of a state that is a list of them.
MAX_FILES = 1 << 12
#: Characters of a file's name.
MAX_NAME = 100


class Part(NamedTuple):
    """A file of a state: its name and its bytes. ``of`` is what it holds; empty is unknown."""

    name: str
    num_bytes: int
    of: str = ""


class State(Section):
    """The state that a checkpoint holds.

    >>> files = {"graph": "7 MB", "weights": "32 MB"}
    >>> state = load("unet3d-small", {"checkpoint.model": {"kind": "files", "files": files}}).checkpoint.model
    >>> [part.name for part in state.parts], state.num_bytes
    (['graph', 'weights'], 39000000)
    """

    kind: str

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files of the whole state, as a process that has all of it saves them; a single one may have no name."""
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole state."""
        return sum(part.num_bytes for part in self.parts)

    def saved_by(self, rank: int, topology: Topology) -> tuple[Part, ...]:
        """Return the files that a rank saves if each saves its part of the model; see ``undividable``."""
        raise NotImplementedError

    def refusals(self, topology: Topology) -> Iterator[str]:
        """Yield a line for each reason why no ranks can have this model divided as ``train.parallelism`` says."""
        yield from ()

    def uneven(self, topology: Topology) -> Iterator[str]:
        """Yield a line for each division that leaves a rest, which frameworks fill up."""
        yield from ()

    def undividable(self, topology: Topology) -> Iterator[str]:
        """Yield a line for each reason why ranks cannot each save their part of the model."""
        yield (
            "checkpoint.writers=parallel: follows the shape of a model; give checkpoint.model={kind: transformer, "
            "layers: ..., hidden: ..., ...}, or {kind: sized, ...}"
        )

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> Any:
        written: dict[str, Any] = handler(self)
        return {key: value for key, value in written.items() if key != "kind"} if self.kind in written else written


class FlatState(State):
    """A state of which only the size is known."""

    kind: Literal["bytes"] = "bytes"
    bytes: Bytes = Field(description="Bytes of the model's state.")

    @property
    def parts(self) -> tuple[Part, ...]:
        """One file."""
        return (Part("", self.bytes),)


def _files(value: Any) -> tuple[tuple[str, int], ...]:
    if isinstance(value, Mapping):
        named: Sequence[tuple[Any, Any]] = [*value.items()]
    elif isinstance(value, (list, tuple)):
        named = [(f"file-{number:05d}", size) for number, size in enumerate(value)]
        if value and all(isinstance(each, tuple) for each in value):
            named = value
    else:
        named = []
    if not named:
        raise RefusedError("must be a list of sizes, such as [4 KB, 32 MB], or a mapping of file names to sizes")
    if len(named) > MAX_FILES:
        raise RefusedError(f"has {len(named)} files; {MAX_FILES} are the most")
    for name, _ in named:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > MAX_NAME:
            raise RefusedError(
                f"a file's name must be at most {MAX_NAME} letters, digits, dots, dashes and underscores", str(name)
            )
    return tuple((name, read_size(name, size)) for name, size in named)


def read_size(name: str, value: Any) -> int:
    """Return a whole number of bytes greater than 0, of an entry of a list or mapping.

    Raises:
        RefusedError: it is none.
    """
    try:
        number = BYTES.bounded(value)
    except ValueError as error:
        raise RefusedError(str(error), name, value) from None
    if number < 1 or number != round(number):
        raise RefusedError(f"must be a whole number of bytes greater than 0, such as {BYTES.example}", name, value)
    return round(number)


def _written(files: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {name: BYTES.exact(size) for name, size in files}


_SIZE = {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": BYTES.most}, BYTES.schema]}
_FILES_SCHEMA = {
    "anyOf": [
        {"type": "array", "items": _SIZE, "minItems": 1, "maxItems": MAX_FILES},
        {"type": "object", "additionalProperties": _SIZE, "minProperties": 1, "maxProperties": MAX_FILES},
    ]
}


class FileList(State):
    """A state of several files."""

    kind: Literal["files"] = "files"
    files: Annotated[tuple[tuple[str, int], ...], Reads(_files, _FILES_SCHEMA, _written)] = Field(
        description="Bytes of each file: a list, or a mapping of file names to sizes."
    )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files as listed."""
        return tuple(Part(name, size) for name, size in self.files)


AnyState = Annotated[
    State,
    KindOf(
        STATES,
        "{bytes: ...}, {files: [...]}, {kind: transformer, layers: ..., hidden: ..., ...} or {kind: sized, ...}",
    ),
]
