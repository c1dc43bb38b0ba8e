"""Laws of layers: each one that is registered, ours and that of another package."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from registered import every

import rayio
from rayio.analyze.stalls import attribute
from rayio.engines import local
from rayio.engines.in_process import InProcess
from rayio.engines.virtual import simulation
from rayio.errors import StorageError
from rayio.kinds import KEYLESS_LAYERS, LAYERS
from rayio.model.ledger import Tally, close
from rayio.model.plan import Plan
from rayio.model.planning import plan_of, storage_of
from rayio.scenario.layers import layers_of
from rayio.scenario.load import build, load
from rayio.schema.choice import options_of
from rayio.storage.base import Requests
from rayio.storage.model import ModelStorage
from rayio.trace.recorder import Recorder
from rayio.trace.slices import Slices


def given(name: str, **more: Any) -> dict[str, Any]:
    """Return the keys of a small scenario that has the layer of this name."""
    example = LAYERS[name].example
    return {
        "name": "law",
        "dataset": {"path": "model://law", "num_files": 12, "samples_per_file": 8, "sample_bytes": "1 kB"},
        "loader": {"batch_size": 4, "num_workers": 2, **example.get("loader", {})},
        "train": {"epochs": 2, "compute": "1 ms"},
        "storage": {"model": "memory", **example.get("storage", {})},
        "cluster": {"ranks_per_node": 1, **example.get("cluster", {})},
        **more,
    }


def scenario(name: str, **more: Any) -> Any:
    """Make a small scenario that has the layer of this name."""
    return build(given(name, **more), "law.yaml")


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
        assert wanted.storage.model_dump().keys() == without.storage.model_dump().keys() or name not in LAYERS.built_in
        assert name not in KEYLESS_LAYERS, "it is imported only if its key is given"
        acts = layers_of(wanted, modelled=False) == (layer,)
        assert acts or f"storage.{name}" in layer.idle_if_real, "on real storage its key has no effect, without a note"


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
    delays = within(spans[0].to_dict("records"))
    assert {row["attributes"].split('"')[3] for row in delays} <= {*LAYERS[name].causes}


def within(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold each delay to be within a read or write of its role; give the delays."""
    delays, work = ([row for row in rows if row["name"] in names] for names in (("delay",), ("read", "write")))
    for row in delays:
        begin, end = row["start_ns"], row["start_ns"] + row["duration_ns"]
        assert any(
            (each["role"], each["rank"]) == (row["role"], row["rank"])
            and each["start_ns"] <= begin <= end <= each["start_ns"] + each["duration_ns"]
            for each in work
        )
    return delays


def delivered(plan: Plan, root: Path) -> tuple[list[Tally], list[dict[str, Any]]]:
    """Run a plan in this process; give what was consumed, and the spans."""
    recorder, tallies = Recorder(), plan.tallies()
    local.run(plan, recorder, root, tallies)
    assert close(plan.planned(), tallies).even
    table = recorder.drain()
    assert table is not None
    return tallies, table.to_pylist()


def asked(rows: list[dict[str, Any]], kind: str) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Give the requests and bytes of each read or write."""
    spans = [row for row in rows if row["name"] == kind]
    requests = {
        (row["role"], row["index"], row["rank"], row["epoch"], row["step"]): (row["requests"], row["bytes"])
        for row in spans
    }
    assert len(requests) == len(spans) > 0
    return requests


def changed(with_it: list[dict[str, Any]], without: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Give what a layer changes: requests and bytes of storage, delays by cause, and batches between nodes."""
    changes: Counter[tuple[str, str]] = Counter()
    for rows, sign in ((with_it, 1), (without, -1)):
        for row in rows:
            if row["name"] in ("read", "write", "delay", "transfer"):
                name = row["attributes"].split('"')[3] if row["name"] == "delay" else row["name"]
                changes[name, "number"] += sign
                changes[name, "requests"] += sign * (row["requests"] or 0)
                changes[name, "bytes"] += sign * (row["bytes"] or 0)
    return {what: number for what, number in changes.items() if number}


def shortest(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Give the shortest time of what layers add to reads and writes, or to batches between nodes (ns)."""
    added = [(row["name"], row["duration_ns"]) for row in rows if row["name"] in ("delay", "transfer")]
    return {name: min(ns for of, ns in added if of == name) for name, _ in added}


@every(LAYERS)
@pytest.mark.parametrize("modelled", [False, True], ids=["files", "model"])
def test_in_real_time_it_does_what_it_does_on_the_virtual_clock(modelled: bool, name: str, tmp_path: Path) -> None:
    given_loader = {"batch_size": 2, "num_workers": 2, **LAYERS[name].example.get("loader", {})}
    more = {
        "dataset": {"path": "data", "num_files": 8, "samples_per_file": 1, "sample_bytes": "4 kB"},
        "checkpoint": {"path": "saved", "every": {"steps": 2}, "model": {"bytes": "20 kB"}, "request_bytes": "4 kB"},
    }
    wanted = on_disk(scenario(name, loader=given_loader, **more), tmp_path)
    plan, simulated = plan_of(wanted, modelled=modelled), plan_of(wanted, modelled=True)
    if not plan.layers:
        pytest.skip("it models storage, and there are files")
    (layer,) = plan.layers
    foreseen = spans_of(simulated)
    change = changed(foreseen, spans_of(replace(simulated, layers=())))
    is_sparing = change.get(("read", "requests"), 0) < 0
    with_it, without = (delivered(each, tmp_path) for each in (plan, replace(plan, layers=())))
    assert with_it[0] == without[0], "other samples"
    for kind in ("read", "write"):
        made, needed = asked(with_it[1], kind), asked(without[1], kind)
        assert made.keys() == needed.keys()
        for of, requests in needed.items():
            is_spared = kind == "read" and (layer.keeps or is_sparing) and made[of] <= requests
            assert made[of] == requests or is_spared, (kind, of)
    if modelled:
        return
    assert change, "what its example changes depends on time alone"
    found = changed(with_it[1], without[1])
    # Bytes that are really passed on need no modelled time.
    passed_on = {what: number for what, number in change.items() if what[0] not in layer.causes}
    assert found == change or (is_sparing and found == passed_on), "it does something else on real files"
    took, least = shortest(with_it[1]), {} if is_sparing else shortest(foreseen)
    assert all(took[kind] >= 0.99 * ns for kind, ns in least.items()), "it is over before its time"
    within(with_it[1])


SHARD = 20_000
SAVED = {"path": "saved", "every": {"steps": 2}, "model": {"bytes": SHARD}, "request_bytes": "4 kB"}


class Underneath:
    """The calls that reach modelled storage: when each began and ended (ns), by its address or path."""

    def __init__(self, patched: pytest.MonkeyPatch, error: StorageError | None = None) -> None:
        self.reads: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self.writes: dict[tuple[str, int, int, bool], list[tuple[int, int]]] = {}
        read, write = ModelStorage.read, ModelStorage.write

        async def reading(storage: ModelStorage, requests: Requests, load: Any) -> Any:
            if error is not None and requests.address[2] > 0:
                raise error
            begun = storage.clock.now()
            served = await read(storage, requests, load)
            self.reads.setdefault(requests.address, []).append((begun, storage.clock.now()))
            return served

        async def writing(storage: ModelStorage, path: str, nbytes: int, each: int, *, fsync: bool) -> Any:
            begun = storage.clock.now()
            served = await write(storage, path, nbytes, each, fsync=fsync)
            self.writes.setdefault((path, nbytes, each, fsync), []).append((begun, storage.clock.now()))
            return served

        patched.setattr(ModelStorage, "read", reading)
        patched.setattr(ModelStorage, "write", writing)
        patched.setattr(InProcess, "_is_foreseen", lambda *_: False)


def spans_of(plan: Plan) -> list[dict[str, Any]]:
    """Simulate a plan; return its spans."""
    recorder = Recorder()
    simulation.simulate(plan, recorder, plan.tallies())
    table = recorder.drain()
    assert table is not None
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@every(LAYERS)
def test_a_layer_calls_what_is_under_it_once_and_says_what_it_adds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(scenario(name, checkpoint=SAVED), modelled=True)
    (layer,) = plan.layers
    with monkeypatch.context() as patched:
        bare = Underneath(patched)
        without = spans_of(replace(plan, layers=()))
    with monkeypatch.context() as patched:
        under = Underneath(patched)
        spans = spans_of(plan)
    assert spans != without, "it does nothing"
    assert under.reads.keys() <= bare.reads.keys()
    assert layer.keeps or all(len(calls) == 1 for calls in under.reads.values())
    if not under.reads:
        assert not under.writes, "the model's own requests are made elsewhere, or all are"
        return
    assert {of: len(calls) for of, calls in under.writes.items()} == dict.fromkeys(bare.writes, 1)
    added: Counter[tuple[Any, ...]] = Counter()
    for row in spans:
        if row["name"] == "delay":
            assert row["duration_ns"] > 0
            added[row["role"], row["index"], row["rank"], row["epoch"], row["step"]] += row["duration_ns"]
    assert bool(added) == bool(layer.causes), "its delays have a cause"
    for row in spans if layer.causes else ():
        took = row["duration_ns"] - added[row["role"], row["index"], row["rank"], row["epoch"], row["step"]]
        if row["name"] == "read" and (calls := under.reads.get((row["rank"], row["epoch"], row["step"]))):
            ((begun, ended),) = calls
            assert took == ended - begun
    longer = sum(row["duration_ns"] for row in spans if row["name"] == "write")
    shards = (calls for (_, nbytes, *_), calls in under.writes.items() if nbytes == SHARD)  # manifests have other spans
    below = sum(ended - begun for calls in shards for begun, ended in calls)
    assert longer == below + sum(ns for (role, *_), ns in added.items() if role == "checkpoint_writer")


@every(LAYERS)
def test_an_error_from_below_passes_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(scenario(name), modelled=True)
    under = Underneath(monkeypatch, StorageError("planted"))
    try:
        spans_of(plan)
    except StorageError as error:
        assert "planted" in str(error)  # noqa: PT017
    else:
        assert not under.reads, "an error was swallowed"


@every(LAYERS)
def test_its_changes_can_be_made_and_their_keys_make_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "law.yaml").write_text(json.dumps(given(name)))
    wanted = load(tmp_path / "law.yaml")

    class Run:
        scenario, modelled, costs = wanted, storage_of(wanted), wanted.charges
        workers, has_cores, was_memory_bound, is_throttled = 2, False, False, False

    (layer,) = layers_of(wanted, modelled=True)
    changes = [*layer.changes(Run())]
    assert len({change.name for change in changes}) == len(changes)
    for change in changes:
        changed = change.to(wanted)
        assert changed != wanted, f"{change.name} changes nothing"
        if change.kind == "removal" and layer.causes:
            assert layers_of(changed, modelled=True) == (), f"{change.name} leaves the layer there"
        if change.key:
            assert load(tmp_path / "law.yaml", [change.key]) == changed, f"{change.key} is not {change.name}"
    if layer.causes:
        assert any({*layer.causes} <= {*change.removes} for change in changes), "a cause can be taken away"
