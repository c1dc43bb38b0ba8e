"""Each script of examples/ runs as it is, and answers the question that it asks."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

#: What each says in the end; the answers are those of a scenario with a seed, or true of every run.
ANSWERS = {
    "keep_busy": r"nvme keeps 1 of them busy\n(.*\n)*s3 keeps none of them busy",
    "how_many_workers": r"8 workers with prefetch_factor 2 are enough",
    "better_or_noise": r"B is 10\.\d % ± \d\.\d % faster than A; more than noise \(6 pairs",
    "watch_lightning": r"24 steps; most time was lost in \w+",
    "watch_trainer": r"24 steps; most time was lost in \w+",
    "checkpoint_interval": r"best by the sweep 3\d min, by Young and Daly 35 min: (0\.9\d|1\.0\d)$",
    "slowest_steps": r"(.*\n){7}.*\napart from compute, they spent most time in (data_wait|sync|checkpoint)",
}


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*ANSWERS}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_example_answers_its_question(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = EXAMPLES / f"{name}.py"
    assert re.search(r'^""".*\?', script.read_text()), "it begins with its question"
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(ANSWERS[name], capsys.readouterr().out)
