"""Kinds that scenarios choose by name: ours, and those that another package adds."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from packages import installed, toy_installed

import rayio
from rayio.data.sampler import Sampler
from rayio.errors import RayioError, ScenarioError
from rayio.kinds import LAYERS, REGISTRIES, STORAGES
from rayio.scenario import checks
from rayio.scenario.load import build, load
from rayio.scenario.model import Scenario
from rayio.scenario.write import json_schema, to_yaml
from rayio.schema.choice import Choosing, options_of
from rayio.storage.stores import opening

USED = """\
name: toys
dataset: {path: toy://data, format: toy, gap: 8 B, num_files: 6, samples_per_file: 8, sample_bytes: 100 B}
loader: {batch_size: 4, num_workers: 2, shuffle: rotate, rotate_by: 3, decode: {kind: sum, times: 3, rate: 1 GB/s}}
storage: {model: toy-tape, shelf: left}
train: {epochs: 2, compute: 100 us, sync: {nap: 2 ms}}
checkpoint: {every: {epochs: 1}, path: toy://saved, model: {bytes: 1 KB}, writers: each_node}
cluster: {ranks_per_node: 2}
"""


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Path]:
    """The toy package as installed, and a folder to work in."""
    with toy_installed(tmp_path) as patch:
        patch.setenv("RAYIO_TOY", str(tmp_path / "elsewhere"))
        patch.chdir(tmp_path)
        (tmp_path / "toys.yaml").write_text(USED)
        yield tmp_path


def complaint(text: str) -> str:
    """The line that a scenario is refused with."""
    with pytest.raises(ScenarioError) as refused:
        build(yaml.safe_load(text), "toys.yaml")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_another_packages_kinds_are_chosen_in_a_scenario_and_used_in_a_run(toy: Path) -> None:
    run = rayio.run("toys.yaml", engine="local", out="run")
    assert run.result.ledger is not None
    assert run.result.ledger.even
    assert run.result.steps == 2 * 2 * 6
    files = sorted((toy / "elsewhere" / "left" / "data" / "000000").iterdir())
    assert [file.stat().st_size for file in files] == [8 * (8 + 100)] * 6
    assert files[0].suffix == ".toy"
    assert len([*(toy / "elsewhere" / "left" / "saved").rglob("node-00000.bin")]) == 2
    spans = run.spans()
    assert spans[spans.name == "read"].bytes.sum() == 2 * 48 * (8 + 100)
    assert spans[spans.name == "decode"].bytes.sum() == 3 * 2 * 48 * 100
    # Each epoch's order is that of the files, from a multiple of three on.
    for epoch in range(2):
        batch = Sampler.from_scenario(load("toys.yaml")).batch(epoch, 0, 0).samples.tolist()
        assert batch[0] % 3 == 0
        assert batch == [(batch[0] + place) % 48 for place in range(4)]


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_actors_use_another_packages_kinds_with_the_options_that_the_scenario_gives(toy: Path) -> None:
    shelf = toy / "of the workers"
    small = ["cluster.ranks_per_node=1", "loader.num_workers=1", "loader.queue=in_rank"]
    options = ["loader.decode.times=2", f"storage.shelf={shelf}"]
    run = rayio.run("toys.yaml", [*small, *options], engine="ray", out="run")
    assert run.result.ledger is not None
    assert run.result.ledger.even, "a reader with another shuffle would have found other ids at a step"
    assert run.result.steps == 2 * 12
    assert [file.stat().st_size for file in sorted((shelf / "data" / "000000").iterdir())] == [8 * (8 + 100)] * 6
    assert [file.stat().st_size for file in (shelf / "saved").rglob("*.bin")] == [1000, 1000]
    spans = run.spans()
    reads, decodes = (spans[(spans.name == name) & (spans.role == "reader")] for name in ("read", "decode"))
    assert reads.bytes.sum() == 2 * 48 * (8 + 100)
    assert decodes.bytes.sum() == 2 * 2 * 48 * 100
    assert os.getpid() not in {*reads.pid, *spans[spans.name == "write"].pid}


def test_a_model_of_storage_from_another_package_takes_the_time_it_says(toy: Path) -> None:
    run = rayio.simulate("toys.yaml", out="simulated")
    # Each of a batch's four samples is a request of its own, which waits 50 ms for its first byte.
    reads = run.spans().query("name == 'read'").duration_ns
    assert reads.min() >= 4 * 50e6
    assert reads.min() < 4 * 51e6
    assert run.spans().query("name == 'sync'").duration_ns.min() == 2e6


def test_costs_of_another_package_are_chosen_by_name_and_charged(toy: Path) -> None:
    run = rayio.simulate("toys.yaml", ["costs=abacus"], out="charged")
    assert set(run.spans().query("name == 'put'").duration_ns) == {30_000_000}
    assert "  costs                 abacus  loader overhead, measured 2026-01-31, 1 abacus, 10 rods" in run.summary()
    assert "costs abacus: counted on an abacus" in run.summary()
    with pytest.raises(ScenarioError, match="costs=abacu: must be none, ray, ray_in_rank, ray_calls, torch or abacus"):
        load("toys.yaml", ["costs=abacu"])


def test_its_options_are_typed_values_that_are_written_shown_and_in_the_schema(toy: Path) -> None:
    scenario = load("toys.yaml")
    assert dict(scenario.dataset.options) == {"gap": 8}
    assert dict(scenario.loader.shuffle_options) == {"rotate_by": 3}
    written = to_yaml(scenario)
    assert "gap: 8 B" in written
    assert "shelf: left" in written
    assert "timeout: 30 s" in written
    assert build(yaml.safe_load(written)) == scenario
    assert checks.table(scenario)["gap_bytes"] == 64
    assert load("toys.yaml", ["dataset.samples_per_file=1", "dataset.num_files=48"]).dataset != scenario.dataset
    idle = checks.idle(load("toys.yaml", ["dataset.samples_per_file=1", "dataset.num_files=48"]))
    assert "dataset.gap: a file of one sample has it before the first" in idle
    schema = json_schema()["$defs"]
    assert "toy" in schema["Dataset"]["properties"]["format"]["enum"]
    assert schema["Dataset"]["properties"]["gap"]["description"].startswith("Of format toy: Bytes of nothing")
    assert "rotate" in schema["Loader"]["properties"]["shuffle"]["enum"]
    assert schema["Loader"]["properties"]["rotate_by"]["minimum"] == 1
    assert scenario.train.sync.seconds(2) == 0.002
    assert dict(scenario.storage.schemes)["toy"].model_dump() == {"shelf": "left", "region": ""}
    assert schema["Storage"]["properties"]["shelf"]["description"].startswith("Of toy://: Folder below $RAYIO_TOY")
    assert schema["Storage"]["properties"]["endpoint"]["description"].startswith("Of s3://: Address of the service")
    assert '"times"' in json.dumps(schema["Loader"]["properties"]["decode"])


def test_the_commands_of_a_new_process_know_it(toy: Path) -> None:
    def rayio_says(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(toy)}
        done = subprocess.run(
            [sys.executable, "-m", "rayio", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert rayio_says("validate", "toys.yaml").startswith("toys.yaml: ok: 2 ranks × 12 steps, 48 samples")
    assert "# gap_bytes: 64 B\n" in (shown := rayio_says("show", "toys.yaml"))
    assert "# storage.model toy-tape: assumed: a tape that is wound already\n" in shown
    assert json.loads(rayio_says("schema"))["$defs"]["Dataset"]["properties"]["gap"]
    rayio_says("generate", "toys.yaml")
    assert len([*(toy / "elsewhere" / "left" / "data").rglob("*.toy")]) == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataset.gap": "3 s"}, "toys.yaml: override: dataset.gap=3 s: unknown unit 's'; bytes are written in"),
        ({"dataset.gap": "2 MiB"}, "toys.yaml: dataset.gap=2097152: must be at most 1 MiB"),
        ({"dataset.gpa": 1}, "dataset.gpa=1: no such key; did you mean gap?"),
        ({"dataset.chunk": 4096}, "dataset.chunk=4096: only hdf5 has chunk, not toy"),
        ({"dataset.format": "npz", "dataset.gap": 9}, "dataset.gap=9: only toy has gap, not npz"),
        ({"loader.rotate_by": 0}, "loader.rotate_by=0: must be a whole number of at least 1"),
        ({"loader.decode.times": 0}, "loader.decode.times=0: must be a whole number of at least 1"),
        ({"loader.decode.tims": 3}, "loader.decode.tims=3: no such key; did you mean times?"),
        ({"train.sync.nap": "2 B"}, "train.sync.nap=2 B: unknown unit 'B'; times are written in"),
        ({"dataset.options": {"gap": 1}}, "dataset.options={gap: 1}: no such key"),
        ({"storage.shelf": 3}, "storage.shelf=3: must be text (quote it)"),
        ({"storage.shlef": "left"}, "storage.shlef=left: no such key; did you mean shelf?"),
        ({"storage.schemes": {"toy": {"shelf": "left"}}}, "storage.schemes={toy: {shelf: left}}: no such key"),
        ({"storage.region": "a b"}, "storage.region=a b: must be the name of a region, such as eu-west-1"),
        ({"dataset.path": "toys://x"}, "unknown scheme toys://; give a path or model://<name>, "),
        ({"dataset.format": "toys"}, "dataset.format=toys: must be npz, hdf5, tfrecord"),
    ],
)
def test_misuse_of_it_is_refused_as_misuse_of_ours(toy: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("toys.yaml", changes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_choosing_another_kind_leaves_the_old_ones_options_behind(toy: Path) -> None:
    plain = load("toys.yaml", ["dataset.format=npz", "loader.shuffle=global"])
    assert dict(plain.dataset.options) == dict(plain.loader.shuffle_options) == {}
    assert not plain.loader.unused_options


def test_an_option_of_several_schemes_is_given_to_each_and_one_that_nobody_gave_to_none(toy: Path) -> None:
    both = load("toys.yaml", ["storage.region=eu-west-1"])
    regions = {name: options.region for name, options in both.stores.options.items() if "region" in dict(options)}
    assert regions == dict.fromkeys(schemes_with("region"), "eu-west-1")
    assert {"s3", "toy"} <= {*regions}
    assert build(yaml.safe_load(to_yaml(both))) == both
    assert hash(pickle.loads(pickle.dumps(both))) == hash(both)
    neither = load("toys.yaml", ["storage.max_attempts=1"])
    assert "region" not in to_yaml(neither)
    assert build(yaml.safe_load(to_yaml(neither))) == neither
    alone = build(yaml.safe_load(USED.replace(", shelf: left", "")))
    assert not alone.stores.options, "what is not asked for is not imported"


def schemes_with(key: str) -> list[str]:
    """The schemes of addresses that have this option."""
    return [name for name, kind in STORAGES.usable().items() if key in options_of(kind).model_fields]


def test_an_option_that_a_scheme_shares_reaches_it_even_where_no_key_is_its_alone(toy: Path) -> None:
    text = USED.replace(", shelf: left", ", region: north")
    run = rayio.run(build(yaml.safe_load(text)), engine="local", out="run")
    assert len([*(toy / "elsewhere" / "north" / "data" / "000000").iterdir()]) == 6
    assert not [note for note in run.result.notes if note.startswith("storage.region")]
    store = opening.open("toy://saved", build(yaml.safe_load(text)).stores)
    assert len(store.entries()) == 2


def test_options_of_a_scheme_that_nothing_of_a_run_has_are_said_to_do_nothing(toy: Path) -> None:
    run = rayio.run("toys.yaml", ["storage.max_attempts=1", "storage.region=eu-west-1"], engine="local", out="run")
    notes = [note for note in run.result.notes if note.startswith(("storage.max_attempts", "storage.region"))]
    others = [name for name in schemes_with("max_attempts") if name != "toy"]
    assert notes == [
        f"storage.max_attempts=1: no effect, because no path of this run is at {name}://" for name in others
    ]


BROKEN = """\
[project]
name = "rayio-broken"
version = "0.3"
[project.entry-points."rayio.format"]
absent = "a_module_that_is_not_there:Format"
half = "half_a_format:Half"
torn = "torn:Format"
toy = "half_a_format:Half"
[project.entry-points."rayio.storage"]
absent = "a_module_that_is_not_there:Store"
"""


def test_a_package_that_cannot_be_used_is_named_with_its_error(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy / "broken").mkdir()
    (toy / "broken.toml").write_text(BROKEN)
    (toy / "half_a_format.py").write_text("class Half:\n    extension = '.half'\n")
    monkeypatch.syspath_prepend(str(toy))
    monkeypatch.syspath_prepend(installed(toy / "broken", toy / "broken.toml"))

    def using(format: str) -> str:
        return USED.replace("format: toy, gap: 8 B", f"format: {format}")

    assert complaint(using("absent")) == (
        "toys.yaml: dataset.format=absent: format 'absent' of package rayio-broken 0.3 (a_module_that_is_not_there:"
        "Format) cannot be used: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
    )
    assert complaint(using("half")).endswith("it has no file_bytes and no write and no requests and no read")
    assert complaint(using("toy")).endswith(
        "is in package rayio-broken 0.3 and package rayio-toy 1.0; uninstall one of them"
    )
    assert "ModuleNotFoundError" in complaint(using("npz").replace("toy://data", "absent://data"))
    (toy / "torn.py").write_text("def (")
    for bad in ("absent", "torn", "half", "toy", "nobodys"):  # whatever the keys beside it: they may be its options
        alone = complaint(using(bad))
        for beside in ("gap: 8 B", "pad: 4 KiB"):
            assert complaint(using(f"{bad}, {beside}")).partition(" (1 more;")[0] == alone
    assert "SyntaxError" in complaint(using("torn, pad: 4 KiB"))
    assert "loader.shuffle=turn: must be none, file" in complaint(
        using("npz").replace("rotate, rotate_by", "turn, turn_by")
    )
    assert "loader.kind=absent: must be" in complaint(
        using("npz").replace("num_workers: 2", "kind: absent, threads: 2")
    )
    for path in ("absent://data", "nobodys://data"):
        said = complaint(using("npz").replace("toy://data", path).replace("shelf: left", "drawer: left"))
        assert f"dataset.path={path}: " in said
    # One that is not asked for is in nobody's way.
    assert build(yaml.safe_load(using("npz"))).dataset.format == "npz"
    assert "chunk" in json_schema()["$defs"]["Dataset"]["properties"]


FAILING = """\
from rayio_toy.format import ToyFormat

class Failing(ToyFormat):
    def contradictions(self, scenario):
        yield from scenario.no_such_section
"""


def test_a_package_whose_kind_fails_as_it_is_asked_is_named(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy / "failing").mkdir()
    points = '[project.entry-points."rayio.format"]\nfailing = "failing_format:Failing"\n'
    (toy / "failing.toml").write_text(f'[project]\nname = "rayio-failing"\nversion = "0.4"\n{points}')
    (toy / "failing_format.py").write_text(FAILING)
    monkeypatch.syspath_prepend(str(toy))
    monkeypatch.syspath_prepend(installed(toy / "failing", toy / "failing.toml"))
    said = complaint(USED.replace("format: toy", "format: failing"))
    assert "format 'failing' of package rayio-failing 0.4 failed: AttributeError: " in said
    assert "no_such_section" in said
    assert said.endswith("; tell its authors, or use another")


#: A scenario of each kind of section, to put kinds into.
PLAIN: dict[str, Any] = {
    "name": "plain",
    "dataset": {"path": "data/x", "num_files": 8, "samples_per_file": 4, "sample_bytes": "1 KB"},
    "loader": {"batch_size": 2},
    "train": {"compute": "1 ms"},
}
#: Where a registry's names are written, beside which their options stand.
CHOICES = [
    (section, choice)
    for section, field in Scenario.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Choosing)
    for choice in field.annotation.choices
]
#: For every option of ours a value that is no default, with what it takes beside it.
GIVEN: dict[str, dict[str, Any]] = {
    "chunk": {"chunk": "4 KiB"},
    "datasets": {"datasets": 4},
    "row_group": {"row_group": 2},
    "columns": {"columns": 3},
    "read_columns": {"read_columns": 1, "columns": 2},
    "compression": {"compression": "gzip"},
    "hdf5.compression": {"compression": "gzip", "chunk": "4 KiB"},
    "compression_ratio": {"compression_ratio": 3, "compression": "zstd"},
    "shuffle_block": {"shuffle_block": 3},
    "shuffle_buffer": {"shuffle_buffer": 5},
    "persistent_workers": {"persistent_workers": True},
    "multiprocessing_context": {"multiprocessing_context": "spawn"},
    "reader": {"reader": "numpy"},
    "aggregators": {"aggregators": 2},
    "num_parallel_reads": {"num_parallel_reads": 2},
    "hdf5.shuffle": {"chunk": "4 KiB", "compression": "gzip", "shuffle": True},
    "request_bytes": {"request_bytes": "5 KiB"},
    "keep_open": {"keep_open": 3},
    "buffer_bytes": {"buffer_bytes": "3 KiB"},
}
#: What kinds cannot be without.
NEEDED: dict[str, dict[str, Any]] = {"block": GIVEN["shuffle_block"], "buffer": GIVEN["shuffle_buffer"]}
#: Other keys that a kind cannot be without.
AROUND: dict[str, dict[str, dict[str, Any]]] = {
    "collective": {"loader": {"partition": "replicated"}, "cluster": {"ranks_per_node": 4}},
    "streamed": {"dataset": {"format": "tfrecord"}, "loader": {"shuffle": "file", "assignment": "by_file"}},
}
OPTIONS = [
    (section, choice, name, key)
    for section, choice in CHOICES
    for name in choice.registry
    for key in options_of(choice.registry[name]).model_fields
]


def with_(section: str, **keys: Any) -> dict[str, Any]:
    around = AROUND.get(keys.get("file_access", ""), {})
    plain = PLAIN | {name: {**PLAIN.get(name, {}), **keys} for name, keys in around.items()}
    return {**plain, section: {**plain[section], **keys}}


def given(section: str, choice: Any, name: str, key: str) -> dict[str, Any]:
    """Give values of an option and of what it needs: ours, or the first of its schema that is no default and builds."""
    if (keys := GIVEN.get(f"{name}.{key}", GIVEN.get(key))) is not None:
        return keys
    own = options_of(choice.registry[name])
    rule, default = own.model_json_schema()["properties"][key], own.model_fields[key].default
    rules = rule.get("anyOf", [rule])
    values = [value for each in rules for value in each.get("enum", [])] + [True, *range(2, 65), 0.5, 1.5, "4 KiB"]
    for value in values:
        with suppress(RayioError):
            chosen = build(with_(section, **{choice.key: name, key: value, **NEEDED.get(name, {})}))
            if getattr(getattr(getattr(chosen, section), choice.field), key) not in (None, default):
                return {key: value}
    raise AssertionError(f"no value of {section}.{key} alone is accepted: add one to GIVEN")


def properties(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key that a schema knows, by the way to it."""
    if isinstance(schema, dict):
        for key, inner in schema.get("properties", {}).items():
            yield f"{path}.{key}", inner
        for key, inner in schema.items():
            yield from properties(inner, f"{path}.{key}")
    elif isinstance(schema, list):
        for inner in schema:
            yield from properties(inner, path)


def test_every_kind_is_in_the_schema() -> None:
    text = json.dumps(json_schema())
    for registry in REGISTRIES:
        for name in registry:
            keys = [name] if registry is not LAYERS else options_of(registry[name]).model_fields
            assert registry is STORAGES or all(f'"{key}"' in text for key in keys), f"{registry.group} {name}"


def test_every_key_of_the_schema_has_a_description_and_the_schema_is_one() -> None:
    schema = json_schema()
    found = [*properties(schema)]
    assert len(found) > 100
    sections = {f"#/$defs/{name}" for name, inner in schema["$defs"].items() if "description" in inner}
    assert [
        path for path, inner in found if not {"description", "const"} & {*inner} | {inner.get("$ref")} & sections
    ] == []
    pytest.importorskip("jsonschema").Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(("section", "choice", "name", "key"), OPTIONS, ids=lambda value: str(value)[:20])
def test_an_option_belongs_to_its_kind(section: str, choice: Any, name: str, key: str) -> None:
    keys = given(section, choice, name, key)
    chosen = build(with_(section, **{choice.key: name, **keys}))
    value = getattr(getattr(getattr(chosen, section), choice.field), key)
    assert value not in (None, options_of(choice.registry[name]).model_fields[key].default), "GIVEN has another value"
    assert build(yaml.safe_load(to_yaml(chosen))) == chosen
    assert hash(pickle.loads(pickle.dumps(chosen))) == hash(chosen)
    for other in choice.registry:
        if key in options_of(choice.registry[other]).model_fields:
            continue
        beside = with_(section, **{choice.key: other, key: keys[key], **NEEDED.get(other, {})})
        if choice.spare:
            assert any(f"{section}.{key}=" in line and "nothing asks" in line for line in checks.idle(build(beside)))
        else:
            with pytest.raises(ScenarioError, match=f"only .*{name}.* has {key}, not {other}"):
                build(beside)


@pytest.mark.parametrize("section", sorted({section for section, _ in CHOICES}))
def test_no_option_has_the_name_of_a_key_of_its_section(section: str) -> None:
    kind = Scenario.model_fields[section].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Choosing)
    assert not {*kind.options_there_are()} & {*kind.model_fields}
