"""AU of steps that what was prefetched before them carried is said to be that, and what storage gives is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rayio.analyze.filled import enough
from rayio.analyze.gate import SHORT_RUN
from rayio.cli import main
from rayio.records.run_result import RunResult
from rayio.report.explain import explain
from rayio.report.text.doubts import TITLES
from rayio.report.text.explanation import text
from rayio.report.text.sweep import conclusions
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session import run, simulate
from rayio.session.conclude import in_memory
from rayio.study.sweeps.sweeping import sweep
from scenarios import scenario

TOO_SHORT = TITLES[SHORT_RUN]
RANKS, BATCH, SIZE, COMPUTE = 2, 2, 1 << 20, 0.05
#: Bytes per second that all ranks ask for.
DEMAND = RANKS * BATCH * SIZE / COMPUTE


def planted(gives: float, *, steps: int = 30, **more: Any) -> Scenario:
    """Ranks whose storage gives a part of what they ask for, by its bandwidth alone; 8 × 4 batches ahead."""
    model = {"first_byte": 0, "connection_bandwidth": "1 TB/s", "bandwidth": gives * DEMAND, "scope": "cluster"}
    keys = {
        "dataset__num_files": steps * RANKS * BATCH, "dataset__sample_bytes": SIZE, "storage__model": model,
        "loader__num_workers": 8, "loader__prefetch_factor": 4, "train__epochs": 1, "train__compute": COMPUTE,
    }  # fmt: skip
    return scenario(**{**keys, **more})


def told(result: RunResult) -> str:
    sentence = note_of(result)
    assert sentence is not None, result.doubts
    return sentence


def note_of(result: RunResult) -> str | None:
    return next((doubt.sentence for doubt in result.doubts or () if doubt.code == SHORT_RUN), None)


def number(pattern: str, note: str) -> float:
    found = re.search(pattern, note)
    assert found, note
    return float(found[1])


@pytest.mark.parametrize("gives", [0.3, 0.5, 0.8])
def test_an_epoch_that_was_read_ahead_is_told_and_what_the_storage_gives(gives: float) -> None:
    """All 30 batches of a rank may be read before it takes the second one; storage feeds AU B / demand, no more."""
    result = in_memory(planted(gives))
    assert result.au is not None
    assert result.au > gives * 1.05
    assert result.mib_per_second is not None
    assert result.mib_per_second * 2**20 > gives * DEMAND, "more than there is: it was read before"
    assert number(r"AU (\d\.\d+)", told(result)) == pytest.approx(gives, abs=0.02)


@pytest.mark.parametrize("which", [0, 1])
def test_the_run_that_is_asked_for_is_steady(which: int) -> None:
    note = told(in_memory(planted(0.5)))
    steps, epochs = int(number(r"epochs of (\d+) steps", note)), int(number(r"train.epochs=(\d+)", note))
    longer = in_memory(planted(0.5, **({"train__epochs": epochs} if which else {"steps": steps})))
    assert note_of(longer) is None
    assert longer.au == pytest.approx(0.5, rel=0.05)


def test_readers_that_are_too_slow_are_told_as_storage_is() -> None:
    slow = {"kind": "constant", "value": 8 * COMPUTE / BATCH / 0.6}  # 8 readers give 0.6 of what a rank takes
    assert number(r"AU (\d\.\d+)", told(in_memory(planted(50, loader__decode=slow)))) == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize(
    "keys",
    [
        {"gives": 1.3},  # storage that keeps up: short or not, its steps would go on so
        {"gives": 50, "loader__num_workers": 1, "loader__prefetch_factor": 64},
        {"gives": 0.5, "loader__num_workers": 0, "loader__prefetch_factor": 2},
        {"gives": 0.5, "steps": 700},
        {"gives": 0.5, "loader__num_workers": 2, "loader__prefetch_factor": 1, "steps": 60},
        {"gives": 0.5, "trace__level": "step"},  # nothing is known of readers
        {"gives": 50, "storage__listing": 40},  # each rank lists files once, before its first batch
    ],
)
def test_nothing_is_said_where_nothing_is_wrong(keys: dict[str, Any]) -> None:
    result = in_memory(planted(**keys))
    assert note_of(result) is None, result.doubts


@pytest.mark.parametrize(
    "name", ["unet3d-small", "unet3d-h100", "unet3d-a100", "unet3d-v100", "s3-autoscaled", "imagenet", "candle_nt3"]
)
def test_nothing_is_said_of_scenarios_that_are_packaged(name: str) -> None:
    assert note_of(in_memory(load(name))) is None


def test_the_same_is_said_on_a_clock_that_ticks(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"train__compute": "5 ms", "dataset__path": "model://small"}
    model = {"first_byte": 0, "connection_bandwidth": "1 TB/s", "bandwidth": 2.5 * DEMAND, "scope": "cluster"}
    made = run(planted(0.5, **quick, storage__model=model), engine="local", out=tmp_path / "run")
    assert number(r"AU (\d\.\d+)", told(made.result)) < 0.5


def test_explain_and_the_report_say_it_beside_a_target_that_is_met(tmp_path: Path) -> None:
    # Each of 30 readers makes one batch of the epoch, and all are there when the first step begins.
    ahead: dict[str, Any] = {
        "loader__num_workers": 30,
        "loader__decode": {"kind": "constant", "value": 60 * COMPUTE / BATCH},
    }
    made = simulate(planted(50, expect={"au": ">= 0.9"}, **ahead), out=tmp_path / "run")
    assert number(r"AU (\d\.\d+)", told(made.result)) == pytest.approx(0.5, abs=0.02)
    assert made.result.exit_code == 0
    found = explain(made.path, simulate=False)
    assert found.sentence.startswith("Waiting for the first batches took 67 % of the wall time")
    assert "No bottleneck worth removing in the counted steps" in found.sentence
    assert told(made.result) in [doubt.sentence for doubt in found.doubts]
    assert f"  warning: {TOO_SHORT}" in text(found)
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["report", str(made.path)])
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(rf'✓ target met[^<]*</span><span class="badge missed">{TOO_SHORT}', page)
    bound = explain(simulate(planted(0.5, steps=40), out=tmp_path / "bound").path)
    assert bound.prediction is None
    assert bound.sentence.endswith("No prediction: run too short.")


def test_a_sweep_says_it_once(tmp_path: Path) -> None:
    keys = {"loader.num_workers": [1, 8], "loader.prefetch_factor": [1, 4]}
    (tmp_path / "short.yaml").write_text(to_yaml(planted(0.5)))
    found = sweep(tmp_path / "short.yaml", keys, out=tmp_path / "sweep")
    lines = [line for line in conclusions(found.table) if line.startswith("warning: ")]
    assert len(lines) == 1
    assert re.match(rf"warning: 2 points \(most of all num_workers=8, prefetch_factor=4\): {TOO_SHORT}: ", lines[0])


def test_what_searches_take_stays_below() -> None:
    assert [enough(window) for window in (0, 8, 64)] == [100, 200, 1000]
