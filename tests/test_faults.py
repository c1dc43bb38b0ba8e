"""Faults that storage is given on purpose: the same on every engine, booked, charged, and simulated away."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rayio
from rayio import seeds
from rayio.analyze.stalls import attribute
from rayio.cli import main
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import ScenarioError, StorageError
from rayio.model.planning import plan_of
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.report.explain import explain
from rayio.scenario.load import build, load
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.storage.base import Requests, Served
from rayio.storage.layers.faults import Faults, FaultyStorage
from rayio.trace.recorder import Recorder
from rayio.trace.slices import Slices
from scenarios import scenario, simulated

STALLS = {"stalls": [{"rate": 0.05, "seconds": "40 ms"}]}


def faulty(faults: Any, **changes: Any) -> Scenario:
    """Make a small scenario whose storage has faults; 48 steps of 4 samples for each of two ranks."""
    storage = {"model": "nvme", "faults": faults, **changes.pop("storage", {})}
    wanted: dict[str, Any] = {
        "dataset": {"path": "data", "num_files": 48, "samples_per_file": 8, "sample_bytes": "2 kB"},
        "cluster__ranks_per_node": 2,
        "loader": {"batch_size": 4, "num_workers": 2},
        "train": {"epochs": 1, "compute": "1 ms"},
        "storage": storage,
    }
    return scenario(**(wanted | changes))


def held_up(run: rayio.Run) -> dict[tuple[int, int, int], dict[str, int]]:
    """Give by batch how long it was held up, in ms, by why; each lies in the span of its read."""
    spans: Any = run.spans()
    found: dict[tuple[int, int, int], dict[str, int]] = {}
    reads = {(one.rank, one.epoch, one.step): one for one in spans[spans.name == "read"].itertuples()}
    for one in spans[spans.name == "delay"].itertuples():
        batch = one.rank, one.epoch, one.step
        read, why = reads[batch], one.attributes.split('"why":"')[1].rstrip('"}')
        assert read.start_ns <= one.start_ns
        assert one.start_ns + one.duration_ns <= read.start_ns + read.duration_ns
        found.setdefault(batch, {})[why] = one.duration_ns // 1_000_000
    return found


def test_the_same_batches_stall_on_the_virtual_clock_and_in_real_time_on_model_and_on_files(tmp_path: Path) -> None:
    wanted = faulty(STALLS)
    simulated = held_up(rayio.simulate(wanted, out=tmp_path / "simulated"))
    rayio.generate(wanted, root=tmp_path)
    real = held_up(rayio.run(wanted, engine="local", root=tmp_path, out=tmp_path / "real"))
    assert real.keys() == simulated.keys()
    assert 5 < len(simulated) < 50, "one sample in 20, of 96 batches of 4"
    assert all(delay["stall"] >= 40 for delay in real.values())
    assert {delay["stall"] % 40 for delay in simulated.values()} == {0}


@pytest.mark.slow  # by default tests/test_toy_layer.py has actors share a layer
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_the_same_batches_stall_on_ray_and_its_actors_agree_when_a_run_began(tmp_path: Path) -> None:
    wanted = faulty({**STALLS, "errors": [{"at": "20 ms", "seconds": "30 ms"}]})
    rayio.generate(wanted, root=tmp_path)
    run = rayio.run(wanted, engine="ray", root=tmp_path, out=tmp_path / "real")
    simulated = held_up(rayio.simulate(wanted, out=tmp_path / "simulated"))
    assert {batch for batch, why in held_up(run).items() if "stall" in why} == {
        batch for batch, why in simulated.items() if "stall" in why
    }
    assert run.result.ledger is not None
    assert run.result.ledger.even
    assert "layer-faults" in [actor["name"] for actor in run.directory.info["actors"]]


class Instant:
    """Storage that serves everything at once."""

    async def read(self, requests: Requests, load: Any) -> Served[Any]:
        """Serve a read."""
        return Served(None, 0, 1, requests.total_bytes)


def test_a_sample_that_a_cache_misses_has_the_faults_that_it_has_without_a_cache() -> None:
    stalls = {"stalls": [{"rate": 0.3, "seconds": "40 ms"}]}
    plan = plan_of(faulty(stalls, storage={"cache": [{"tier": "ram", "bytes": "300 kB"}]}), modelled=True)
    (faults,) = [layer for layer in plan.layers if isinstance(layer, Faults)]
    kernel = VirtualKernel()
    storage: Any = FaultyStorage(
        cast(Any, Instant()), faults, cast(Any, SimpleNamespace(clock=kernel, path="x", io_depth=1))
    )
    missed, counts = np.array([1, 3]), []
    for step in range(30):
        whole = plan.loading().of(Where(0, 0, step)).requests
        assert whole.samples is not None
        served = kernel.run(storage.read(whole.samples.requests(missed), None))
        hit = faults.hit("stall-0", 0.3, whole.address, 4)
        counts.append(int(np.isin(missed, hit).sum()))
        assert sum(delay.end - delay.start for delay in served.delays) == counts[-1] * 40_000_000
    assert {*counts} == {0, 1, 2}


@pytest.mark.parametrize("held_by", ["worker", "node"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_files_that_are_read_at_the_start_are_slow_by_all_of_their_bytes(
    share: float, held_by: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "loader": {"batch_size": 4, "num_workers": 2, "file_access": "in_memory", "held_by": held_by},
    }  # fmt: skip
    wanted = faulty({"slow_files": {"share": share, "factor": 101}}, **changes)
    run = rayio.simulate(wanted, out=tmp_path / "run")
    spans: Any = run.spans()
    layout = plan_of(wanted, modelled=True).layout
    names = np.array([zlib.crc32(layout.path(file).encode()) for file in range(48)], np.int64)
    slow = float((seeds.uniform(seeds.key(wanted.seed, "faults/slow"), names) < share).mean())
    delays = spans[spans.name == "delay"]
    assert (len(delays) == 1) == (held_by == "node"), "of a node one worker reads all files, and no later batch reads"
    for delay in delays.itertuples():
        reads = spans[(spans.name == "read") & (spans["rank"] == delay.rank) & (spans.step == delay.step)]
        took = int(reads.duration_ns.iloc[0]) - delay.duration_ns
        assert delay.duration_ns == pytest.approx(100 * slow * took, rel=0.01)


EVALUATED = {
    "dataset__eval": {"num_files": 48},
    "train": {"epochs": 1, "compute": "1 ms", "evaluate": {"every": {"epochs": 1}, "compute": "1 ms"}},
}


@pytest.mark.parametrize("modelled", [True, False])
def test_files_of_the_evaluation_have_other_names_and_another_folder(modelled: bool) -> None:
    plan = plan_of(faulty({"slow_files": {"share": 0.5, "factor": 2}}, **EVALUATED), modelled=modelled)
    loading = plan.loading()
    names: list[set[str]] = []
    for epoch in (0, 1):
        names.append(set())
        for step in range(48):
            files = loading.of(Where(0, epoch, step)).requests.files
            assert files is not None
            names[-1] |= {*files()[0]}
    training, evaluation = names
    assert training <= {plan.layout.path(file) for file in range(48)}
    assert all(name.startswith("data-eval/") for name in evaluation)
    devices: Any = SimpleNamespace(arbiter=lambda device: None, shared=lambda layer, node: None)
    wired: Any = Wiring(plan, VirtualKernel(), Recorder(), ".", devices, num_ranks=2).datasets(0)
    assert [wired.of(epoch).path for epoch in (0, 1)] == ["data", "data-eval"]


def test_a_part_of_a_batch_has_the_files_of_its_own_samples() -> None:
    cached = {"storage": {"cache": [{"tier": "ram", "bytes": "1 MB"}]}}
    plan = plan_of(faulty({"slow_files": {"share": 0.5, "factor": 2}}, **cached), modelled=True)
    loads = [plan.loading().of(Where(0, 0, step)) for step in range(12)]
    assert any(len(np.unique(batch.batch.files)) > 2 for batch in loads)
    for batch in loads:
        samples = batch.requests.samples
        assert samples is not None
        files = samples.requests(np.array([1, 3])).files
        assert files is not None
        names, file, nbytes = files()
        assert [names[number] for number in file] == [plan.layout.path(one) for one in batch.batch.files[[1, 3]]]
        assert nbytes.tolist() == batch.batch.nbytes[[1, 3]].tolist()


@pytest.mark.parametrize(
    "faults",
    [
        STALLS,
        {"errors": [{"rate": 0.05, "after": "5 ms"}]},
        {"slow_files": {"share": 0.3, "factor": 200}},
        {"stalls": [{"at": "10 ms", "seconds": "200 ms"}]},
        {**STALLS, "errors": [{"kind": "503", "rate": 0.02}], "on_error": "skip"},
    ],
    ids=["stalls", "errors", "slow files", "at a time", "skipped"],
)
def test_explain_names_the_cause_and_its_removal_is_the_run_really_made_without(tmp_path: Path, faults: Any) -> None:
    with_faults = rayio.simulate(faulty(faults), out=tmp_path / "with")
    without = rayio.simulate(faulty("none"), out=tmp_path / "without")
    found, really = explain(with_faults.path), explain(without.path)
    assert found.verdict.cause == "fault", "reads that take no time have no slow files either, but are a smaller share"
    assert "`fault`" in found.sentence
    assert found.simulated is not None
    (change,) = [one for one in found.simulated.changes if one.change == "without faults"]
    assert change.au == really.verdict.au
    if faults == STALLS:
        assert found.prediction is not None
        assert found.prediction.change == "With storage.faults=none"
    assert not [row for row in really.verdict.table if row.cause == "fault"]
    (row,) = [row for row in found.verdict.table if row.cause == "fault"]
    assert row.meaning == "stalls, errors and slow files (storage.faults)"


def test_faults_of_real_storage_are_taken_out_of_the_times_that_were_measured(tmp_path: Path) -> None:
    wanted = faulty(STALLS)
    rayio.generate(wanted, root=tmp_path)
    found = explain(rayio.run(wanted, engine="local", root=tmp_path, out=tmp_path / "run").path)
    assert found.simulated is not None
    (change,) = [one for one in found.simulated.changes if one.change == "without faults"]
    (share,) = [row.share for row in found.verdict.table if row.cause == "fault"]
    assert share is not None
    assert change.time_saved is not None
    assert change.time_saved > 0.6 * share


@given(st.integers(0, 3), st.sampled_from(["retry", "skip"]))
def test_every_step_still_sums_and_every_sample_is_delivered_or_skipped(seed: int, on_error: str) -> None:
    wanted = faulty(
        {**STALLS, "errors": [{"rate": 0.1}], "slow_files": {"share": 0.2, "factor": 3}, "on_error": on_error},
        seed=seed,
    )
    run = simulated(wanted)
    charged = attribute(Slices.of(run.spans))
    assert (sum(charged.lost.values()) + charged.steps.parts["compute"] == charged.steps.duration).all()
    books = run.ledger
    assert books.even
    assert books.delivered_samples + (books.skipped_samples or 0) == books.planned_samples == 384
    assert bool(books.skipped_samples) is (on_error == "skip")


def test_skipped_samples_are_the_same_on_files_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = faulty({"errors": [{"rate": 0.05}], "on_error": "skip"})
    rayio.generate(wanted, root=tmp_path)
    real = rayio.run(wanted, engine="local", root=tmp_path, out=tmp_path / "real").result
    simulated = rayio.simulate(wanted, out=tmp_path / "simulated").result
    assert real.ledger is not None
    assert simulated.ledger is not None
    assert real.ledger.skipped_samples == simulated.ledger.skipped_samples
    assert real.exit_code == 0
    skipped = simulated.ledger.skipped_samples or 0
    assert skipped > 5
    # Throughput counts them, as reading them took its time; a note has it without them.
    rate = (simulated.samples_per_second or 0) * (1 - skipped / simulated.ledger.planned_samples)
    said = next(note for note in simulated.notes if "throughput counts them as read" in note)
    assert float(said.partition("as read (")[2].split()[0].replace(",", "")) == pytest.approx(rate, rel=0.01)
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path / "real")])
    assert left.value.code == 0
    assert f"{real.ledger.skipped_samples} skipped after errors" in capsys.readouterr().out


def test_the_bytes_of_skipped_samples_are_not_delivered(tmp_path: Path) -> None:
    """Each batch is one file of another size: the delivered bytes are those of the files without a fault."""
    sizes = {"kind": "uniform", "low": 1000, "high": 9000}
    dataset = {"path": "data", "format": "raw", "num_files": 96, "samples_per_file": 1, "sample_bytes": sizes}
    faults = {"errors": [{"rate": 0.2, "after": "1 ms"}], "on_error": "skip"}
    wanted = faulty(faults, dataset=dataset, loader={"batch_size": 1, "num_workers": 2})
    rayio.generate(wanted, root=tmp_path)
    whole = sum(path.stat().st_size for path in (tmp_path / "data").rglob("*.raw"))
    for run in (rayio.run(wanted, engine="local", root=tmp_path), rayio.simulate(wanted, root=tmp_path)):
        skipped, spans = held_up(run), cast("Any", run.spans())
        taken = {(one.rank, one.epoch, one.step): one.bytes for one in spans[spans.name == "data_wait"].itertuples()}
        assert len(skipped) > 5
        assert sum(taken.values()) == whole
        assert run.result["ledger"]["delivered_bytes"] == whole - sum(taken[batch] for batch in skipped)


def test_a_run_that_delivered_nothing_has_neither_au_nor_verdict(tmp_path: Path) -> None:
    done = rayio.simulate(faulty({"errors": [{"rate": 1}], "on_error": "skip"}), out=tmp_path / "run")
    result, why = done.result, f"all {done.result['ledger']['planned_samples']:,} were skipped after errors"
    unknown = ("au", "au_min", "au_interval_low", "samples_per_second", "au_dlio", "samples_per_second_dlio", "goodput")
    assert {result[name] for name in unknown} == {rank.au for rank in result.ranks} == {None}
    assert f"warning: No sample was delivered: {why}" in done.summary()
    found = explain(done.path)
    assert found.sentence == f"No verdict: no sample was delivered; {why}."
    assert (found.verdict.au, found.simulated, found.prediction) == (None, None, None)


@pytest.mark.parametrize(
    ("faults", "line"),
    [
        (
            {"errors": [{"rate": 0.5, "kind": "ESTALE"}], "on_error": "fail"},
            "data: ESTALE from storage.faults while reading",
        ),
        ({"errors": [{"rate": 1.0}]}, "data: EIO from storage.faults while reading a sample of rank "),
    ],
)
def test_an_error_ends_the_run_in_one_line(tmp_path: Path, faults: Any, line: str) -> None:
    with pytest.raises(StorageError) as ended:
        rayio.simulate(faulty(faults), out=tmp_path / "run")
    assert str(ended.value).startswith(line)
    assert "\n" not in str(ended.value)
    assert ended.value.exit_code == 2


def test_a_stall_at_a_time_holds_up_checkpoints_too(tmp_path: Path) -> None:
    saved = {"every": {"steps": 8}, "path": "saved", "model": {"bytes": "1 kB"}}
    wanted = faulty({"stalls": [{"at": "5 ms", "seconds": "300 ms"}]}, checkpoint=saved)
    spans = rayio.simulate(wanted, out=tmp_path / "run").spans()
    assert spans[(spans.name == "delay") & (spans.role == "checkpoint_writer")].duration_ns.sum() > 0


SAVED = {"every": {"steps": 8}, "path": "saved", "model": {"bytes": "1 kB"}}
#: Writes of checkpoints begin after some steps of 1 ms.
SHORT = {"epochs": 1, "steps": 8, "compute": "2 ms"}
UNTIL = {"errors": [{"at": "5 ms", "seconds": "300 ms", "after": "20 ms"}]}


def test_an_error_at_a_time_holds_up_checkpoints_until_its_end(tmp_path: Path) -> None:
    """Nothing is read then: a worker reads all before the fault, so it alone meets the writer."""
    wanted = faulty(
        UNTIL, checkpoint=SAVED, train={"epochs": 1, "steps": 8, "compute": "2 ms"}, loader={"batch_size": 1}
    )
    spans: Any = rayio.simulate(wanted, out=tmp_path / "run").spans()
    held = spans[(spans.name == "delay") & (spans.role == "checkpoint_writer")]
    end = spans[spans.name == "write"].eval("start_ns + duration_ns").max() - spans[spans.name == "read"].start_ns.min()
    assert [*held.attributes.map(lambda text: "EIO" in text)] == [True] * len(held)
    assert 0.305 <= end / 1e9 <= 0.305 + 0.4 + 0.02, "the error ends at 305 ms; the longest pause is below 400 ms"


OFTEN = {"stalls": [{"rate": 0.5, "seconds": "40 ms"}], "errors": [{"rate": 0.5, "kind": "503", "after": "5 ms"}]}


def held_files(run: rayio.Run) -> dict[tuple[int, int], dict[str, int]]:
    """Give by checkpoint how often its file was held up, by why."""
    spans: Any = run.spans()
    held: dict[tuple[int, int], dict[str, int]] = {}
    for one in spans[(spans.name == "delay") & (spans.role == "checkpoint_writer")].itertuples():
        of_file = held.setdefault((one.epoch, one.step), {})
        why = one.attributes.split('"why":"')[1].rstrip('"}')
        of_file[why] = of_file.get(why, 0) + 1
    return held


@pytest.mark.parametrize("on_error", ["retry", "skip"])
def test_a_rate_hits_the_same_files_of_checkpoints_on_every_engine_as_often_as_asked(
    on_error: str, tmp_path: Path
) -> None:
    saved = SAVED | {"every": {"steps": 1}, "fsync": False}
    wanted = faulty(
        OFTEN | {"on_error": on_error}, checkpoint=saved, train=SHORT | {"steps": 40}, storage={"max_attempts": 30},
        loader={"batch_size": 1, "num_workers": 2},
    )  # fmt: skip
    simulated = rayio.simulate(wanted, out=tmp_path / "simulated")
    held = held_files(simulated)
    for why, expected in ("stall", 20), ("503", 40):  # half of the files stall; an attempt fails with 1/2, so 1 + 1/2 …
        assert abs(sum(of_file.get(why, 0) for of_file in held.values()) - expected) < 0.5 * expected
    assert simulated.result.exit_code == 0
    if on_error == "retry":
        few = wanted.model_copy(update={"train": wanted.train.model_copy(update={"steps": 6})})
        rayio.generate(few, root=tmp_path)
        real = held_files(rayio.run(few, engine="local", root=tmp_path, out=tmp_path / "real"))
        assert real == {place: of_file for place, of_file in held.items() if place[1] < 6} != {}


def test_an_error_at_a_rate_ends_the_run_at_a_checkpoint_in_one_line(tmp_path: Path) -> None:
    saved = SAVED | {"phases": {"writes": 1, "reads": 0}}
    wanted = faulty({"errors": [{"rate": 1.0}], "on_error": "fail"}, checkpoint=saved)
    with pytest.raises(StorageError, match=r"EIO from storage\.faults while writing .*on_error=fail, give retry$"):
        rayio.simulate(wanted, out=tmp_path / "run")


def test_an_error_at_a_time_ends_the_run_at_a_checkpoint_in_one_line(tmp_path: Path) -> None:
    wanted = faulty(UNTIL | {"on_error": "fail"}, checkpoint=SAVED, train=SHORT, loader={"batch_size": 1})
    with pytest.raises(
        StorageError, match=r"EIO from storage\.faults while writing .*on_error=fail, give retry$"
    ) as ended:
        rayio.simulate(wanted, out=tmp_path / "run")
    assert "\n" not in str(ended.value)


def test_without_faults_there_is_no_layer_and_faults_that_are_none_change_nothing() -> None:
    assert plan_of(faulty("none"), modelled=True).layers == ()
    with pytest.raises(ScenarioError, match=r"storage\.faults=\{\}: has no fault; give stalls"):
        faulty({})
    (layer,) = plan_of(faulty(STALLS), modelled=False).layers
    assert isinstance(layer, Faults)
    assert not layer.sharing
    written = to_yaml(faulty(STALLS))
    assert build_again(written) == faulty(STALLS)


def build_again(text: str) -> Scenario:
    import yaml

    return build(yaml.safe_load(text), "again.yaml")


@given(st.floats(0.001, 1), st.integers(1, 64), st.integers(0, 1000))
def test_what_happens_follows_from_the_address_alone(rate: float, number: int, step: int) -> None:
    (layer,) = plan_of(faulty(STALLS), modelled=True).layers
    assert isinstance(layer, Faults)
    hit = layer.hit("stall-0", rate, (0, 0, step), number)
    assert hit.tolist() == layer.hit("stall-0", rate, (0, 0, step), number).tolist()
    assert rate < 1 or len(hit) == number
    more = layer.hit("stall-0", rate, (0, 0, step), 2 * number)
    assert more[more < number].tolist() == hit.tolist(), "a larger batch begins alike"


def test_about_as_many_samples_are_hit_as_asked_for() -> None:
    (layer,) = plan_of(faulty(STALLS), modelled=True).layers
    assert isinstance(layer, Faults)
    hits = [len(layer.hit("x", 0.1, (rank, 0, step), 10)) for rank, step in itertools.product(range(10), range(200))]
    assert 1700 < sum(hits) < 2300


@pytest.mark.parametrize(
    ("faults", "line"),
    [
        ("soon", "storage.faults=soon"),
        ({"stalls": [{"rate": 2, "seconds": 1}]}, "rate=2: must be a number above 0, and at most 1"),
        ({"stalls": [{"rate": 0.1}]}, "seconds: is required and missing"),
        (
            {"stalls": [{"seconds": 1}]},
            "stalls[0]={seconds: 1}: needs rate (a share of samples and files) or at (a time of the run), and not both",
        ),
        ({"stalls": [{"rate": 0.1, "at": 1, "seconds": 1}]}, "and not both"),
        ({"stalls": 3}, "storage.faults.stalls=3: must be a list of mappings with rate, at, seconds"),
        ({"errors": [{"kind": "ENOENT", "rate": 0.1}]}, "kind=ENOENT: must be EIO, ESTALE, ETIMEDOUT, 500 or 503"),
        ({"slow_files": {"share": 0.1, "factor": 1}}, "factor=1: must be a number above 1"),
        ({"slow_files": {"factor": 3}}, "share: is required and missing"),
        ({"on_error": "ignore"}, "storage.faults.on_error=ignore: must be fail, skip or retry"),
        ({"stall": {}}, "storage.faults.stall={}: no such key; did you mean stalls?"),
    ],
)
def test_bad_values_are_refused_in_one_line(faults: Any, line: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        faulty(faults)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_times_of_a_run_are_refused_where_readers_share_none() -> None:
    with pytest.raises(
        ScenarioError, match=r"storage\.faults: faults at a time are not possible with loader\.kind=torch"
    ):
        load("unet3d-small", ["loader.kind=torch", "storage.faults={stalls: [{at: 1 s, seconds: 1 s}]}"])


@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_an_error_for_a_time_holds_a_worker_up_once_however_large_its_batches_are(batch_size: int) -> None:
    faults = {"errors": [{"kind": "EIO", "at": "100 ms", "seconds": "100 ms"}]}
    wanted = faulty(faults, loader__batch_size=batch_size, loader__num_workers=1, cluster__ranks_per_node=1)
    seconds = sum(row["duration_ns"] for row in simulated(wanted).rows("delay")) / 1e9
    assert 0.05 < seconds < 0.31, "pauses of 50 to 100, then of 100 to 200 ms reach its end"
