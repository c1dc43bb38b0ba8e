"""A watched loop before its first step: its arguments, rank, machine and loader."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rayio.engines.loaders.watched_workers import is_dataloader, starts_workers
from rayio.errors import RunError

#: Arguments of a DataLoader that the scenario of the run has.
FACTS = ("num_workers", "prefetch_factor", "drop_last", "pin_memory", "persistent_workers", "in_order")


def check_arguments(loader: Any, out: str | Path, batch_size: int | None, accumulate: int) -> None:
    """Refuse arguments of a watch that cannot be.

    Raises:
        RunError: names the argument, its value and what to give.
    """
    for name, number, what in (
        ("accumulate", accumulate, "batches of an update"),
        ("batch_size", 1 if batch_size is None else batch_size, "samples of a batch"),
    ):
        if type(number) is not int or number < 1:
            raise RunError(f"rayio.watch: {name}={number!r} is no whole number from 1; give the {what}")
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        raise RunError(
            f"rayio.watch: loader={loader!r:.80} is nothing to iterate over; give a DataLoader, or another iterable of "
            "batches"
        )
    if not isinstance(out, (str, Path)) or not str(out):
        raise RunError(f"rayio.watch: out={out!r} is no folder; give one to make, such as runs/mine")


def ranks_here() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    Raises:
        RunError: ``RANK`` and ``WORLD_SIZE`` are no ranks.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    texts = {name: os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
    for name, text in texts.items():
        if not text.isdecimal():
            raise RunError(f"{name}={text!r} in the environment is no whole number; set it as torchrun does")
    rank, world_size = int(texts["RANK"]), int(texts["WORLD_SIZE"])
    if rank >= world_size:
        raise RunError(f"RANK={rank} in the environment, but WORLD_SIZE={world_size}; set both as torchrun does")
    return rank, world_size


def job_here(world_size: int) -> str:
    """Return what the ranks of one job share, and those of another do not."""
    if world_size == 1:
        return ""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID")
    return "/".join(os.environ.get(name, "") for name in names)


def facts_of(loader: Any, batch_size: int | None, accumulate: int) -> dict[str, Any]:
    """Return what a loader tells of itself; a loader other than PyTorch's tells its length at most."""
    facts: dict[str, Any] = {"kind": type(loader).__name__, "is_dataloader": is_dataloader(loader)}
    with suppress(TypeError, AttributeError, NotImplementedError):
        facts["batches"] = len(loader)
    if facts["is_dataloader"]:
        facts |= {name: getattr(loader, name, None) for name in FACTS}
        facts["is_iterable"] = isinstance(loader.dataset, sys.modules["torch.utils.data"].IterableDataset)
        facts["batch_size"] = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        with suppress(TypeError, AttributeError, NotImplementedError):
            facts["samples"] = len(loader.dataset)
    if batch_size is not None:
        facts["batch_size"] = batch_size
    if starts_workers(loader) is not loader:
        facts["ahead"] = 1  # Accelerate's loaders take a batch ahead, to know the last one
    if accumulate > 1:
        facts["together"] = accumulate
    return {name: fact for name, fact in facts.items() if isinstance(fact, bool | int | str)}


def boot_id() -> str:
    """Return what tells this machine's boot from others."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def has_accelerator() -> bool:
    """Return True if PyTorch sees an accelerator."""
    accelerator = getattr(sys.modules.get("torch"), "accelerator", None)
    with suppress(Exception):  # a driver that is broken is not ours to report
        return accelerator is not None and bool(accelerator.is_available())
    return False
