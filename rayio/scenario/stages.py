"""The section ``stages``: processes of a workflow that come and go during training, with what they read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from rayio.scenario.address import Path
from rayio.schema.distribution import NO_TIME, BytesDistribution, Distribution, Of
from rayio.schema.fields import (
    Bytes,
    JsonSchema,
    Name,
    Reads,
    RefusedError,
    Section,
    each,
    none_is_null,
    whole,
)
from rayio.units import SECONDS

#: Stages of a workflow, processes of a stage, and files that all processes of a stage read or write.
MAX_STAGES, MAX_PROCESSES, MAX_FILES = 32, 1_000_000, 10_000_000
#: Bytes of a file.
MAX_FILE_BYTES = 1 << 44

_Times = Annotated[Distribution, Of(SECONDS)]
_Files = Annotated[int, whole(1, 1 << 16)]


class StageFiles(Section):
    """Files that each process of a stage reads or writes, with equal distributions of sizes."""

    files: _Files = Field(1, description="Files of a process.")
    size: BytesDistribution = Field(description="Bytes of a file, drawn for each file; at least 1.")
    request_bytes: Bytes | None = Field(
        None, description="Bytes of a request; the default is the whole file in one request."
    )
    fsync: bool = Field(False, description="Wait until each file is durable, before the process goes on.")

    def requests(self, num_bytes: int) -> int:
        """Return the size of the requests that read or write a file."""
        return num_bytes if self.request_bytes is None else self.request_bytes


class StageReads(Section):
    """Files that each process of a stage reads: its own input files, or files that another stage wrote."""

    files: _Files | None = Field(
        None, description="Input files of a process, which a run generates before it begins; not with of."
    )
    size: BytesDistribution | None = Field(None, description="Bytes of an input file, drawn for each file; at least 1.")
    of: Name | None = Field(
        None,
        description="The stage whose files are read; it is in after or follows. Process i of n reads the files of "
        "process ⌊i × m / n⌋ of m.",
    )
    request_bytes: Bytes | None = Field(
        None, description="Bytes of a request; the default is the whole file in one request."
    )

    @property
    def inputs(self) -> StageFiles | None:
        """The input files; None if another stage wrote them."""
        if self.size is None:
            return None
        return StageFiles(files=self.files or 1, size=self.size, request_bytes=self.request_bytes)

    def refusal(self) -> tuple[str, str, Any] | None:
        """Return the reason why these files are impossible, its key and its value; None if they are possible."""
        if (self.of is None) == (self.size is None):
            return "needs size (input files) or of (files of another stage), and not both", "size", None
        if self.of is not None and self.files is not None:
            return "the stage in of decides how many files there are; leave files out", "files", self.files
        return None


def _reads(value: Any) -> StageReads | None:
    if value is None or value == "none":
        return None
    reads = StageReads.model_validate(value)
    if (refused := reads.refusal()) is not None:
        raise RefusedError(*refused)
    return reads


def _reads_schema() -> JsonSchema:
    return {"anyOf": [StageReads.model_json_schema(), {"const": "none"}, {"type": "null"}]}


def _writes(value: Any) -> StageFiles | None:
    return None if none_is_null(value) is None else StageFiles.model_validate(value)


def _writes_schema() -> JsonSchema:
    return {"anyOf": [StageFiles.model_json_schema(), {"const": "none"}, {"type": "null"}]}


def _names(value: Any) -> tuple[str, ...]:
    if value is None or value == "none":
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise RefusedError("must be the name of a stage, or a list of names")
    return tuple(names)


_NAME: JsonSchema = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]*$"}
_NAMES: JsonSchema = {"anyOf": [_NAME, {"type": "array", "items": _NAME}, {"const": "none"}, {"type": "null"}]}


class Stage(Section):
    """Processes of one sort. Each reads its files, then computes and writes its files in turns, and ends."""

    name: Name = Field(description="Name of the stage, for other stages, spans and results.")
    count: Annotated[int, whole(1, MAX_PROCESSES)] = Field(description="Processes of the stage.")
    arrivals: _Times = Field(
        NO_TIME,
        description="Time from the arrival of a process to that of the next one. The first arrives at its begin.",
    )
    at_once: Annotated[int | None, whole(1, MAX_PROCESSES, or_none=True)] = Field(
        None, description="Most processes of the stage that run at once; later ones wait. The default is no limit."
    )
    after: Annotated[tuple[str, ...], Reads(_names, _NAMES, list)] = Field(
        (), description="Stages that end before this one begins."
    )
    follows: Name | None = Field(
        None,
        description="A stage in step: process i of n begins after process ⌊i × m / n⌋ of the m there has ended.",
    )
    compute: _Times = Field(
        NO_TIME, description="Time that a process computes, in equal parts, each before a file that it writes."
    )
    reads: Annotated[StageReads | None, Reads(_reads, _reads_schema)] = Field(
        None, description="Files that a process reads before it computes."
    )
    writes: Annotated[StageFiles | None, Reads(_writes, _writes_schema)] = Field(
        None, description="Files that a process writes."
    )
    opens: Annotated[int, whole(0, 1 << 16)] = Field(
        0,
        description="Opens of a process without a read or a write, of its files in turn, after all else. They stand "
        "for calls without bytes, such as stat and mkdir.",
    )
    path: Path | None = Field(
        None, description="Folder of its files; the default is stages/<name of the scenario>/<name of the stage>."
    )

    @property
    def begins_after(self) -> tuple[str, ...]:
        """The stages that this one depends on."""
        return (*self.after, *(() if self.follows is None else (self.follows,)))


def partner(process: int, count: int, others: int) -> int:
    """Return the process of another stage, with ``others`` processes, that belongs to one of ``count``.

    >>> [partner(process, 6, 3) for process in range(6)], [partner(process, 2, 6) for process in range(2)]
    ([0, 0, 1, 1, 2, 2], [0, 3])
    """
    return process * others // count


def _stages(value: Any) -> tuple[Stage, ...]:
    if value is None or value == "none":
        return ()
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not all(isinstance(stage, (Mapping, Stage)) for stage in value)
    ):
        raise RefusedError("must be a list of mappings with name and count")
    if len(value) > MAX_STAGES:
        raise RefusedError(f"has {len(value)} stages; at most {MAX_STAGES} are possible")
    return each(value, Stage.model_validate)


def _schema() -> JsonSchema:
    return {"anyOf": [{"type": "array", "items": Stage.model_json_schema()}, {"const": "none"}, {"type": "null"}]}


def _written(stages: tuple[Stage, ...]) -> list[dict[str, Any]]:
    return [stage.model_dump(mode="json", exclude_defaults=True) for stage in stages]


Stages = Annotated[tuple[Stage, ...], Reads(_stages, _schema, _written)]
