"""A PyTorch training script over the files of a rayio dataset, its ranks processes of their own: what rayio is held to.

It reads in one of two ways, ``reader``:

``numpy``
    What users write: ``numpy.load`` of one npz file per sample, the default collation. zipfile verifies the CRC-32 of
    the member; a sample is in memory of its own first, and is copied into the batch.
``same``
    The best that can be written, which reads as rayio's reader does: it looks at the zip's directory and headers, and
    reads each sample by one call into the memory in which PyTorch's workers share the batch. Id and XXH3 of every
    sample are verified. Nothing is collated.

A DistributedSampler, workers that stay; a step takes a batch, sleeps for the compute and meets the other ranks. They
meet as rayio's do, so that neither side pays for another barrier than the other: a rank says in shared memory when its
compute will be over, and goes on when the last one's is. (A ``multiprocessing.Barrier`` would add 0.8 to 1.4 ms a
step.) A rank that is alone and computes nothing only takes batches.

Called with one argument, a JSON object (``folder``, ``seed``, ``reader``, ``ranks``, ``batch``, ``workers``,
``prefetch``, ``epochs``, ``steps`` of an epoch or null, ``compute``), it prints one line of JSON: ``epochs``, for each
its seconds, from the end of the epoch before to the end of the last step of all ranks; of what the first rank got after
its first batch ``batches``, ``bytes``, ``seconds``, and ``cpu_seconds``, of it and its workers. By itself it does
nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from rayio.data.formats.sample import Place, check

#: How often a rank looks for the others that have not said when their compute will be over.
LOOK_SECONDS = 50e-6
#: Where the rows of ``x.npy`` begin in a file as rayio writes it, and the length of the end of a zip's directory.
ROWS_AT, END = 183, 22


class Samples(Dataset[Any]):  # type: ignore[misc]
    """One sample per file, by ``numpy.load``."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(map(str, Path(folder).rglob("*.npz")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with np.load(self.paths[index]) as archive:
            return torch.from_numpy(archive["x"][0])


class Batches(Samples):
    """The same files, a whole batch at once, straight into its memory; all samples are of one size."""

    def __init__(self, folder: str, seed: int) -> None:
        super().__init__(folder)
        self.seed = seed
        with np.load(self.paths[0]) as archive:
            self.nbytes = archive["x"].shape[1]

    def __getitems__(self, chosen: list[int]) -> torch.Tensor:
        length = len(chosen) * self.nbytes
        if get_worker_info() is None:
            tensor = torch.empty(length, dtype=torch.uint8)
        else:
            tensor = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(length))
        memory = tensor.numpy().data
        for place, number in enumerate(chosen):
            self._read(number, memory[place * self.nbytes : (place + 1) * self.nbytes])
        return tensor.view(len(chosen), self.nbytes)

    def _read(self, number: int, into: memoryview) -> None:
        file = os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            end, head = os.pread(file, END, size - END), os.pread(file, ROWS_AT, 0)
            if end[:4] != b"PK\5\6" or head[:4] != b"PK\3\4" or b"(1, %d)" % self.nbytes not in head:
                raise ValueError(f"{self.paths[number]} is not laid out as rayio writes it")
            if os.preadv(file, [into], ROWS_AT) < self.nbytes:
                raise ValueError(f"{self.paths[number]} is truncated")
        finally:
            os.close(file)
        check(into, self.seed, Place(self.paths[number], number, 0))


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """Collate nothing."""
    return tensor


def meet(said: torch.Tensor, rank: int, number: int, deadline: float) -> None:
    """Say when this rank's compute is over, and return when that of the last rank is."""
    said[rank, 1] = deadline
    said[rank, 0] = number
    time.sleep(max(0.0, deadline - time.perf_counter()))
    while bool((said[:, 0] < number).any()):
        time.sleep(LOOK_SECONDS)
    of_this_step = said[:, 1][said[:, 0] == number]  # a rank that is ahead was met by all before it went on
    time.sleep(max(0.0, float(of_this_step.max()) - time.perf_counter()))


def cpu_seconds() -> float:
    """CPU time of this process and its workers so far."""
    return time.process_time() + sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())


def train(rank: int, told: dict[str, Any], said: torch.Tensor, ends: torch.Tensor, rate: torch.Tensor) -> None:
    """Live one rank's life; ``ends`` gets the time at which each epoch ended, ``rate`` what the first rank got."""
    torch.set_num_threads(1)
    by_numpy, is_paced = told["reader"] == "numpy", told["ranks"] > 1 or told["compute"] > 0
    samples = Samples(told["folder"]) if by_numpy else Batches(told["folder"], told["seed"])
    sampler: Any = DistributedSampler(samples, told["ranks"], rank, shuffle=True, drop_last=True)
    loader = DataLoader(
        samples, batch_size=told["batch"], sampler=sampler, drop_last=True, num_workers=told["workers"],
        prefetch_factor=told["prefetch"], persistent_workers=True, collate_fn=None if by_numpy else as_it_is,
    )  # fmt: skip
    number = nbytes = 0
    first = worked = 0.0
    meet(said, rank, 1, time.perf_counter())  # ranks begin together
    ends[rank, 0] = time.perf_counter()
    for epoch in range(told["epochs"]):
        sampler.set_epoch(epoch)
        for batch in islice(loader, told["steps"]):
            if number == 0:
                first, worked = time.perf_counter(), cpu_seconds()
            else:
                nbytes += batch.numel()
            number += 1
            if is_paced:
                meet(said, rank, number + 1, time.perf_counter() + told["compute"])
        ends[rank, epoch + 1] = time.perf_counter()
    if rank == 0:
        rate[:] = torch.tensor([number - 1, nbytes, time.perf_counter() - first, cpu_seconds() - worked])


def main() -> None:
    told = json.loads(sys.argv[1])
    said = torch.zeros(told["ranks"], 2, dtype=torch.float64).share_memory_()
    ends = torch.zeros(told["ranks"], told["epochs"] + 1, dtype=torch.float64).share_memory_()
    rate = torch.zeros(4, dtype=torch.float64).share_memory_()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=train, args=(rank, told, said, ends, rate)) for rank in range(told["ranks"])]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(1)
    names = ("batches", "bytes", "seconds", "cpu_seconds")
    result = dict(zip(names, rate.tolist(), strict=True)) | {"epochs": ends.max(dim=0).values.diff().tolist()}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__" and sys.argv[1:]:
    main()
