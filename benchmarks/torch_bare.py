"""A bare PyTorch training loop over the files of a rayio dataset, as a process of its own.

Nothing of rayio is in its path but the reader of npz files. Its Dataset reads a whole batch into the memory in which
PyTorch's workers share tensors, as ``loader.kind: torch`` does; the loop takes a batch and sleeps. Called with one
argument, a JSON object (``folder``, ``scenario``, ``compute``), it prints one line of JSON: for each epoch its seconds,
from the end of the epoch before. By itself it does nothing.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, get_worker_info

from rayio.data.formats import FORMATS, layout_of
from rayio.data.layout import Batch
from rayio.scenario.load import build


class Batches(Dataset[Any]):  # type: ignore[misc]
    """Whole batches, one sample per file."""

    def __init__(self, folder: Path, scenario: dict[str, Any]) -> None:
        wanted = build(scenario)
        self.folder = folder
        self.layout = layout_of(wanted)
        self.form = FORMATS[wanted.dataset.format]

    def __len__(self) -> int:
        return self.layout.num_files

    def __getitem__(self, chosen: list[int]) -> torch.Tensor:
        files = np.array(chosen, np.int64)
        sizes = self.layout.sample_bytes_of(files)
        nbytes = int(sizes.sum())
        if get_worker_info() is None:
            tensor = torch.empty(nbytes, dtype=torch.uint8)
        else:
            tensor = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(nbytes))
        batch = Batch(0, 0, 0, files, files, np.zeros_like(files), sizes)
        self.form.read(self.open, self.layout, batch, tensor.numpy())
        return tensor

    def open(self, path: str) -> BinaryIO:
        """Open a file of the dataset, unbuffered."""
        return cast(BinaryIO, (self.folder / path).open("rb", buffering=0))


def main() -> None:
    told = json.loads(sys.argv[1])
    keys, epochs, compute = told["scenario"]["loader"], told["scenario"]["train"]["epochs"], told["compute"]
    dataset = Batches(Path(told["folder"]), told["scenario"])
    loader = DataLoader(
        dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), keys["batch_size"], drop_last=True),
        num_workers=keys["num_workers"], prefetch_factor=keys["prefetch_factor"], persistent_workers=True,
    )  # fmt: skip
    seconds, before = [], time.perf_counter()
    for _ in range(epochs):
        for _tensor in loader:
            time.sleep(compute)
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__" and sys.argv[1:]:
    main()
