"""Laws of layers: each one that is registered, ours and that of another package."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from registered import every

import rayio
from rayio.analyze.stalls import attribute
from rayio.engines import local
from rayio.kinds import LAYERS
from rayio.model.ledger import Tally, close
from rayio.model.plan import Plan
from rayio.model.planning import plan_of, storage_of
from rayio.scenario.layers import layers_of
from rayio.scenario.load import build
from rayio.schema.choice import options_of
from rayio.trace.recorder import Recorder
from rayio.trace.slices import Slices

#: What a scenario writes to have each layer, below its sections. A new layer that is not here fails with what to add.
GIVEN: dict[str, dict[str, Any]] = {
    "throttle": {"storage": {"throttle": {"reads_per_second": 100}, "max_attempts": 50}},
    "stripes": {
        "storage": {
            "model": {
                "first_byte": "10 us",
                "connection_bandwidth": "1 GB/s",
                "bandwidth": "1 GB/s",
                "servers": {"number": 2, "bandwidth": "1 MB/s", "random": "1 ms"},
            }
        }
    },
    "faults": {"storage": {"faults": {"stalls": [{"rate": 0.1, "seconds": "20 ms"}]}}},
    "cache": {"storage": {"cache": [{"tier": "ram", "bytes": "40 kB"}]}},
    "network": {"cluster": {"nodes": 2, "placement": "spread", "nic_bandwidth": "10 MB/s"}},
    "collective": {
        "loader": {"file_access": "collective", "partition": "replicated", "aggregators": 1},
        "cluster": {"ranks_per_node": 2},
    },
    "in_memory": {"loader": {"file_access": "in_memory", "held_by": "node"}, "cluster": {"ranks_per_node": 2}},
    "listing": {"storage": {"listing": 2000}},
    "toll": {"storage": {"toll": "1 ms"}},
}


def scenario(name: str, **more: Any) -> Any:
    """Make a small scenario that has the layer of this name."""
    assert name in GIVEN, f"add what a scenario writes for layer {name!r} to GIVEN in tests/laws/test_layers.py"
    given = GIVEN[name]
    return build(
        {
            "name": "law",
            "dataset": {"path": "model://law", "num_files": 12, "samples_per_file": 8, "sample_bytes": "1 kB"},
            "loader": {"batch_size": 4, "num_workers": 2, **given.get("loader", {})},
            "train": {"epochs": 2, "compute": "1 ms"},
            "storage": {"model": "memory", **given.get("storage", {})},
            "cluster": {"ranks_per_node": 1, **given.get("cluster", {})},
            **more,
        },
        "law.yaml",
    )


@every(LAYERS)
def test_a_layer_is_a_small_value_of_the_plan_that_is_there_only_if_asked_for(name: str) -> None:
    wanted = scenario(name)
    (layer,) = plan_of(wanted, modelled=True).layers
    assert layer.name == name
    assert pickle.loads(pickle.dumps(layer)) == layer
    assert hash(layer) == hash(pickle.loads(pickle.dumps(layer)))
    assert len(pickle.dumps(layer)) < 4096
    if options_of(LAYERS[name]).model_fields:
        without = wanted.model_copy(update={"storage": wanted.storage.without(name)})
        assert layers_of(without, modelled=True) == ()
        assert plan_of(without, modelled=True).layers == ()


@every(LAYERS)
def test_runs_with_it_are_equal_and_book_every_sample_and_every_delay(name: str, tmp_path: Path) -> None:
    runs = [rayio.simulate(scenario(name), out=tmp_path / str(number)) for number in range(2)]
    spans: list[Any] = [run.spans() for run in runs]
    assert spans[0].equals(spans[1])
    books = runs[0].result.ledger
    assert books is not None
    assert books.even
    charged = attribute(Slices.of(runs[0].directory.spans()))
    assert (sum(charged.lost.values()) + charged.steps.parts["compute"] == charged.steps.duration).all()
    delays, work = (spans[0][spans[0].name.isin(names)] for names in (["delay"], ["read", "write"]))
    for one in delays.itertuples():
        mine, end = work[(work["role"] == one.role) & (work["rank"] == one.rank)], one.start_ns + one.duration_ns
        assert ((mine.start_ns <= one.start_ns) & (end <= mine.start_ns + mine.duration_ns)).any()
    assert {text.split('"')[3] for text in set(delays.attributes)} <= {*LAYERS[name].causes}


def delivered(plan: Plan, root: Path) -> tuple[list[Tally], dict[str, dict[tuple[Any, ...], tuple[int, int]]]]:
    """Run a plan in this process; give what was consumed, and the requests and bytes of each read and write."""
    recorder, tallies = Recorder(), plan.tallies()
    local.run(plan, recorder, root, tallies)
    assert close(plan.planned(), tallies).even
    table = recorder.drain()
    assert table is not None
    asked: dict[str, dict[tuple[Any, ...], tuple[int, int]]] = {"read": {}, "write": {}}
    for row in table.to_pylist():
        if (kind := row["name"]) in asked:
            of = row["role"], row["index"], row["rank"], row["epoch"], row["step"]
            assert of not in asked[kind]
            asked[kind][of] = row["requests"], row["bytes"]
    assert asked["read"]
    assert asked["write"]
    return tallies, asked


@every(LAYERS)
@pytest.mark.parametrize("modelled", [False, True], ids=["files", "model"])
def test_a_run_in_real_time_delivers_and_requests_what_it_does_without(
    modelled: bool, name: str, tmp_path: Path
) -> None:
    dataset = {"path": "data", "num_files": 8, "samples_per_file": 1, "sample_bytes": "4 kB"}
    more = {
        "checkpoint": {"path": "saved", "every": {"steps": 2}, "model": {"bytes": "20 kB"}, "request_bytes": "4 kB"}
    }
    loader = {"batch_size": 2, "num_workers": 1}
    wanted = on_disk(scenario(name, dataset=dataset, loader=loader, **more), tmp_path)
    plan = plan_of(wanted, modelled=modelled)
    if not plan.layers:
        pytest.skip("it models storage, and there are files")
    (layer,) = plan.layers
    with_it, without = (delivered(each, tmp_path) for each in (plan, replace(plan, layers=())))
    assert with_it[0] == without[0], "other samples"
    for kind, requests in without[1].items():
        assert with_it[1][kind].keys() == requests.keys()
        for of, expected in requests.items():
            found = with_it[1][kind][of]
            assert found == expected or (kind == "read" and layer.keeps and found <= expected), (kind, of)


@every(LAYERS)
def test_its_changes_can_be_simulated_and_have_names_of_their_own(name: str) -> None:
    wanted = scenario(name)

    class Run:
        scenario, modelled, costs = wanted, storage_of(wanted), wanted.charges
        workers, has_cores, was_memory_bound, is_throttled = 2, False, False, False

    (layer,) = layers_of(wanted, modelled=True)
    changes = [*layer.changes(Run())]
    assert len({change.name for change in changes}) == len(changes)
    for change in changes:
        changed = change.to(wanted)
        kept = changed.storage == wanted.storage and changed.cluster == wanted.cluster
        assert not kept or layers_of(changed, modelled=True) != (layer,), f"{change.name} changes nothing"
    if layer.causes:
        assert any({*layer.causes} <= {*change.removes} for change in changes), "a cause can be taken away"
