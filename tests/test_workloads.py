"""Packaged scenarios of published workloads come to what docs/workloads.md shows, next to what was published."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rayio.records.checked_facts import UNMET
from rayio.report.text.checked_facts import markdown
from rayio.scenario.derive import world_size
from rayio.scenario.facts import FACTS
from rayio.scenario.load import load, packaged
from rayio.study.facts.checking import check_published, with_facts
from scenarios import simulated

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/workloads.md").read_text()
#: Scenarios whose simulation in full takes more than a second.
LONG = {
    "candle_nt3", "climate", "cosmoflow", "cosmoflow-v100", "dlrm-b200", "ffn", "hepcnn", "llama3-405b", "llama3-1t",
    "llm-pretrain", "megatron-deepspeed", "mummi", "resnet50-a100", "resnet50-h100", "resnet50-v100", "retinanet-b200",
}  # fmt: skip
#: Scenarios with numbers of DLIO or MLPerf Storage.
CONFIGURED = [
    name for name in packaged()
    if name.partition("-")[0] in (
        "resnet50", "cosmoflow", "unet3d", "bert", "dlrm", "flux", "retinanet", "llama3", "megatron",
    ) and name != "cosmoflow" and not name.endswith("-small")
]  # fmt: skip


def shown() -> dict[str, str]:
    """Return the rows of the page's table by workload."""
    rows: dict[str, list[str]] = {}
    name = ""
    table = PAGE.partition("| workload | fact |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        name = line.split("|")[1].strip(" `") or name
        rows.setdefault(name, []).append(line)
    return {name: "\n".join(lines) for name, lines in rows.items()}


SHOWN = shown()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG), id=name) for name in SHOWN]
)
def test_a_workload_comes_to_what_the_page_shows(name: str) -> None:
    checked = check_published([name])
    assert not [fact for fact in checked.scenarios[0].facts if fact.verdict in UNMET]
    table, _, reasons = markdown(checked).partition("\n\n")
    assert "\n".join(table.splitlines()[2:]) == SHOWN[name]
    assert reasons in PAGE


def test_the_page_has_every_scenario_with_facts_and_no_other() -> None:
    assert list(SHOWN) == with_facts()


def test_the_page_names_every_packaged_scenario_with_its_source() -> None:
    table = PAGE.partition("| source | scenarios |")[2].partition("\n\n")[0]
    names = set[str]()
    for name in re.findall(r"`([^`]+)`", table):
        stem, _, kinds = name.rstrip("}").partition("{")
        names |= {f"{stem}{kind}" for kind in kinds.split(",")}
    examples = {"s3-autoscaled"}
    assert names == {name for name in packaged() if not name.endswith("-small")} - examples


def test_the_page_has_every_fact() -> None:
    for name, measure in FACTS.items():
        assert f"| `{name}` | {measure.dimension.name} | {measure.about} |" in PAGE


@pytest.mark.parametrize("name", packaged())
def test_a_packaged_scenario_says_where_its_numbers_come_from_in_few_lines(name: str) -> None:
    lines = (ROOT / "scenarios" / f"{name}.yaml").read_text().splitlines()
    assert len(lines) <= 60
    assert lines[0].startswith("# ")
    wanted = load(name)
    assert wanted.name == name
    assert wanted.source
    if wanted.published and name not in CONFIGURED:
        assert "Published:" in wanted.source
        assert "Inferred:" in wanted.source


def test_a_source_that_contradicts_itself_does_so_by_its_own_numbers() -> None:
    """The reasons of the scenarios, in published numbers alone."""
    assert pytest.approx(0.014, abs=0.0005) == 60.54e9 / 8 / 1.2e9 / (110 * 4.1), "imagenet: not 7 %"
    assert 60.54e9 > 1.5 * 40e9, "imagenet: more than all files"
    assert pytest.approx(101e3, rel=0.01) == 0.06 * 6 * 9e6 / 32, "cosmic_tagger: more than 50 KB"
    assert pytest.approx(320, rel=0.01) == 0.07 * 127.91e6 / 28e3, "ffn: of one sample of 32 KiB"
    assert 600e6 / 400e6 / (60 * 46.27) < 0.01, "candle: consistent"


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_scenario_of_dlio_runs(name: str) -> None:
    made = simulated(load(name, ["train.steps=3", "train.epochs=1", "train.warmup_steps=0", "checkpoint=none"]))
    assert made.ledger.even
    assert made.ledger.delivered_steps == 3 * world_size(made.scenario)
