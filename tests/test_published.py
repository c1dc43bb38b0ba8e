"""Published facts: how they are written, what they come to in a scenario with known times, and the verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayio import cli
from rayio.records.answers import answer_schema
from rayio.records.checked_facts import UNMET
from rayio.scenario.facts import FACTS
from rayio.scenario.load import build, load
from rayio.scenario.published import Fact
from rayio.scenario.write import to_yaml
from rayio.study.facts.checking import check_published, checked_fact
from rayio.study.facts.observing import observed

Rayio = Callable[..., tuple[int, str, str]]

#: A rank that reads 4 files of 1 MB by itself: 10 ms to the first byte, 90 ms at 11.1 MB/s, then 300 ms of compute.
KNOWN = """\
name: known
dataset: {path: "model://known", format: raw, num_files: 4, sample_bytes: 1 MB}
storage: {model: {first_byte: 10 ms, connection_bandwidth: 11.111112 MB/s, bandwidth: 1 GB/s}}
loader: {num_workers: 0, shuffle: none}
train: {compute: 300 ms, warmup_steps: 0}
checkpoint: {every: {steps: 2}, path: "checkpoints", model: {bytes: 500 kB}, fsync: false}
"""


@pytest.fixture(name="rayio")
def _rayio(capsys: pytest.CaptureFixture[str]) -> Rayio:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def written(path: Path, *facts: str, base: str = KNOWN) -> Path:
    path.write_text(base + "published:\n" + "".join(f"- {{{fact}}}\n" for fact in facts))
    return path


#: Facts of a workflow: two processes that read 9 kB in 10 ms and write 1 kB in 2 ms; two reads of a rank of 2 ms, the
#: first at the same time as a process reads, and steps of 100 ms.
OF_STAGES = {
    "processes": "2", "stage_reads": "2", "stage_writes": "2", "stage_read_bytes": "18 KB",
    "stage_written_bytes": "2 KB", "stage_files": "4", "workflow_time": "204 ms", "workflow_io_time": "26 ms",
}  # fmt: skip
WORKFLOW = """\
name: workflow
dataset: {path: "model://workflow", format: raw, num_files: 2, sample_bytes: 1000 B}
storage: {model: {first_byte: 1 ms, connection_bandwidth: 1 MB/s, bandwidth: 1 TB/s}}
loader: {num_workers: 0, batch_size: 1, shuffle: none}
train: {compute: 100 ms, warmup_steps: 0}
stages:
- {name: one, count: 2, arrivals: 50 ms, reads: {size: 9 KB}, writes: {size: 1 KB}}
"""


def test_facts_of_stages_follow_by_arithmetic(tmp_path: Path) -> None:
    facts = [f"fact: {name}, value: {text}, tolerance: 0.001 %" for name, text in OF_STAGES.items()]
    (checked,) = check_published([written(tmp_path / "known.yaml", *facts, base=WORKFLOW)]).scenarios
    assert [(fact.fact, fact.verdict) for fact in checked.facts] == [(name, "agrees") for name in OF_STAGES]


def test_facts_of_known_times_follow_by_arithmetic(tmp_path: Path) -> None:
    """Four reads of 100 ms, two writes of 10 ms + 45 ms, in a run of 4 × 400 ms and those writes."""
    facts = {
        "io_share": "29.8 %", "au": "70.18 %", "step_time": "400 ms", "epoch_time": "1.6 s", "steps_per_epoch": "4",
        "samples_per_second": "2.339", "read_demand": "3.333 MB/s", "read_time": "400 ms", "read_bytes": "4 MB",
        "rank_read_bytes": "4 MB", "read_amplification": "1 ×", "request_rate": "10 MB/s", "request_bytes": "1 MB",
        "requests_of": "100 %, size: 1 MB", "written_bytes": "1 MB", "write_time": "110 ms", "files": "4",
        "file_bytes": "1 MB", "dataset_bytes": "4 MB", "checkpoint_bytes": "500 kB", "checkpoint_files": "1",
    }  # fmt: skip
    assert {*FACTS} - {*facts} == {"consecutive", *OF_STAGES}, "each file has one request; others have their own tests"
    path = written(tmp_path / "known.yaml", *(f"fact: {name}, value: {text}" for name, text in facts.items()))
    (checked,) = check_published([path]).scenarios
    differences = {fact.fact: fact.difference for fact in checked.facts}
    assert not [name for name, difference in differences.items() if difference is None or abs(difference) > 1e-3]


def test_a_stream_is_consecutive_and_rows_by_index_are_not() -> None:
    stream = {"dataset.format": "tfrecord", "dataset.samples_per_file": 4, "loader.file_access": "streamed"}
    shares = []
    for keys in ({}, {"loader.file_access": "per_sample", "loader.shuffle": "global"}):
        scenario = load_of({**stream, "loader.shuffle": "file", **keys})
        shares.append(observed(scenario, requests=True).requests.consecutive)
    assert shares[0] == 1
    assert shares[1] < 0.5


def load_of(keys: dict[str, Any]) -> Any:
    import yaml

    data = yaml.safe_load(KNOWN)
    for key, value in keys.items():
        section, _, name = key.partition(".")
        data[section][name] = value
    return build(data, "known")


@pytest.mark.parametrize(("fact", "verdict", "emulated"), [
    ("fact: read_bytes, value: 4.3 MB", "agrees", "4 MB"),
    ("fact: read_bytes, value: 4.5 MB", "unexplained", "4 MB"),
    ("fact: read_bytes, value: 4.5 MB, tolerance: 20 %", "agrees", "4 MB"),
    ("fact: read_bytes, value: 4.5 MB, differs: why", "differs", "4 MB"),
    ("fact: read_bytes, value: 4 MB, differs: why", "needless", "4 MB"),
    ("fact: read_bytes, value: 4 MB, contradicts: why", "contradicts", "4 MB"),
    ("fact: read_bytes, value: 9 MB, kind: input", "input", "4 MB"),
    ("fact: read_bytes, value: 9 MB, kind: assumed", "assumed", "4 MB"),
    ("fact: read_bytes, value: < 5 MB", "agrees", "4 MB"),
    ("fact: read_bytes, value: '> 5 MB'", "unexplained", "4 MB"),
    ("fact: read_bytes, value: 2 ×, against: dataset.num_files=2", "agrees", "2 ×"),
    ("fact: read_bytes, value: '< 1 ×', against: dataset.num_files=2", "unexplained", "2 ×"),
    ("fact: step_time, value: 0.4 s", "agrees", "0.4 s"),
])  # fmt: skip
def test_each_verdict(tmp_path: Path, fact: str, verdict: str, emulated: str) -> None:
    (checked,) = check_published([written(tmp_path / "known.yaml", fact)]).scenarios
    assert [(each.verdict, each.emulated) for each in checked.facts] == [(verdict, emulated)]


def test_a_number_that_a_run_does_not_have_is_unknown() -> None:
    fact = Fact(fact="au", value="90 %")
    seen = observed(load_of({"train.warmup_steps": 4}), requests=False)
    assert seen.au is None
    assert checked_fact(fact, {"": seen}).verdict in UNMET


@pytest.mark.parametrize(("fact", "line"), [
    ("fact: io_shar, value: 7 %", "fact=io_shar: no fact is named so; did you mean io_share?"),
    ("fact: io_share, value: 7", 'value=7: must be a number with its unit, such as "7 %"'),
    ("fact: io_share, value: 7 MB", 'value=7 MB: must be a number with its unit, such as "7 %"'),
    ("fact: io_share", "value: is required and missing"),
    ("fact: files, value: 7 %", "value=7 %: must be a number, such as 473"),
    ("fact: read_bytes, value: 0 GB", "value=0 GB: must be greater than 0"),
    ("fact: [], value: 7 %", "fact=[]: no fact is named so; there are io_share, "),
    ("fact: io_share, value: 1e400 %", 'value=1e400 %: shares must be 0 or more and finite, such as "7 %"'),
    ("fact: io_share, value: 7 %, tolerance: 0", "tolerance=0: must be a share above 0 %, at most 100 %, such as 10 %"),
    ("fact: io_share, value: 7 %, tolerance: 0 %", "tolerance=0 %: must be a share above 0 %, at most 100 %"),
    ("fact: requests_of, value: 7 %", "size=null: requests_of needs size, such as 256 KiB"),
    ("fact: io_share, value: 7 %, size: 1 B", "size=1 B: io_share has no size"),
    ("fact: io_share, value: 7 %, contradict: a", "contradict=a: no such key; did you mean contradicts?"),
    ("fact: io_share, value: 7 %, kind: input, differs: a", "differs=a: differs and kind=input exclude each other"),
    ("fact: read_time, value: 1 s, against: a.b=1", "value=1 s: must be a number with its unit, such as \"1.5 ×\""),
    ("fact: read_time, value: 1 ×, against: some", "against=some: must be overrides as on the command line"),
])  # fmt: skip
def test_a_bad_fact_is_one_line(rayio: Rayio, tmp_path: Path, fact: str, line: str) -> None:
    path = written(tmp_path / "known.yaml", fact)
    code, out, err = rayio("check-published", str(path))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"{path}:8: published[0].{line}" in err


def test_overrides_that_cannot_be_and_a_scenario_without_facts_are_one_line(rayio: Rayio, tmp_path: Path) -> None:
    (plain := tmp_path / "plain.yaml").write_text(KNOWN)
    wrong = written(tmp_path / "wrong.yaml", "fact: read_bytes, value: 2 ×, against: dataset.num_file=2")
    for path, text in ((plain, "has no published facts to check; write them under published:"), (wrong, "num_files?")):
        code, out, err = rayio("check-published", str(path))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert text in err


def test_facts_are_of_their_file_alone_and_are_written_back(tmp_path: Path) -> None:
    base = written(tmp_path / "base.yaml", "fact: requests_of, value: 98 %, size: 256 KiB, tolerance: 5 %")
    (tmp_path / "own.yaml").write_text(f"extends: {base.name}\nname: own\n")
    scenario = load(base)
    assert [fact.number for fact in scenario.published] == [0.98]
    assert load(tmp_path / "own.yaml").published == ()
    (copy := tmp_path / "copy.yaml").write_text(to_yaml(scenario))
    assert load(copy) == scenario
    assert hash(load(copy)) == hash(scenario)


def test_the_command_prints_text_markdown_and_json_and_ends_with_3_for_a_difference(
    rayio: Rayio, tmp_path: Path
) -> None:
    path = written(
        tmp_path / "known.yaml", "fact: read_bytes, value: 4 MB", "fact: io_share, value: 7 %, contradicts: so it is"
    )
    code, out, _ = rayio("check-published", str(path))
    assert code == 0
    assert "read_bytes       4 MB      4 MB" in out
    assert "      so it is" in out
    assert "2 facts of 1 scenario: 1 agrees, 1 source contradicts itself" in out
    code, out, _ = rayio("check-published", str(path), "--markdown")
    assert f"| `{path}` | read_bytes | 4 MB | 4 MB | +0.0 % | agrees |" in out
    assert "io_share** (contradicts): so it is" in " ".join(out.split())
    written(path, "fact: read_bytes, value: 5 MB")
    code, out, err = rayio("check-published", str(path), "--json")
    assert code == 3
    assert "1 fact of 1 scenario: 1 differs, unexplained" in err
    answer = json.loads(out)
    assert {*answer} <= {*answer_schema("check-published")["properties"]}
    assert answer["scenarios"][0]["facts"][0]["difference"] == pytest.approx(-0.2)


def test_facts_change_nothing_else(tmp_path: Path) -> None:
    """A scenario with facts is simulated as without."""
    (plain := tmp_path / "plain.yaml").write_text(KNOWN)
    with_facts = load(written(tmp_path / "facts.yaml", "fact: io_share, value: 7 %"))
    assert with_facts.model_copy(update={"published": ()}) == load(plain)


def test_a_run_has_no_facts_so_it_equals_one_of_a_scenario_without(rayio: Rayio, tmp_path: Path) -> None:
    (plain := tmp_path / "plain.yaml").write_text(KNOWN)
    with_facts = written(tmp_path / "facts.yaml", "fact: io_share, value: 7 %")
    for path in (plain, with_facts):
        assert rayio("simulate", str(path), "--no-report", "--out", str(tmp_path / path.stem))[0] == 0
    resolved = [(tmp_path / name / "scenario.yaml").read_text() for name in ("plain", "facts")]
    assert resolved[0] == resolved[1]
