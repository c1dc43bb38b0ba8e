"""The section ``checkpoint``: what is saved, when, by whom."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rayio.scenario.address import Path
from rayio.scenario.every import Every
from rayio.scenario.fields import Bytes, Flag, Section, choice
from rayio.scenario.writers import AnyWriters, RankZero


class ModelState(Section):
    """What a checkpoint holds."""

    keys_not_yet = frozenset({"layers", "hidden", "parallelism"})
    bytes: Bytes = Field(description="Bytes of the model's state.")


class Checkpoint(Section):
    """What is saved, when, by whom."""

    every: Every = Field(description="When a checkpoint is due.")
    path: Path = Field(description="Folder of the checkpoints.")
    model: ModelState = Field(description="What a checkpoint holds.")
    writers: AnyWriters = Field(
        RankZero(),
        description="Who saves: rank_zero one state, all_ranks a whole copy each, {dedicated: n} one state in n parts.",
    )
    asynchronous: Annotated[Literal[False], choice(False, later=(True,))] = Field(
        False, description="Whether training goes on while a checkpoint is written; not yet."
    )
    fsync: Flag = Field(True, description="Whether files are forced to the device before a checkpoint counts as done.")
    request_bytes: Bytes = Field(4 << 20, description="Bytes per write request.")
