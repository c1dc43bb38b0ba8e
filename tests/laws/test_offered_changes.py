"""Laws of changes: each that ``explain`` and ``capacity`` may propose, of every section, layer, access and format."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import rayio
from rayio.kinds import LAYERS
from rayio.predict.changes import OFFERS
from rayio.scenario.change import Change
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.study.sizing.knee import Planned
from scenarios import scenario

SAVED = {"path": "c", "model": {"bytes": 4_000_000}, "every": {"steps": 4}}
PIPELINE = {"cluster__ranks_per_node": 4, "train__parallelism": {"pipeline": 2, "microbatches": 2}}
COPIED = {"bandwidth": "10 GB/s"}
#: Between two overrides of a key.
OVERRIDES = re.compile(r" (?=[a-z_]+\.)")
#: Scenarios that have a use for each change.
WANTED: dict[str, dict[str, Any]] = {
    "plain": {"costs": "ray", "cluster__cores": 4, "dataset__samples_per_file": 2},
    "without workers": {"loader__num_workers": 0},
    "autoscaled": {"loader__num_workers": {"min": 1, "max": 4}, "train__sync": "none"},
    "unequal cores": {"cluster__nodes": 2, "cluster__cores": [4, 8], "cluster__ranks_per_node": 1},
    "all-reduce": {"train__sync": {"kind": "allreduce", "bytes": "10 MB", "bandwidth": "10 GB/s", "latency": "2 ms"}},
    "copied": {"train__device_copy": COPIED},
    "copied from pageable memory": {"train__device_copy": COPIED | {"pageable_bandwidth": "5 GB/s"}},
    "pinned": {"train__device_copy": COPIED, "loader__pin_memory": True},
    "pipeline": {**PIPELINE, "loader__batch_size": 8},
    "saved": {"checkpoint": SAVED},
    "saved in epochs": {"checkpoint": SAVED | {"every": {"epochs": 1}}},
    "saved by the clock": {"checkpoint": SAVED | {"every": {"seconds": "50 ms"}}},
    "saved in a tier": {"checkpoint": SAVED | {"burst": {"path": "b", "capacity": "10 MB", "model": "nvme"}}},
    "stages": {"stages": [{"name": "s", "reads": {"files": 2, "size": "1 MB"}, "count": 1}]},
    "evaluated": {
        "dataset__eval": {"path": "model://e", "num_files": 40},
        "train__evaluate": {"compute": "1 ms", "every": {"steps": 4}},
    },
    "workers apart": {
        "cluster__reader_nodes": 1, "cluster__placement": "dedicated_readers", "cluster__nic_bandwidth": "1 GB/s",
    },
    "hdf5": {"dataset__format": "hdf5", "dataset__chunk": "500 B"},
    "streamed": {"dataset__format": "tfrecord", "loader__file_access": "streamed", "loader__shuffle": "file"},
    "at most": {
        "loader__io_depth": 1024, "loader__num_workers": 4096, "loader__prefetch_factor": 16,
        "loader__batch_size": 4096, "dataset__num_files": 8192,
    },
    "at most for a window": {"loader__num_workers": 1 << 10, "loader__prefetch_factor": 1 << 6},
    "autoscaled at most": {"loader__num_workers": {"min": 1, "max": 3000}},
    "pipeline at most": PIPELINE,
    **{f"layer {name}": {"layer": name} for name in LAYERS.built_in},
}  # fmt: skip


class Run(Planned):
    """A run with every reason for a change."""

    has_cores = True


def changes_of(scenario: Scenario) -> list[Change]:
    """Give the changes that are of use for a scenario, whose workers waited for a bound that is not lifted."""
    run = Run(scenario, was_memory_bound=scenario.loader.max_bytes_in_flight == "auto")
    return [change for offer in OFFERS for change in offer(run) if change.is_of_use(scenario)]


def wanted(name: str) -> Scenario:
    keys = dict(WANTED[name])
    if (layer := keys.pop("layer", None)) is not None:
        keys = {f"{of}__{key}": value for of, part in LAYERS[layer].example.items() for key, value in part.items()}
    return scenario(**keys)


@pytest.mark.parametrize("name", WANTED)
def test_a_change_is_what_its_key_makes_and_is_offered_once(name: str, tmp_path: Path) -> None:
    file, usual = tmp_path / "law.yaml", set[str]()
    file.write_text(to_yaml(wanted(name)))
    before = load(file)
    changes = changes_of(before)
    assert len({change.name for change in changes}) == len(changes)
    if name != "plain":
        usual = {change.name for change in changes_of(wanted("plain"))} - {"prefetch × 2"}
    for change in changes:
        if change.name in usual and "at most" not in name:
            continue
        after = change.to(before)
        assert after != before, f"{change.name} changes nothing"
        assert change.to(after) == after, f"{change.name} twice is another change"
        if change.key:
            assert load(file, OVERRIDES.split(change.key)) == after, f"{change.key} is not {change.name}"
        else:
            assert change.kind in ("removal", "limit", "machine"), f"{change.name} has no key"
        if change.kind == "machine":
            (tmp_path / "after.yaml").write_text(to_yaml(after))
            assert load(tmp_path / "after.yaml") == after, f"{change.name} is lost in a file"
        again = [each.name for each in changes_of(after) if each.key and each.to(after) == after]
        assert not again, f"after {change.name}, {again} change nothing"


def test_every_change_of_a_section_layer_or_format_is_offered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = set[tuple[Path, int]](), Change.__init__

    def recorded(change: Change, *words: Any, **keys: Any) -> None:
        caller = sys._getframe(1)
        made.add((Path(caller.f_code.co_filename), caller.f_lineno))
        make(change, *words, **keys)

    monkeypatch.setattr(Change, "__init__", recorded)
    for name in WANTED:
        changes_of(wanted(name))
    written = {
        (file, node.lineno)
        for room in ("data", "scenario", "storage")
        for file in Path(*rayio.__path__, room).rglob("*.py")
        if "Change(" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Change"
    }
    assert len(written) > 30
    assert not written - made
