"""The callbacks of examples/ in the frameworks themselves, where they are installed."""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rayio

EXAMPLES = Path(__file__).parents[1] / "examples"
torch = pytest.importorskip("torch")


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """Samples that take 25 ms to read: far longer than what else a busy machine does for them."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        with rayio.reading():
            time.sleep(0.025)
        return {"x": torch.zeros(8)}


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that takes 2 ms a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        time.sleep(0.002)
        return {"loss": self.layer(x).mean()}


def example(name: str) -> Any:
    """Return the callback of a script in examples/."""
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module.Watching


def assert_reads_are_the_cause(folder: Path) -> None:
    run = rayio.Run.open(folder)
    assert run.result.steps == 16
    spans = run.spans()
    reads = spans[spans["name"] == "read"]
    assert len(reads) == 16
    assert (reads["duration_ns"] >= 100_000_000).all(), "four samples of 25 ms each"
    assert (spans["name"] == "evaluate").sum() == 2
    # A worker process starts in every epoch (unleased), in a time that depends on how busy the machine is.
    others = ("evaluate", "unleased")
    lost = {row.cause: row.seconds for row in run.explain(simulate=False).verdict.table if row.cause not in others}
    assert max(lost, key=lost.__getitem__) == "read"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back the variables that the frameworks set."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("workers", [0, 1])
def test_transformers(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, accumulate: int
) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=2, per_device_train_batch_size=4, report_to=[],
        per_device_eval_batch_size=16, dataloader_num_workers=workers, use_cpu=True, save_strategy="no",
        eval_strategy="epoch", gradient_accumulation_steps=accumulate, disable_tqdm=True,
    )  # fmt: skip
    watching = example("watch_trainer")(out=str(tmp_path / "run"))
    transformers.Trainer(
        Model(), arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[watching]
    ).train()
    assert_reads_are_the_cause(tmp_path / "run")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_lightning(home: Path, tmp_path: Path, workers: int) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(batch["x"])["loss"]

        def validation_step(self, batch: Any, number: int) -> None:
            time.sleep(0.01)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=workers)
    watching = example("watch_lightning")(loader, out=str(tmp_path / "run"))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[watching], logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Module(), loader, torch.utils.data.DataLoader(Numbers(), batch_size=16))
    assert_reads_are_the_cause(tmp_path / "run")
