from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rayio.errors import ScenarioError
from rayio.scenario.derive import compute_times
from rayio.scenario.expect import Condition
from rayio.scenario.load import build, load, merge, packaged
from rayio.scenario.model import AllReduce, BarrierSync, Dedicated, NoSync, StorageParameters
from rayio.scenario.s3 import S3Options
from rayio.scenario.source import packaged_folder
from rayio.scenario.write import json_schema, to_yaml
from rayio.schema.distribution import Constant, LogNormal, Normal

MINIMAL = """
name: minimal
dataset: {path: data/x, num_files: 10, sample_bytes: 1 MB}
train: {compute: 10 ms}
"""

#: Every key with a value that is not its default, where another value exists yet.
FULL = """
name: full
source: made up
seed: 11
cluster:
  {nodes: 2, ranks_per_node: 3, cores: 8, roles_per_actor: 4, placement: dedicated_readers, reader_nodes: 2,
   nic_bandwidth: 10 GB/s, nic_latency: 20 us, transport: ray, start_deadline: 60, stall_deadline: 300}
dataset:
  path: model://x
  format: npz
  num_files: 50
  samples_per_file: 3
  sizes: per_file
  files_per_folder: 20
  compressibility: 1
  sample_bytes: {kind: lognormal, median: 1 MiB, sigma: 0.5, max: 4 MiB}
  eval: {num_files: 12, path: model://y, samples_per_file: 2, sample_bytes: 1 KiB}
storage:
  model:
    first_byte: {kind: uniform, low: 1 ms, high: 3 ms}
    open: {kind: normal, mean: 1 ms, stdev: 100 us}
    connection_bandwidth: 1 GB/s
    bandwidth: 10 GB/s
    requests_per_second: 5000
    scope: cluster
loader:
  batch_size: 2
  num_workers: 3
  prefetch_factor: 4
  io_depth: 5
  assignment: dynamic
  in_order: false
  queue: in_rank
  shuffle: block
  shuffle_block: 12
  partition: strided
  scaling: weak
  decode: {kind: exponential, mean: 20 us}
  drop_last: false
  max_bytes_in_flight: 1 GiB
  payload: none
train:
  epochs: 7
  steps: 8
  compute: {kind: normal, mean: 323 ms, stdev: 10 ms}
  sync: {kind: allreduce, bytes: 100 MB, bandwidth: 100 GB/s, latency: 20 us}
  parallelism: {tensor: 3, pipeline: 2, zero_stage: 1}
  evaluate: {every: {steps: 9}, compute: 1 ms, steps: 2, batch_size: 1}
  warmup_steps: 0
  stragglers: {ranks: [5, 2], factor: 1.5}
checkpoint:
  every: {steps: 5}
  path: checkpoints/x
  model: {bytes: 1 GB}
  writers: {dedicated: 3}
  asynchronous: true
  snapshot_bandwidth: 10 GB/s
  fsync: false
  request_bytes: 1 MiB
  restore: newest
expect: {au: ">= 0.90", data_wait_share: "< 5 %"}
published: [{fact: requests_of, value: 98 %, size: 256 KiB, tolerance: 5 %, source: a profile}]
costs:
  {lease: 1 ms, put: 3 ms, put_bandwidth: 4 GB/s, take: 2 ms, receive: 1 us, neighbour: 2 us,
   neighbour_error: 0.2, transfer_latency: 5 us,
   transfer_bandwidth: 2 GB/s, barrier: 4 ms, step: 20 us, checkpoint: 6 ms, checkpoint_less: 1 ms,
   checkpoint_more: 2 ms, fixed_work: 45 ms, error: 0.05, source: counted,
   cpu: {format: npz, sample: 1 us, bandwidth: 1 GB/s, queue: 3 us, rank: 4 us, background: 6 ms}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str, *overrides: str) -> Any:
    """Load a file with this text."""
    Path("x.yaml").write_text(text, encoding="utf-8")
    return load("x.yaml", overrides)


def test_units_end_at_the_border(here: Path) -> None:
    full = read(FULL)
    assert full.cluster.start_deadline == 60
    assert full.dataset.sample_bytes == LogNormal(median=1 << 20, sigma=0.5, max=4 << 20)
    assert full.storage.model.bandwidth == 10e9
    assert full.train.compute == Normal(mean=0.323, stdev=0.01)
    assert full.train.sync == AllReduce(bytes=100_000_000, bandwidth=100e9, latency=20e-6)
    assert full.checkpoint.writers == Dedicated(dedicated=3)
    assert full.expect == {"au": Condition(">=", 0.9), "data_wait_share": Condition("<", 0.05)}
    assert full.loader.max_bytes_in_flight == 1 << 30
    assert full.costs.transfer_bandwidth == 2e9


def test_what_is_not_said_is_pytorchs_default(here: Path) -> None:
    minimal = read(MINIMAL)
    assert (minimal.loader.batch_size, minimal.loader.num_workers, minimal.loader.prefetch_factor) == (1, 4, 2)
    assert minimal.train.compute == Constant(value=0.01)
    assert minimal.train.sync == BarrierSync()
    assert minimal.checkpoint is None
    assert minimal.seed == 10


@pytest.mark.parametrize(
    ("override", "where", "value"),
    [
        ("loader.num_workers=8", "loader.num_workers", 8),
        ("train.compute=5", "train.compute", Constant(value=5)),
        ("train.compute=1e-3", "train.compute", Constant(value=0.001)),
        ("train.sync=none", "train.sync", NoSync()),
        ("train.sync={kind: barrier}", "train.sync", BarrierSync()),
        ("train.steps=none", "train.steps", None),
        ("train.steps=null", "train.steps", None),
        ("expect.au=>= 0.5", "expect", {"au": Condition(">=", 0.5)}),
        ("checkpoint=none", "checkpoint", None),
        ("dataset.path=a=b", "dataset.path", "a=b"),
        ("storage.model=s3", "storage.model", "s3"),
        ("costs.transfer_bandwidth=none", "costs.transfer_bandwidth", None),
        ("cluster.roles_per_actor=auto", "cluster.roles_per_actor", "auto"),
    ],
)
def test_an_override_replaces_one_value(here: Path, override: str, where: str, value: object) -> None:
    node = read(MINIMAL, override)
    for key in where.split("."):
        node = getattr(node, key)
    assert node == value


def test_overrides_come_as_a_mapping_too(here: Path) -> None:
    read(MINIMAL)
    assert load(Path("x.yaml"), {"loader.batch_size": 3, "cluster": {"nodes": 2}}).loader.batch_size == 3


def test_an_override_within_a_mapping_keeps_the_rest_of_it(here: Path) -> None:
    assert read(FULL, "train.compute.mean=1 s").train.compute == Normal(mean=1.0, stdev=0.01)
    assert read(FULL, "storage.model.scope=node").storage.model.bandwidth == 10e9
    assert isinstance(read(FULL, "storage.model.scope=node").storage.model, StorageParameters)


def test_a_mapping_of_another_kind_replaces(here: Path) -> None:
    assert read(FULL, "train.compute={kind: exponential, mean: 1}").train.compute.expected == 1
    assert read(FULL, "checkpoint.every={epochs: 2}").checkpoint.every.steps is None
    assert read(FULL, "checkpoint.every.epochs=2").checkpoint.every.steps is None
    both = read(FULL, "checkpoint.every.epochs=3", "checkpoint.every.first=1").checkpoint
    assert (both.every.epochs, both.every.first) == (3, 1)
    for first in ("checkpoint.every.steps=4", "checkpoint.every={steps: 4}"):
        with pytest.raises(ScenarioError, match=r"checkpoint.every=\{steps: 4, epochs: 2\}: must be \{steps: n\}"):
            read(FULL, first, "checkpoint.every.epochs=2")


def test_a_file_extends_another_and_says_only_what_differs(here: Path) -> None:
    Path("sub").mkdir()
    Path("sub/base.yaml").write_text(MINIMAL + "loader: {batch_size: 2, num_workers: 1}\n")
    Path("middle.yaml").write_text("extends: sub/base.yaml\nloader: {batch_size: 3}\nseed: 3\n")
    top = read("extends: middle.yaml\nname: top\nseed: 4\n")
    assert (top.name, top.seed, top.loader.batch_size, top.loader.num_workers) == ("top", 4, 3, 1)


def test_a_path_in_extends_is_relative_to_its_file(here: Path) -> None:
    Path("sub").mkdir()
    Path("sub/base.yaml").write_text(MINIMAL)
    Path("sub/top.yaml").write_text("extends: base.yaml\nname: top\n")
    assert load("sub/top.yaml").name == "top"


def test_a_file_may_extend_a_packaged_scenario(here: Path) -> None:
    assert read("extends: unet3d-small\nname: mine\n").dataset == load("unet3d-small").dataset


@pytest.mark.parametrize("name", packaged())
def test_a_packaged_scenario_loads_says_its_source_and_is_named_as_its_file(name: str) -> None:
    scenario = load(name)
    assert scenario.name == name
    assert scenario.source
    assert packaged()[name]


def test_the_mlperf_scenarios_have_the_published_numbers() -> None:
    h100, a100, v100 = (load(f"unet3d-{gpu}") for gpu in ("h100", "a100", "v100"))
    assert h100.dataset.num_files == 168
    assert h100.dataset.sample_bytes == Normal(mean=146_600_628, stdev=68_341_808)
    assert [s.loader.batch_size for s in (h100, a100, v100)] == [7, 7, 4]
    assert [compute_times(s).expected for s in (h100, a100, v100)] == [0.323, 0.636, 1.3604]
    assert v100.dataset == a100.dataset == h100.dataset


def test_aliases_and_merge_keys_of_yaml_work(here: Path) -> None:
    text = MINIMAL.replace("10 ms", "&time 7 ms") + "loader: {<<: {batch_size: 2}, decode: *time}\n"
    assert read(text).loader.batch_size == 2
    assert read(text).loader.decode == Constant(value=0.007)


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL,
        FULL,
        *(p.read_text() for p in map(packaged_folder().joinpath, ("unet3d-h100.yaml", "unet3d-small.yaml"))),
    ],
)
def test_resolved_yaml_loads_to_an_equal_scenario(here: Path, text: str) -> None:
    scenario = read(text)
    assert read(to_yaml(scenario)) == scenario


def test_resolved_yaml_has_units_as_people_write_them(here: Path) -> None:
    resolved = yaml.safe_load(to_yaml(read(FULL)))
    assert resolved["cluster"]["start_deadline"] == "60 s"
    assert resolved["checkpoint"]["request_bytes"] == "1 MiB"
    assert resolved["train"]["compute"] == {"kind": "normal", "mean": "323 ms", "stdev": "10 ms"}
    assert resolved["train"]["sync"]["bandwidth"] == "100 GB/s"
    assert resolved["expect"] == {"au": ">= 0.9", "data_wait_share": "< 0.05"}


def test_full_names_every_key_there_is(here: Path) -> None:
    keys = yaml.safe_load(FULL)
    resolved = yaml.safe_load(to_yaml(read(FULL)))
    fixed = {
        "dataset": {"external"},
        "storage": {"page_cache", "stage", "faults", *S3Options.model_fields} - {"endpoint", "region"},
        "loader": {"kind", "worker", "file_access", "keep_open", "pin_memory", "pin_bandwidth", "decode_threads"},
        "train": {"compute_cores", "accumulate"},
        "checkpoint": {"engine"},
    }
    assert {*resolved} == {*keys} | {"trace", "stages"}
    for section, content in resolved.items():
        if isinstance(content, dict) and section != "trace":
            assert {*content} == {*keys[section]} | fixed.get(section, set())


def test_every_packaged_name_is_an_own_file_and_a_file_of_that_name_does_not_hide_it(here: Path) -> None:
    Path("unet3d-small").write_text(MINIMAL)
    assert load("unet3d-small").name == "unet3d-small"
    Path("other").write_text(MINIMAL)
    assert load("other").name == "minimal"


def test_a_scenario_is_a_value(here: Path) -> None:
    full = read(FULL)
    copy = pickle.loads(pickle.dumps(full))
    assert copy == full
    assert hash(copy) == hash(full)
    assert len({full, copy, read(MINIMAL)}) == 2
    with pytest.raises(ValueError, match="frozen"):
        full.seed = 3


def test_the_schema_knows_every_section_and_requires_nothing_that_a_base_may_give() -> None:
    schema = json_schema()
    assert {"extends", "name", "cluster", "dataset", "loader", "train"} <= {*schema["properties"]}
    assert "required" not in str(schema)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Loader"]["properties"]["batch_size"]["minimum"] == 1
    assert any(part.get("type") == "string" for part in schema["$defs"]["Train"]["properties"]["compute"]["anyOf"])


@pytest.mark.parametrize(
    ("condition", "true", "false"),
    [(">= 0.9", 0.9, 0.89), ("<= 5 %", 0.05, 0.06), ("> 1", 1.1, 1.0), ("< 1e3", 999, 1000), ("== 3", 3, 4)],
)
def test_a_condition_holds_or_not(condition: str, true: float, false: float) -> None:
    data = {**yaml.safe_load(MINIMAL), "expect": {"wall_seconds": condition}}
    expected = build(data).expect["wall_seconds"]
    assert expected.holds(true)
    assert not expected.holds(false)


TREES = st.recursive(
    st.integers(0, 3), lambda inner: st.dictionaries(st.sampled_from("abk"), inner, max_size=3), max_leaves=8
)


@given(base=TREES, over=TREES)
def test_merging_twice_is_merging_once_and_keeps_all_that_is_said_last(base: Any, over: Any) -> None:
    once = merge(base, over)
    assert merge(once, over) == once
    assert merge(base, base) == base
    if isinstance(once, dict) and isinstance(over, dict):
        assert {*over} <= {*once}


def test_a_scenario_in_python_names_itself_in_errors() -> None:
    with pytest.raises(ScenarioError, match=r"^mine: dataset: is required and missing"):
        build({"name": "x", "train": {"compute": 1}}, "mine")


@pytest.mark.parametrize("name", packaged())
def test_the_schema_accepts_every_packaged_scenario_as_it_is_written(name: str) -> None:
    text = (Path(__file__).parents[1] / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")
    assert [error.message for error in validator().iter_errors(yaml.safe_load(text))] == []


@cache
def validator() -> Any:
    return pytest.importorskip("jsonschema").Draft202012Validator(json_schema())
