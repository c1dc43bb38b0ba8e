"""PyTorch's DataLoader over the files of a rayio dataset, as a process of its own: what rayio is compared with.

The Dataset is what a user would write: ``numpy.load`` of one npz file per sample, as a tensor; the default collation.
zipfile checks the CRC-32 of every member that numpy reads. Called as ``torch_loader.py FOLDER BATCH WORKERS PREFETCH
EPOCHS STEPS``, where 0 steps are all, it prints one line of JSON: the seconds between the first batch and the last, and
how many batches and bytes followed the first. By itself it does nothing.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Any]):  # type: ignore[misc]
    """One sample per file."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.npz"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with np.load(self.paths[index]) as archive:
            return torch.from_numpy(archive["x"][0])


def main() -> None:
    folder, batch, workers, prefetch, epochs, steps = Path(sys.argv[1]), *map(int, sys.argv[2:])
    loader = DataLoader(
        Samples(folder), batch_size=batch, shuffle=True, drop_last=True, num_workers=workers, prefetch_factor=prefetch,
        persistent_workers=True,
    )  # fmt: skip
    batches, first, nbytes = 0, 0.0, 0
    for _ in range(epochs):
        for tensor in islice(loader, steps or None):
            batches += 1
            if batches == 1:
                first = time.perf_counter()
            else:
                nbytes += tensor.numel()
    seconds = time.perf_counter() - first
    sys.stdout.write(json.dumps({"batches": batches - 1, "bytes": nbytes, "seconds": seconds}) + "\n")


if __name__ == "__main__" and sys.argv[1:]:
    main()
