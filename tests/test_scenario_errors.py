"""Bad input gives one clear line: file, key path, value, and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.run_scenario import scenario_of
from rayio.errors import ScenarioError
from rayio.scenario.load import build, load
from rayio.trace.run_directory import RunDirectory

NEEDED = "name: x\ndataset: {path: d, num_files: 64, sample_bytes: 1 MB}\ntrain: {compute: 1 ms}\n"

#: Words of pydantic's and PyYAML's that no user should meet.
JARGON = ("type=", "input_value", "pydantic", "https://", "validation error", "Traceback", "tagged-union", "ScalarNode")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def complaint(source: str, *overrides: str) -> str:
    """Give the line that loading ends with."""
    with pytest.raises(ScenarioError) as caught:
        load(source, overrides)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    assert not [word for word in JARGON if word in line]
    return line


def complaint_about(text: str) -> str:
    """Give the line that loading a file with this text ends with."""
    Path("x.yaml").write_text(text, encoding="utf-8")
    return complaint("x.yaml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loader.batch_szie=3", "loader.batch_szie=3: no such key; did you mean batch_size?"),
        ("batch_size=3", "batch_size=3: no such key; did you mean loader.batch_size?"),
        ("loadr.batch_size=3", "loadr={batch_size: 3}: no such key; did you mean loader?"),
        ("trace.xyzzy=3", "trace.xyzzy=3: no such key; trace has level, live, resolution"),
        ("train.compute.stddev=1", "train.compute.stddev=1: no such key; did you mean stdev?"),
        (
            "train.sync={kind: allreduce, bytes: 1, bandwith: 3}",
            "train.sync.bandwith=3: no such key; did you mean band",
        ),
        ("loader.batch_size=0", "loader.batch_size=0: must be a whole number of at least 1"),
        ("loader.batch_size=-2", "loader.batch_size=-2: must be a whole number of at least 1"),
        ("loader.batch_size=1.5", "loader.batch_size=1.5: must be a whole number"),
        ("loader.batch_size=two", "loader.batch_size=two: must be a whole number"),
        ("loader.batch_size=true", "loader.batch_size=true: must be a whole number"),
        ("loader.batch_size='3'", 'loader.batch_size="3": must be a whole number'),
        ("loader.num_workers=-1", "loader.num_workers=-1: must be a whole number of at least 0"),
        ("dataset.num_files=0", "dataset.num_files=0: must be a whole number of at least 1"),
        ("train.steps=0", "train.steps=0: must be a whole number of at least 1 or none"),
        ("cluster.roles_per_actor=0", "must be a whole number of at least 1 or auto"),
        ("loader.in_order=1", "loader.in_order=1: must be true or false"),
        ("loader.kind=foo", "loader.kind=foo: must be actors"),
        ("loader.assignment=statc", "loader.assignment=statc: must be static, dynamic or by_file"),
        ("loader.max_bytes_in_flight=0", "loader.max_bytes_in_flight=0: must be greater than 0"),
        ("loader=null", "loader=null: give it keys, or leave it out for the defaults"),
        ("trace=3", "trace=3: must be a mapping with level, live or resolution"),
        ("train.stragglers={ranks: [2], factor: 1.5}", "train.stragglers.ranks=[2]: no rank 2; cluster.nodes=1 ×"),
        ("train.stragglers={ranks: 1, factor: 2}", "train.stragglers.ranks=1: must be a list of ranks, such as [3]"),
        ("train.stragglers={ranks: [], factor: 2}", "train.stragglers.ranks=[]: must be a list of ranks"),
        ("train.stragglers={ranks: [1, 1], factor: 2}", "train.stragglers.ranks=[1, 1]: names a rank twice"),
        ("train.stragglers={ranks: [1], factor: 0}", "train.stragglers.factor=0: must be a number greater than 0"),
        ("train.stragglers={ranks: [1]}", "train.stragglers.factor: is required and missing"),
        ("train.stragglers=[1]", "train.stragglers=[1]: must be a mapping with factor"),
        ("train.compute=323 msec", "train.compute=323 msec: unknown unit 'msec'; times are written in s, ms"),
        ("train.compute=-3", "train.compute=-3: times must be 0 or more"),
        ("train.compute={kind: normal, mean: 3 mss, stdev: 1}", "train.compute.mean=3 mss: unknown unit 'mss'"),
        ("train.compute={kind: gama, mean: 3}", "train.compute.kind=gama: must be constant, normal"),
        ("train.compute={kind: uniform, low: 2, high: 1}", "high must not be below low"),
        ("train.compute={kind: uniform, low: 2 ms}", "train.compute.high: is required and missing"),
        ("train.compute={kind: lognormal, median: 2 ms, sigma: 1, max: 1 ms}", "max must not be below median"),
        ("train.compute={kind: lognormal, median: 2 ms, sigma: 99}", "sigma=99: must be a number from 0 to 10"),
        ("train.compute=[1]", "train.compute=[1]: not a number with a unit"),
        ("dataset.sample_bytes=3 s", "dataset.sample_bytes=3 s: unknown unit 's'; bytes are written in B"),
        ("dataset.path=", "dataset.path=null: must be a path, not empty"),
        ("dataset.path=s3://", "dataset.path=s3://: s3://: there is no bucket in it; write s3://bucket/prefix"),
        (
            "dataset.path=s3://KEY:SE/CRET@b",
            "dataset.path=s3://***@b: an s3:// address has a bucket after its slash",
        ),
        (
            "storage.endpoint=http://KEY:SE/CRET@h",
            "storage.endpoint=http://***@h: must be http or https, a host,",
        ),
        (
            "storage.endpoint=localhost:9000",
            "storage.endpoint=localhost:9000: must be http or https, a host",
        ),
        ("storage.region=a b", "storage.region=a b: must be the name of a region, such as eu-west-1"),
        ("storage.endpoint=http://h/?token=SECRET", "storage.endpoint=http://h/?***: "),
        ("storage.secret_access_key=SECRET", "storage.secret_access_key=***: no such key"),
        ("storage.s3={access_key: KEY, x: 1}", "storage.s3={access_key: ***, x: 1}: no such key"),
        ("storage.max_attempts=0", "storage.max_attempts=0: must be"),
        (
            "dataset.path=ftp://x",
            "dataset.path=ftp://x: unknown scheme ftp://; give a path or model://<name>, s3://...",
        ),
        (
            "dataset.compression=gzip",
            "dataset.compression=gzip: only hdf5, tfrecord or parquet has compression, not npz",
        ),
        ("checkpoint.snapshot_bandwidth=0", "checkpoint.snapshot_bandwidth=0: must be greater than 0"),
        ("storage.model=3", "storage.model=3: must be the name of a preset"),
        ("storage.model={scope: node}", "storage.model.first_byte: is required and missing"),
        ("storage.cache=ram", "storage.cache=ram: must be none"),
        ("storage.cache=off", "storage.cache=false: write none (YAML reads off and no as false)"),
        ("train.sync=off", "train.sync=false: write none"),
        ("train.sync=allreduce", "train.sync.bytes: is required and missing"),
        ("train.sync={kind: foo}", "train.sync.kind=foo: must be none, barrier or allreduce"),
        ("train.sync=3", "train.sync=3: must be none, barrier or {kind: allreduce"),
        ("checkpoint.every={}", "checkpoint.every={}: must be {steps: n}, {epochs: n} or {seconds: n}"),
        ("checkpoint.every={steps: 1, epochs: 1}", "must be {steps: n}, {epochs: n} or {seconds: n}"),
        ("checkpoint.every=3", "checkpoint.every=3: must be a mapping with epochs, first, seconds or steps"),
        (
            "checkpoint.writers=x",
            "checkpoint.writers=x: must be rank_zero, all_ranks, sharded, per_node, per_group, parallel or {ded",
        ),
        ("checkpoint.writers={dedicated: 0}", "checkpoint.writers.dedicated=0: must be a whole number of at least 1"),
        (
            "checkpoint.model=none",
            "checkpoint.model=none: must be {bytes: ...}, {files: [...]}, {kind: transformer, ",
        ),
        ("checkpoint={every: {steps: 1}, path: null}", "checkpoint.path=null: must be a path"),
        ("expect.au=0.9", 'expect.au=0.9: must be an operator (>=, <=, >, < or ==) and a number, such as ">= 0.90"'),
        ("expect.au=>= 0.9.9", "expect.au=>= 0.9.9: must be an operator"),
        ("expect.au=>= 90", "expect.au=>= 90: au is a share, from 0 to 1; write >= 90 % or >= 0.9"),
        ("expect.au=<= 120 %", "expect.au=<= 120 %: au is a share, from 0 to 1"),
        ("expect.share.sync=< -0.1", "expect.share.sync=< -0.1: share.sync is a share, from 0 to 1"),
        ("expect.fetched.page_cache_shar=> 0", "did you mean fetched.page_cache_share"),
        ("dataset.path=s3:/bucket/x", "dataset.path=s3:/bucket/x: did you mean s3://bucket/x?"),
        ("dataset.path=S3:/bucket/x", "did you mean s3://bucket/x?"),
        ("dataset.path=model:/x", "dataset.path=model:/x: did you mean model://x?"),
        ("checkpoint.path=file:/tmp/x", "checkpoint.path=file:/tmp/x: did you mean file:///tmp/x?"),
        ("expect=3", "expect=3: must be a mapping of metrics to conditions"),
        (
            "expect.samples_per_secnd=> 1",
            "no metric is named so; did you mean samples_per_second",
        ),
        ("expect.zzz=> 1", "expect.zzz=> 1: no metric is named so; did you mean au"),
        ("dataset.sample_bytes=1 PiB", "dataset.sample_bytes=1 PiB: must be at most 128 TiB"),
        (
            "checkpoint.path=model://c",
            "checkpoint.path=model://c: has no bytes, and dataset.path",
        ),
        ("name=a/b", "name=a/b: must be letters, digits"),
        ("name=" + "x" * 201, "has 201 characters; 200 are the most"),
        ("name=3", "name=3: must be text (quote it)"),
        ("name=2024-01-02", "name=2024-01-02: must be text (quote it)"),
        ("seed=1e3", "seed=1e3: must be a whole number of at least 0; write 1000"),
        ("seed=-1", "seed=-1: must be a whole number of at least 0"),
        ("costs.take=3 GB", "costs.take=3 GB: unknown unit 'GB'; times are written in"),
        ("train.compute.mean.x=3", "train.compute.mean.x=3: train.compute.mean is 100 ms, not a mapping"),
        ("storage.model.scope=node", "storage.model is nvme, not a mapping; give storage.model={...}"),
        ("loader.batch_size=1000", "loader.batch_size=1000: 2 ranks need 2000 samples for a step"),
        ("cluster.nodes=1000", "cluster.nodes=1000 × cluster.ranks_per_node=2: 2000 ranks for the"),
    ],
)
def test_a_bad_value_is_refused_with_file_key_value_and_what_is_allowed(override: str, said: str) -> None:
    line = complaint("unet3d-small", override)
    assert line.startswith("unet3d-small.yaml: ")
    assert said in line


def test_a_metric_with_dots_is_named_in_an_override_as_in_a_file() -> None:
    keys = ["expect.fetched.page_cache_share=<= 0.05", "expect.percentiles.data_wait.p99=< 2", "expect.au=>= 90 %"]
    expected = load("unet3d-small", keys).expect
    assert {name: str(condition) for name, condition in expected.items()} == {
        "fetched.page_cache_share": "<= 0.05", "percentiles.data_wait.p99": "< 2", "au": ">= 0.9",
    }  # fmt: skip


def test_a_key_that_was_renamed_is_refused_with_its_new_name() -> None:
    for value in ("true", "false"):
        assert complaint("unet3d-small", f"storage.direct={value}") == (
            f"unet3d-small.yaml: override: storage.direct={value}: is called storage.page_cache now; "
            "give use, drop or direct"
        )
    line = complaint_about(NEEDED + "storage:\n  model: s3\n  direct: false\n")
    assert line == "x.yaml:6: storage.direct=false: is called storage.page_cache now; give use, drop or direct"
    assert complaint("unet3d-small", "storage.page_cache=no").endswith("page_cache=false: must be use, drop or direct")


def test_a_key_that_was_removed_is_refused_but_for_the_default_that_run_directories_carry() -> None:
    line = complaint("unet3d-small", "trace.tasks=true")
    assert line == (
        "unet3d-small.yaml: override: trace.tasks=true: rayio no longer has this key "
        "(it keeps no spans of Ray tasks); remove it"
    )
    line = complaint("unet3d-small", "costs.cpu={queue: 1 ms, node: 1 ms}")
    assert "costs.cpu.node=1 ms: rayio no longer has this key: add it to costs.cpu.queue, or" in line
    defaults = {"trace": {"tasks": False}, "costs": {"cpu": {"reader": "0 s", "node": 0, "rank_bandwidth": "none"}}}
    plain = yaml.safe_load(NEEDED)
    assert build(plain | defaults) == build(plain | {"costs": {}})


def test_removed_costs_of_a_run_directory_are_counted_where_calibration_counts_them_now(tmp_path: Path) -> None:
    cpu = {"queue": "1 ms", "node": "500 us", "reader": "2 ms", "bandwidth": "4 GB/s", "rank_bandwidth": "4 GB/s"}
    data = yaml.safe_load(NEEDED) | {"costs": {"put": "3 ms", "cpu": cpu}}
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.write_scenario(yaml.safe_dump(data))
    found = scenario_of(directory).charges
    assert (found.put, found.cpu.queue, found.cpu.bandwidth) == pytest.approx((3e-3, 1.5e-3, 2e9))
    directory.write_scenario(yaml.safe_dump(data | {"costs": {"cpu": {"node": "soon"}}}))
    with pytest.raises(ScenarioError, match=r"costs\.cpu: 'soon': not a number with a unit; .* it is damaged"):
        scenario_of(directory)
    directory.write_scenario(yaml.safe_dump(data))
    line = complaint(str(tmp_path / "run" / "scenario.yaml"))
    assert "costs.cpu.reader=2 ms: rayio no longer has this key: costs.put has it" in line


def test_what_version_01_wrote_into_its_run_directories_is_still_read() -> None:
    old = Path(__file__).parent / "runs" / "version-0.1" / "scenario.yaml"
    assert "  direct: false\n" in old.read_text()
    assert load(old).storage.page_cache == "use"
    assert load(old, ["storage.page_cache=drop"]).stores.page_cache == "drop"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        *((f"loader.kind={kind}", "") for kind in ("ray_data", "tf_data")),
        *((f"dataset.path={scheme}://b/p", "") for scheme in ("gs", "az")),
        ("loader.parallel_calls=4", ""),
        ("storage.stage=true", ""),
        ("storage.cache=[{tier: local_disk, bytes: 1 GiB}]", "storage.cache[0].tier=local_disk"),
    ],
)
def test_what_is_documented_and_not_built_is_refused_as_such_and_never_ignored(override: str, said: str) -> None:
    line = complaint("unet3d-small", override)
    assert line.partition("; there is ")[0] == f"unet3d-small.yaml: override: not yet: {said or override}"


def test_what_is_not_built_is_refused_with_what_is() -> None:
    assert complaint("unet3d-small", "loader.kind=ray_data") == (
        "unet3d-small.yaml: override: not yet: loader.kind=ray_data; there is actors or torch"
    )
    tiers = "[{tier: ram, bytes: 1 GiB}, {tier: local_disk, bytes: 2 GiB}]"
    assert complaint("unet3d-small", f"storage.cache={tiers}").endswith(f"{tiers}; there is one tier")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x.yaml: is empty"),
        ("# nothing\n", "x.yaml: is empty"),
        ("[1]", "x.yaml: must be a mapping with name, dataset, train, ..., not [1]"),
        ("name: x\nname: y", "x.yaml:2: name is given twice"),
        ("name: x\nloader: {batch_size: 4, batch_size: 5}", "x.yaml:2: loader.batch_size is given twice"),
        ("a: b: c", "x.yaml:1: not YAML: mapping values are not allowed here"),
        ("name: x\nloader:\n\tbatch_size: 3", "x.yaml:3: not YAML"),
        (NEEDED + "expect: {au: >= 0.9}", "x.yaml:4: not YAML: found character '>' that cannot start any token (does"),
        ("name: !!python/object:os.system x", "x.yaml:1: not YAML"),
        ("name: x\n---\nname: y", "x.yaml:2: more than one document"),
        ("a: &a {b: *a}", "x.yaml:1: an alias that contains itself"),
        ('"a\\nb": 2', "x.yaml:1: 'a\\nb'=2: no such key"),
        ("1: 2", "x.yaml:1: 1=2: no such key"),
        (
            "extends: unet3d-small\ntrain: {speeds: {rank: {0: 0.5}}}",
            "x.yaml:2: train.speeds.rank={0: 0.5}: no such key; did you mean ranks?",
        ),
        (
            "extends: unet3d-small\ntrain:\n  speeds: {ranks: {-1: 0.5}}",
            "x.yaml:3: train.speeds.ranks.-1=0.5: must be a whole number from 0 on, followed by a speed: {3: 0.5}",
        ),
        ("on: 3", "x.yaml:1: key on must be text; quote it"),
        ("[a]: 3", "x.yaml:1: key a list or mapping must be text"),
        ("x: 2020-13-45", "x.yaml: not YAML: a number or date that cannot be"),
        ("x: " + "9" * 5000, "x.yaml: not YAML: a number or date that cannot be"),
        ("x: " + "[" * 3000, "x.yaml: nested too deeply"),
        ("x: \x00", "x.yaml: not YAML: unacceptable character"),
        ("name: x\ntrain: {compute: 3}", "x.yaml: dataset: is required and missing"),
        (
            NEEDED + "loader:\n  batchsize: 1\nseed: -1",
            "x.yaml:5: loader.batchsize=1: no such key; did you mean batch_size?",
        ),
        (NEEDED + "loader:\n  batchsize: 1\nseed: -1", "(1 more; rayio validate lists all)"),
        (NEEDED + "loader:\n", "x.yaml:4: loader=null: give it keys"),
        (
            NEEDED + "checkpoint: {every: {epochs: 1}, model: {bytes: 1}}",
            "x.yaml:4: checkpoint.path: is required and missing",
        ),
        ("extends: x.yaml", "extends=x.yaml: goes round in a circle: x.yaml -> x.yaml"),
        ("extends: nope", "x.yaml:1: extends=nope: no scenario is named 'nope'; rayio scenarios lists all names"),
        ("extends: no/pe.yaml", "x.yaml:1: extends=no/pe.yaml: no/pe.yaml: no such file"),
        ("extends: [a, b]", "x.yaml:1: extends=[a, b]: must be a path or the name of one packaged scenario"),
        ("extends: unet3d-small\nloader:\n  batch_size: 0", "x.yaml:3: loader.batch_size=0: must be"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, said: str) -> None:
    assert said in complaint_about(text)


def test_an_error_in_a_base_names_the_base() -> None:
    Path("base.yaml").write_text("\n" + NEEDED + "loader: {batch_size: 0}\n")
    assert complaint_about("extends: base.yaml\nname: top").startswith("base.yaml:5: loader.batch_size=0")
    Path("base.yaml").write_text("a: b: c")
    assert complaint_about("extends: base.yaml").startswith("base.yaml:1: not YAML")


def test_a_longer_circle_is_shown_whole() -> None:
    Path("a.yaml").write_text("extends: b.yaml")
    Path("b.yaml").write_text("extends: a.yaml")
    assert "a.yaml -> b.yaml -> a.yaml" in complaint("a.yaml")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("unet3d-smal", "no scenario is named 'unet3d-smal'; did you mean unet3d-small?"),
        (
            "rubbish",
            "no scenario is named 'rubbish'; rayio scenarios lists all names",
        ),
        ("nope/x.yaml", "nope/x.yaml: no such file"),
        ("mine.yml", "mine.yml: no such file; did you mean mine.yaml?"),
        ("folder.yaml", "folder.yaml: is a folder"),
        ("latin.yaml", "latin.yaml: not text in UTF-8"),
    ],
)
def test_a_source_that_is_none_is_refused_with_the_nearest(source: str, said: str) -> None:
    Path("mine.yaml").write_text(NEEDED)
    Path("folder.yaml").mkdir()
    Path("latin.yaml").write_bytes(b"name: \xe4\n")
    assert said in complaint(source)
    assert complaint("xy.yaml") == "xy.yaml: no such file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused() -> None:
    Path("secret.yaml").write_text(NEEDED)
    Path("secret.yaml").chmod(0)
    assert "cannot be read: Permission denied" in complaint("secret.yaml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loader", "override loader: no '='; write section.key=value"),
        ("=3", "=3: write section.key=value"),
        ("a..b=3", "a..b=3: write section.key=value"),
        ("extends=x", "extends=x: only a file can extend another"),
    ],
)
def test_an_override_that_is_none_is_refused(override: str, said: str) -> None:
    assert said in complaint("unet3d-small", override)


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "mean", "bytes", "x"]), inner),
    max_leaves=5,
)
KEYS = [
    "name", "source", "seed", "cluster", "cluster.nodes", "dataset.path", "dataset.sample_bytes", "dataset.eval",
    "storage.model", "storage.cache", "loader.num_workers", "loader.decode", "loader.max_bytes_in_flight",
    "train.steps", "train.compute", "train.sync", "checkpoint", "checkpoint.every", "checkpoint.writers", "trace",
    "expect", "costs.take",
]  # fmt: skip


@given(key=st.sampled_from(KEYS), value=YAML_VALUES)
def test_whatever_a_key_is_given_it_is_taken_or_refused_in_one_line(key: str, value: object) -> None:
    try:
        load("unet3d-small", {key: value})
    except ScenarioError as error:
        line = str(error)
        assert line.startswith("unet3d-small.yaml: ")
        assert "\n" not in line
        assert key.split(".")[0] in line
        assert not [word for word in JARGON if word in line]


@given(text=st.text(max_size=60))
def test_whatever_a_file_holds_it_is_refused_in_one_line(text: str) -> None:
    Path("x.yaml").write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ScenarioError) as caught:
        load("x.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("x.yaml")


def test_a_text_that_reads_as_a_mapping_has_quotes() -> None:
    """From Python, ``"{steps: 2}"`` is a text: shown bare, it would be the very mapping that is asked for."""
    with pytest.raises(ScenarioError) as caught:
        load("unet3d-small", {"checkpoint.every": "{steps: 2}", "loader.decode": "{kind: uniform}"})
    texts = "\n".join(caught.value.problems)
    assert 'checkpoint.every="{steps: 2}": must be a mapping' in texts
    assert 'loader.decode="{kind: uniform}": not a number' in texts
