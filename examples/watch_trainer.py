"""What does a training with Hugging Face's Trainer wait for? A callback that watches it.

Without Transformers installed, this script calls the hooks of the callback as the Trainer does.
"""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor, zeros
from torch.utils.data import DataLoader, Dataset

import rayio

try:
    from transformers import TrainerCallback
except ImportError:
    TrainerCallback = object


class Watching(TrainerCallback):  # type: ignore[misc]
    """A callback for the Trainer: ``Trainer(..., callbacks=[Watching(out="runs/mine")])``."""

    def __init__(self, out: str) -> None:
        self.out = out
        self.watched: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Watch the loader, before its workers start."""
        accumulate = args.gradient_accumulation_steps
        self.watched = rayio.watch(known["train_dataloader"], out=self.out, accumulate=accumulate)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Begin an epoch."""
        self.watched.begin_epoch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Record that the batches of a step are there."""
        self.watched.got_batch()

    def on_substep_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Record that one of several accumulated batches is done; the next one is there already."""
        rayio.step()
        self.watched.got_batch()

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Record the end of a step."""
        rayio.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Record that the time since the last step was an evaluation."""
        if self.watched is not None:
            self.watched.paused("evaluate")

    def on_save(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Record that the time since the last step was a checkpoint."""
        self.watched.paused("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """End the watch."""
        self.watched.close()


class Slow(Dataset):  # type: ignore[misc]
    """Samples that take 5 ms to read."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Tensor:
        with rayio.reading():
            time.sleep(0.005)
        return zeros(8)


def train_as_the_trainer_does(callback: Any, loader: Any, epochs: int) -> None:
    """Call the hooks in the order of the Trainer."""
    args: Any = type("TrainingArguments", (), {"gradient_accumulation_steps": 1})()
    callback.on_train_begin(args, None, None, train_dataloader=loader)
    for _ in range(epochs):
        callback.on_epoch_begin(None, None, None)
        for _batch in loader:
            callback.on_step_begin(None, None, None)
            time.sleep(0.005)
            callback.on_step_end(None, None, None)
        time.sleep(0.01)
        callback.on_save(None, None, None)
    callback.on_train_end(None, None, None)


def main() -> None:
    """Train for two epochs, and print the largest loss."""
    loader = DataLoader(Slow(), batch_size=4, num_workers=1)
    train_as_the_trainer_does(Watching(out="runs/trainer"), loader, epochs=2)
    run = rayio.Run.open("runs/trainer")
    print(f"{run.result.steps} steps; most time was lost in {run.explain(simulate=False).verdict.cause}")


if __name__ == "__main__":
    main()
