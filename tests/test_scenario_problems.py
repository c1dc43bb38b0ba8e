"""All errors of a scenario at once: each is one line with its place, and none is told twice."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayio import cli
from rayio.errors import ScenarioError
from rayio.kinds import REGISTRIES
from rayio.registry import Registry
from rayio.scenario.load import load
from rayio.schema.choice import check_name
from rayio.schema.fields import RefusedError

BAD = """\
name: bad
cluster: {nodes: 0, ranks_per_node: 2}
dataset: {path: data/mine, format: npz, num_files: -1, sample_bytes: 2 MiB, chunk: 1 MiB}
loader:
  batch_sise: 7
  shuffle: globol
  file_access: sequential
train: {epochs: 0, compute: {kind: normal, mean: 323 ms, stdev: 10 parsecs}}
trace: {tasks: true, level: deep}
storage:
  page_cache: warm
  faults:
    stalls:
      - {seconds: 1 s, rate: 0.1}
      - {seconds: 1 s, rate: 2}
      - {seconds: 5 parsecs, rate: 0.1}
"""
#: What is wrong with it, planted above: the line of the file, and the key.
PLANTED = (
    (2, "cluster.nodes=0"), (3, "dataset.num_files=-1"), (3, "dataset.chunk=1 MiB"), (5, "loader.batch_sise=7"),
    (6, "loader.shuffle=globol"), (7, "loader.file_access=sequential"), (8, "train.epochs=0"),
    (8, "train.compute.stdev=10 parsecs"), (9, "trace.tasks=true"), (9, "trace.level=deep"),
    (11, "storage.page_cache=warm"), (15, "storage.faults.stalls[1].rate=2"),
    (16, "storage.faults.stalls[2].seconds=5 parsecs"),
)  # fmt: skip
#: A scenario of another benchmark.
DLIO = """\
model: unet3d
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: True}
dataset: {data_folder: data/unet3d/, num_files_train: 168, num_samples_per_file: 1, record_length_bytes: 146600628,
  record_length_bytes_stdev: 68341808, record_length_bytes_resize: 2097152}
reader: {data_loader: pytorch, batch_size: 7, read_threads: 4, file_shuffle: seed, sample_shuffle: seed}
train: {epochs: 5, computation_time: 0.323}
checkpoint: {checkpoint_folder: checkpoints/unet3d, checkpoint_after_epoch: 5}
metric: {au: 0.90}
profiling: {profiler: iostat}
"""

Validate = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Validate:
    """Validate the text of a scenario: the exit code, and the lines on standard error."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, *overrides: str) -> tuple[int, list[str]]:
        Path("bad.yaml").write_text(text)
        with pytest.raises(SystemExit) as left:
            cli.main(["validate", "bad.yaml", *overrides])
        out, err = capsys.readouterr()
        assert not out
        assert isinstance(left.value.code, int)
        return left.value.code, err.splitlines()

    return run


def test_validate_lists_every_error_of_a_file_in_the_order_of_its_lines(validate: Validate) -> None:
    code, lines = validate(BAD)
    assert code == 2
    starts = [f"rayio: bad.yaml:{number}: {key}: " for number, key in PLANTED]
    assert sorted(lines) == sorted(line for start in starts for line in lines if line.startswith(start))
    assert len(lines) == len(PLANTED), lines
    places = [int(line.split(":")[2]) for line in lines]
    assert places == sorted(places)


def test_mending_each_error_that_is_listed_leaves_the_others(validate: Validate) -> None:
    mended = BAD.replace("nodes: 0", "nodes: 1").replace("chunk: 1 MiB", "").replace("rate: 2}", "rate: 0.2}")
    _, before = validate(BAD)
    _, after = validate(mended)
    gone = ("cluster.nodes", "dataset.chunk", "stalls[1]")
    assert after == [line for line in before if not any(key in line for key in gone)]


def test_at_most_twenty_errors_are_listed_and_the_rest_is_counted(validate: Validate) -> None:
    code, lines = validate(DLIO)
    assert code == 2
    with pytest.raises(ScenarioError) as refused:
        load("bad.yaml")
    number = len(refused.value.problems)
    assert number > 20
    assert len(lines) == 21
    assert lines[-1] == f"rayio: … and {number - 20} more"
    assert not [line for line in lines[:-1] if "more;" in line]
    assert len({*lines}) == 21


def test_contradictions_are_listed_too(validate: Validate) -> None:
    contradictory = ("loader.batch_size=100000", "loader.max_bytes_in_flight=1 KiB", "train.epochs=1")
    code, lines = validate(
        "extends: unet3d-small\ncheckpoint: {every: {epochs: 9}, path: data/unet3d-small/x}\n", *contradictory
    )
    assert code == 2
    assert len(lines) > 1
    assert all(line.startswith("rayio: bad.yaml: ") for line in lines)
    assert not [line for line in lines if " more" in line]


def test_other_commands_show_one_line_that_names_the_command_which_lists_all(validate: Validate) -> None:
    validate(BAD)
    with pytest.raises(ScenarioError) as refused:
        load("bad.yaml")
    error = refused.value
    assert "\n" not in str(error)
    assert str(error).endswith(f" ({len(PLANTED) - 1} more; rayio validate lists all)")
    assert str(error).partition(" (12 more")[0] in error.problems
    assert pickle.loads(pickle.dumps(error)).problems == error.problems
    with pytest.raises(ScenarioError) as single:
        load("unet3d-small", ["loader.batch_size=0"])
    assert single.value.problems == (str(single.value),)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("faults={stall: 5 s}", "storage.faults.stall=5 s: no such key; did you mean stalls?"),
        ("faults={stalls: [{rate: 2, seconds: 1 s}]}", "storage.faults.stalls[0].rate=2: must be a number above 0"),
        (
            "faults={errors: [{rate: 0.1}, {rate: 0.1, at: 1}]}",
            "storage.faults.errors[1]={rate: 0.1, at: 1}: needs rate (a share of samples and files) or at (a time of "
            "the run), and not both",
        ),
        ("faults={slow_files: {factor: 3}}", "storage.faults.slow_files.share: is required and missing"),
        ("faults={slow_files: 3}", "storage.faults.slow_files=3: must be a mapping with share and factor"),
        ("faults={on_error: ignore}", "storage.faults.on_error=ignore: must be fail, skip or retry"),
        ("cache=[{tier: ram, bytes: 5 parsecs}]", "storage.cache[0].bytes=5 parsecs: unknown unit 'parsecs'"),
    ],
)
def test_a_refused_value_is_one_error_with_the_number_of_its_list_entry(text: str, line: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("unet3d-small", [f"storage.{text}"])
    assert line in str(refused.value)
    assert len(refused.value.problems) == 1, refused.value.problems


@pytest.mark.parametrize(
    ("override", "ending"),
    [
        (
            "trace.tasks=true",
            "trace.tasks=true: rayio no longer has this key (it keeps no spans of Ray tasks); remove it",
        ),
        (
            "storage.model={first_byte: 1 ms, connection_bandwidth: 1 GB/s, bandwidth: 1 GB/s, requests_per_second: 0}",
            "storage.model.requests_per_second=0: must be a number per second from 0.000001 to 10^12, or none",
        ),
        ("storage.faults={slow_files: {share: 0.1, factor: 2.0e+6}}", "must be a number above 1, at most 1000000"),
    ],
)
def test_a_message_says_what_is_allowed_in_plain_numbers_and_words(override: str, ending: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("unet3d-small", [override])
    assert str(refused.value).endswith(ending)


def test_a_name_is_planned_or_built_and_not_both() -> None:
    with pytest.raises(ValueError, match="format 'npz' is built: remove it from later"):
        Registry("format", {"npz": "rayio.data.formats.npz:Npz"}, later=("npz", "jpeg"))


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: str(registry.group))
def test_a_name_that_is_none_is_refused_with_the_names_there_are_and_those_that_are_planned(
    registry: Registry[Any],
) -> None:
    with pytest.raises(RefusedError) as refused:
        check_name(registry, "no-such-name")
    line = str(refused.value)
    there, _, planned = line.partition(" (not yet: ")
    assert [name for name in registry if not re.search(rf"\b{re.escape(name)}\b", there)] == []
    assert planned.removesuffix(")").split(", ") == [*registry.later] if registry.later else not planned
