"""The folders of stages before a run: checked, with space for all files, and with the input files of processes."""

from __future__ import annotations

import re
from functools import partial
from typing import BinaryIO

from rayio.errors import StorageError
from rayio.model.env_checkpoints import Shard
from rayio.model.plan import Plan
from rayio.reporter import Reporter
from rayio.storage.real import random_bytes
from rayio.storage.stores.opening import Store
from rayio.units import format_bytes, format_excess

#: Names of files that processes write (out) and read (in).
_FILE = re.compile(r"(in|out)-\d{7}-\d+\.bin")


def prepare_stages(plan: Plan, base: str, reporter: Reporter) -> None:
    """Check the folder of each stage, and generate the input files of its processes that are not there.

    Raises:
        StorageError: a folder holds something else, or there is too little space.
    """
    planned = plan.workflow.planned()
    for number, stage in enumerate(plan.workflow.stages):
        path = stage.path or ""
        store = plan.store(base, path)
        there = _sizes(store, path)
        missing = [
            shard
            for process in range(stage.count)
            for shard in plan.workflow.inputs(number, process)
            if there.get(shard.path) != shard.num_bytes
        ]
        needed = planned[number].written_bytes + sum(shard.num_bytes for shard in missing)
        free = store.free_bytes()
        if free is not None and needed > free:
            raise StorageError(
                f"stages[{number}].path={path}: stage {stage.name} needs {format_excess(needed, free)}, and "
                f"{format_bytes(free)} are free; use another path, or a smaller count or size"
            )
        if not missing:
            continue
        store.prepare(f"generating input files of stage {stage.name}")
        for place, shard in enumerate(missing):
            reporter.live(f"input files of stage {stage.name}: {place}/{len(missing)}", place / len(missing))
            store.write(shard.path, partial(_fill, shard), fsync=False)
        reporter.done()
        nbytes = sum(shard.num_bytes for shard in missing)
        reporter.say(f"stage {stage.name}: generated {len(missing)} input files, {format_bytes(nbytes)}")


def _sizes(store: Store, path: str) -> dict[str, int]:
    """Return the files of a stage's folder and their sizes.

    Raises:
        StorageError: the folder holds anything else.
    """
    if store.is_file:
        raise StorageError(f"{path} is a file; choose a folder for the stage's path")
    there = dict(store.sizes(""))
    for name in sorted(there):
        if _FILE.fullmatch(name) is None:
            raise StorageError(
                f"{path} holds {name}, which is no file of a stage; choose another path for the stage, or an empty "
                "folder"
            )
    return there


def _fill(shard: Shard, file: BinaryIO) -> None:
    """Write the content that a process expects: random bytes that repeat after each request."""
    content, written = random_bytes(shard.period), 0
    while written < shard.num_bytes:
        written += file.write(content[: shard.num_bytes - written]) or 0
