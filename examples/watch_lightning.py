"""What does a training with Lightning wait for? A callback that watches it.

Without Lightning installed, this script calls the hooks of the callback as Lightning's Trainer does.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, zeros
from torch.utils.data import DataLoader, Dataset

import rayio

try:
    from lightning.pytorch import Callback
except ImportError:
    Callback = object


class Watching(Callback):  # type: ignore[misc]
    """A callback for Lightning's Trainer: ``Trainer(callbacks=[Watching(loader, out="runs/mine")])``."""

    def __init__(self, loader: Any, out: str) -> None:
        self.loader, self.out = loader, out
        self.watched: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Watch the loader, once this process knows its rank and before workers start."""
        if stage == "fit" and self.watched is None:
            self.watched = rayio.watch(self.loader, out=self.out)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch."""
        self.watched.begin_epoch()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Record that a batch is there."""
        self.watched.got_batch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the end of a step."""
        rayio.step()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record that the time since the last step was an evaluation."""
        if self.watched is not None and not trainer.sanity_checking:
            self.watched.paused("evaluate")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the watch."""
        self.watched.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the watch of a training that failed."""
        if self.watched is not None:
            self.watched.close(failed=True)


class Slow(Dataset):  # type: ignore[misc]
    """Samples that take 5 ms to read."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Tensor:
        with rayio.reading():
            time.sleep(0.005)
        return zeros(8)


def train_as_lightning_does(callback: Any, loader: Any, epochs: int) -> None:
    """Call the hooks in the order of Lightning's Trainer."""
    trainer: Any = type("Trainer", (), {"sanity_checking": False})()
    callback.setup(trainer, None, "fit")
    for _ in range(epochs):
        callback.on_train_epoch_start(trainer, None)
        for number, batch in enumerate(loader):
            callback.on_train_batch_start(trainer, None, batch, number)
            time.sleep(0.005)
            callback.on_train_batch_end(trainer, None, None, batch, number)
        time.sleep(0.01)
        callback.on_validation_end(trainer, None)
    callback.on_train_end(trainer, None)


def main() -> None:
    """Train for two epochs, and print the largest loss."""
    loader = DataLoader(Slow(), batch_size=4, num_workers=1)
    train_as_lightning_does(Watching(loader, out="runs/lightning"), loader, epochs=2)
    run = rayio.Run.open("runs/lightning")
    print(f"{run.result.steps} steps; most time was lost in {run.explain(simulate=False).verdict.cause}")


if __name__ == "__main__":
    main()
