"""A PyTorch training script as users write it, over the files of a rayio dataset: ranks are processes of their own.

One npz file per sample, ``numpy.load``, the default collation, a DistributedSampler, workers that stay; a step takes a
batch, sleeps for the compute and meets the other ranks. They meet as rayio's do, so that neither side pays for another
barrier than the other: a rank says in shared memory when its compute will be over, and goes on when the last one's is.
(A ``multiprocessing.Barrier`` would add 0.8 to 1.4 ms a step.)

Called with one argument, a JSON object (``folder``, ``ranks``, ``batch``, ``workers``, ``prefetch``, ``epochs``,
``steps``, ``compute``), it prints one line of JSON: for each epoch its seconds, from the end of the epoch before to the
end of the last step of all ranks. By itself it does nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

#: How often a rank looks for the others that have not said when their compute will be over.
LOOK_SECONDS = 50e-6


class Samples(Dataset[Any]):  # type: ignore[misc]
    """One sample per file."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(map(str, Path(folder).rglob("*.npz")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with np.load(self.paths[index]) as archive:
            return torch.from_numpy(archive["x"][0])


def meet(said: torch.Tensor, rank: int, number: int, deadline: float) -> None:
    """Say when this rank's compute is over, and return when that of the last rank is."""
    said[rank, 1] = deadline
    said[rank, 0] = number
    time.sleep(max(0.0, deadline - time.perf_counter()))
    while bool((said[:, 0] < number).any()):
        time.sleep(LOOK_SECONDS)
    of_this_step = said[:, 1][said[:, 0] == number]  # a rank that is ahead was met by all before it went on
    time.sleep(max(0.0, float(of_this_step.max()) - time.perf_counter()))


def train(rank: int, told: dict[str, Any], said: torch.Tensor, ends: torch.Tensor) -> None:
    """Live one rank's life; ``ends`` gets the time at which each epoch ended."""
    torch.set_num_threads(1)
    samples = Samples(told["folder"])
    sampler: Any = DistributedSampler(samples, told["ranks"], rank, shuffle=True, drop_last=True)
    loader = DataLoader(
        samples, batch_size=told["batch"], sampler=sampler, drop_last=True, num_workers=told["workers"],
        prefetch_factor=told["prefetch"], persistent_workers=True,
    )  # fmt: skip
    number = 0
    meet(said, rank, 1, time.perf_counter())  # ranks begin together
    ends[rank, 0] = time.perf_counter()
    for epoch in range(told["epochs"]):
        sampler.set_epoch(epoch)
        for _batch in islice(loader, told["steps"]):
            number += 1
            meet(said, rank, number + 1, time.perf_counter() + told["compute"])
        ends[rank, epoch + 1] = time.perf_counter()


def main() -> None:
    told = json.loads(sys.argv[1])
    said = torch.zeros(told["ranks"], 2, dtype=torch.float64).share_memory_()
    ends = torch.zeros(told["ranks"], told["epochs"] + 1, dtype=torch.float64).share_memory_()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, told, said, ends)) for rank in range(told["ranks"])]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(1)
    sys.stdout.write(json.dumps(ends.max(dim=0).values.diff().tolist()) + "\n")


if __name__ == "__main__" and sys.argv[1:]:
    main()
