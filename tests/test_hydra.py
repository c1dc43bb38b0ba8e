"""Configurations composed as Hydra composes them: defaults, groups, overrides, interpolations, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rayio.errors import ScenarioError
from rayio.imports.hydra import compose, parse_override


def composed(folder: Path, files: Mapping[str, str], *overrides: str, first: str = "main.yaml") -> dict[str, Any]:
    """Write files; return what the first one is composed to."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return compose(folder / first, first, [parse_override(text) for text in overrides]).data


BASE = "train: {epochs: 1, seed: 5}\nreader: {batch_size: 2}\n"


@pytest.mark.parametrize(
    ("defaults", "epochs"),
    [("[base]", 9), ("[base, _self_]", 9), ("[_self_, base]", 1), ("[optional more: none, base]", 9)],
)
def test_a_file_overrides_its_defaults_unless_self_stands_before_them(
    defaults: str, epochs: int, tmp_path: Path
) -> None:
    """As of Hydra 1.1."""
    entries = defaults.replace("optional more: none", "{optional more: none}")
    data = composed(tmp_path, {"main.yaml": f"defaults: {entries}\ntrain: {{epochs: 9}}\n", "base.yaml": BASE})
    assert data == {"train": {"epochs": epochs, "seed": 5}, "reader": {"batch_size": 2}}


def test_a_group_is_below_its_name_and_can_be_chosen_on_the_command_line(tmp_path: Path) -> None:
    files = {
        "main.yaml": "defaults: [_self_, {dataset: small}, {override dataset: middle}, {reader@x: r}]\ntrain: {}\n",
        "dataset/small.yaml": "num_files_train: 1\n",
        "dataset/middle.yaml": "num_files_train: 5\n",
        "dataset/large.yaml": "defaults: [small]\nformat: npz\n",
        "reader/r.yaml": "# @package _group_\nx: 1\n",
    }
    assert composed(tmp_path, files) == {"train": {}, "dataset": {"num_files_train": 5}, "x": {"x": 1}}
    large = composed(tmp_path, files, "dataset=large")
    assert large["dataset"] == {"num_files_train": 1, "format": "npz"}


def test_a_whole_configuration_has_its_workload_from_a_group(tmp_path: Path) -> None:
    files = {
        "main.yaml": "defaults: [_self_, {workload: one}, {override hydra/help: x}]\nhydra: {run: '${now:%Y}'}\n",
        "workload/one.yaml": "defaults: [base, /shared/global]\nmodel: {name: one}\n",
        "workload/two.yaml": "model: {name: two}\n",
        "workload/base.yaml": BASE,
        "shared/global.yaml": "# @package _global_\nworkload: {train: {epochs: 7}}\n",
    }
    one = {"model": {"name": "one"}, "train": {"epochs": 7, "seed": 5}, "reader": {"batch_size": 2}}
    assert composed(tmp_path, files) == one
    assert composed(tmp_path, files, "workload=two", "hydra.run.dir=x") == {"model": {"name": "two"}}
    assert composed(tmp_path, files, "++workload.train.epochs=3", first="workload/one.yaml")["train"]["epochs"] == 3


def test_a_group_is_chosen_without_a_sign(tmp_path: Path) -> None:
    files = {"main.yaml": "defaults: [{workload: one}]\n", "workload/one.yaml": BASE, "workload/two.yaml": BASE}
    for override in ("+workload=two", "++workload=two", "~workload"):
        with pytest.raises(ScenarioError, match=r"takes no [+~]+; write workload=NAME"):
            composed(tmp_path, files, override)


def test_overrides_replace_add_and_remove(tmp_path: Path) -> None:
    files = {"main.yaml": "a: {b: 1, c: {d: 2}}\n"}
    told = ("workload.a.b=5", "+workload.a.e=[1, x]", "++workload.f.g={type:normal,mean:0.5}", "~workload.a.c.d=2")
    assert composed(tmp_path, files, *told) == {
        "a": {"b": 5, "c": {}, "e": [1, "x"]},
        "f": {"g": {"type": "normal", "mean": 0.5}},
    }
    assert composed(tmp_path, files, "++workload.a={b: 7}")["a"] == {"b": 7, "c": {"d": 2}}


def test_interpolations_have_the_value_of_their_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/scratch")
    text = """
a: {n: 3, list: [7, 8], same: "${.n}", up: "${..b.x}", each: "${.list}", map: "${b}"}
b: {x: "${workload.a.n}", name: n, dynamic: "${a.${.name}}", at: "${a.list[1]}", dotted: "${a.list.0}"}
c: {path: "${oc.env:DATA}/x-${a.n}", none: "${oc.env:NOWHERE,/tmp}", kept: '\\${a.n}', dollar: $5}
"""
    data = composed(tmp_path, {"main.yaml": text})
    assert (data["a"]["same"], data["a"]["up"], data["a"]["each"]) == (3, 3, [7, 8])
    assert data["a"]["map"] == data["b"] == {"x": 3, "name": "n", "dynamic": 3, "at": 8, "dotted": 7}
    assert data["c"] == {"path": "/scratch/x-3", "none": "/tmp", "kept": "${a.n}", "dollar": "$5"}


#: A text, and mappings, that each line multiplies.
DOUBLED = "\n".join([f"a{n}: '" + f"${{a{n + 1}}}" * 9 + "'" for n in range(9)]) + "\na9: " + "x" * 99
COPIED = "\n".join(f"a{n}: {{" + ", ".join(f"k{k}: '${{a{n + 1}}}'" for k in range(9)) + "}" for n in range(9))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "main.yaml: is empty; a workload of DLIO has sections"),
        ("- 1", "main.yaml: must be a mapping with keys, not [1]"),
        ("a: {b: 1", "main.yaml:1: not YAML"),
        ("a: 1\na: 2", "main.yaml:2: a is given twice"),
        ("workload: 5", "main.yaml: workload=5: must be a mapping"),
        ("workload: {a: 1}\nother: 2", "main.yaml: other: is outside of workload"),
        ("defaults: base", "main.yaml:1: defaults=base: must be a list"),
        ("defaults: 4", "main.yaml:1: defaults=4: must be a list"),
        ("defaults: [{'': base}]", "main.yaml:1: defaults: {'': base}: must be _self_, a file's name or {group: name}"),
        ("defaults: [bsae]", "main.yaml:1: defaults: bsae: no such file; did you mean base?"),
        ("defaults: [loop]", "loop.yaml: defaults: go round in a circle: main.yaml -> loop.yaml -> main.yaml"),
        ("defaults: [_self_, _self_]", "main.yaml:1: defaults: _self_ stands twice"),
        ("defaults: [3]", "main.yaml:1: defaults: 3: must be _self_, a file's name or {group: name}"),
        ("defaults: [{a: b, c: d}]", "must be _self_, a file's name or {group: name}"),
        ("defaults: [{some group: d}]", "must be _self_, a file's name or {group: name}"),
        ("defaults: [../other]", "main.yaml:1: defaults: ../other: leaves the folder of the configuration"),
        ("a: {b: '${c.d}'}", "main.yaml:1: a.b: ${c.d}: there is no such key"),
        ("abc: {d: 1}\ne: '${abd.d}'", "main.yaml:2: e: ${abd.d}: there is no such key; did you mean workload.abc?"),
        ("reader: {a: 1}\ne: '${workload.reeder.a}'", "there is no such key; did you mean workload.reader?"),
        ("a: '${b}'\nb: '${a}'", "a: goes round in a circle: workload.a -> workload.b -> workload.a"),
        ("a: {b: '${workload.a}'}", "a.b: goes round in a circle: workload.a.b -> workload.a.b"),
        ("a: '${now:%Y}'", "main.yaml:1: a: ${now:%Y}: rayio has no resolver now; write its value"),
        ("a: '${b'", "main.yaml:1: a: ${b: an interpolation is not closed"),
        ("a: '${}'", "main.yaml:1: a: ${}: names no key"),
        ("a: {x: 1}\nb: 'x-${a}'", "main.yaml:2: b: ${a} is no single value"),
        ("a: '${oc.env:RAYIO_NOT_THERE}'", "main.yaml:1: a: ${oc.env:RAYIO_NOT_THERE}: the environment has no"),
        (DOUBLED, "interpolates to more than 65536 characters"),
        (COPIED + "\na9: 1", "more than 10000 values"),
    ],
)  # fmt: skip
def test_what_cannot_be_composed_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    files = {"base.yaml": BASE, "loop.yaml": "defaults: [main]\n", "main.yaml": text}
    with pytest.raises(ScenarioError) as refused:
        composed(tmp_path, files)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("++workload.a.b", "override ++workload.a.b: no '='"),
        ("++=1", "override ++'': is no key"),
        ("++workload..b=1", "is no key; write ++workload.section.key=value"),
        ("workload.a.x=1", "override workload.a.x: there is no workload.a.x (++ adds a key)"),
        ("workload.a.bb=1", "there is no workload.a.bb; did you mean workload.a.b?"),
        ("~workload.c", "override ~workload.c: there is no workload.c"),
        ("~workload.a.b=2", "override ~workload.a.b: is 1 there, so it is not removed"),
        ("+workload.a.b=2", "override +workload.a.b: is there already; write ++workload.a.b to replace it"),
        ("++workload.a.b.c=2", "override ++workload.a.b.c: workload.a.b is 1, not a mapping"),
        ("++other.a=2", "override ++other.a: begins with none of DLIO's sections"),
        ("workload=x", "override workload: chooses a workload, but the file is one"),
        ("++workload.a=" + "[" * 60 + "]" * 60, "override workload.a: nested too deeply"),
    ],
)
def test_an_override_that_cannot_be_is_one_line(override: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as refused:
        composed(tmp_path, {"main.yaml": "a: {b: 1}\n"}, override)
    assert line in str(refused.value)
