"""What a run teaches: a run that the virtual clock made with known costs gives those costs back."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from handmade import result, with_foreign
from hypothesis import given, settings
from hypothesis import strategies as st

import rayio
from rayio import session
from rayio.analyze.arrays import RunArrays
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.cli import main
from rayio.errors import RayioError, RunError, StorageError
from rayio.predict import storage
from rayio.predict.calibrate import calibrate, learn
from rayio.predict.costs import checkpoint_ns
from rayio.predict.digits import DIGITS
from rayio.predict.observe import Reads
from rayio.scenario.load import build, load
from rayio.scenario.model import Costs, Scenario
from rayio.scenario.write import to_yaml
from rayio.session.calibration import Calibration
from rayio.trace.run_directory import RunDirectory
from rayio.trace.span import SPANS
from scenarios import scenario, simulated

#: A reading-bound workload whose batches differ in size: 2 ranks × 2 workers, 4 epochs of 24 steps.
BOUND: dict[str, Any] = {
    "dataset__num_files": 192,
    "dataset__sample_bytes": {"kind": "uniform", "low": "500 kB", "high": "1500 kB"},
    "loader__batch_size": 4,
    "loader__decode": "4 ms",
    "train__epochs": 4,
    "train__compute": {"kind": "normal", "mean": "5 ms", "stdev": "1 ms"},
}
STORAGE = {"first_byte": "500 us", "connection_bandwidth": "400 MB/s", "bandwidth": "10 GB/s"}


def learned(wanted: Scenario, **info: Any) -> Scenario:
    """Learn from a run on the virtual clock as if it had been a real one on real storage."""
    told = {"engine": "ray", "rayio": "0", "modelled_storage": False, "payload": "none", "cpus": 2, **info}
    return learn(simulated(wanted).spans, wanted, told).scenario


def learned_costs(wanted: Scenario) -> Costs:
    """The numbers alone, without where they come from."""
    found = learned(wanted).charges
    assert found.source == "calibrated from run (ray engine)"
    return found.model_copy(update={"source": ""})


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_costs_of_a_known_run_come_back(workers: int, prefetch: int) -> None:
    costs = {"lease": "3 ms", "put": "2 ms", "take": "1500 us", "step": "300 us"}
    wanted = scenario(
        **BOUND, costs=costs, storage__model=STORAGE, loader__num_workers=workers, loader__prefetch_factor=prefetch
    )
    found = learned_costs(wanted)
    assert found.lease == pytest.approx(3e-3, abs=1e-8)
    assert found.step == pytest.approx(0.3e-3, abs=1e-8)
    assert found.take + found.put == pytest.approx(3.5e-3, abs=1e-8)
    if prefetch > 1:
        assert found.put == pytest.approx(2e-3, abs=1e-8)
    assert found.barrier == 0


def test_what_taking_a_ready_batch_keeps_its_rank_for_comes_back() -> None:
    costs = {"lease": "3 ms", "put": "2 ms", "take": "1500 us", "receive": "700 us"}
    hurried = scenario(**BOUND, costs=costs, storage__model=STORAGE)
    relaxed = scenario(**BOUND | {"train__compute": "40 ms"}, costs=costs, storage__model=STORAGE)
    found = learned_costs(hurried)
    # A rank that waits for nearly every batch sees all of its way together.
    assert found.put + found.take + found.receive == pytest.approx(4.2e-3, abs=1e-8)
    assert learned_costs(relaxed).receive == pytest.approx(0.7e-3, abs=1e-8)


@pytest.mark.parametrize(
    "how",
    [{"loader__assignment": "dynamic"}, {"loader__in_order": False}, {"cluster__nodes": 2}, {"train__sync": "none"}],
)
def test_the_costs_come_back_however_leases_are_handed_out(how: dict[str, Any]) -> None:
    costs = {"lease": "3 ms", "put": "2 ms", "take": "1500 us", "step": "300 us"}
    found = learned_costs(scenario(**BOUND | how, costs=costs, storage__model=STORAGE))
    assert found.lease == pytest.approx(3e-3, rel=0.02)
    assert found.put == pytest.approx(0 if how == {"loader__assignment": "dynamic"} else 2e-3, rel=0.02)
    assert found.put + found.take == pytest.approx(3.5e-3, rel=0.02)
    assert found.step == pytest.approx(0.3e-3, rel=0.02)


def test_a_rank_that_reads_by_itself_has_no_messages_to_pay() -> None:
    wanted = scenario(**BOUND | {"loader__num_workers": 0}, costs={"step": "300 us"}, storage__model=STORAGE)
    found = learned(wanted)
    assert learned_costs(wanted) == Costs(step=0.0003, checkpoint_bytes=0)
    assert found.storage.model.first_byte.expected == pytest.approx(500e-6, rel=0.02)  # type: ignore[union-attr]


def test_decoding_that_took_longer_than_it_should_is_measured() -> None:
    slow: Any = scenario(**BOUND | {"loader__decode": {"kind": "lognormal", "median": "8 ms", "sigma": 0.4}})
    run = simulated(slow).spans
    told = {"engine": "ray", "rayio": "0", "modelled_storage": False, "payload": "none", "cpus": 2}
    found: Any = learn(run, scenario(**BOUND), told).scenario.loader.decode
    assert found.expected == pytest.approx(slow.loader.decode.expected, rel=0.03)
    assert found.sigma == pytest.approx(0.4, rel=0.15)


def test_a_run_on_modelled_storage_keeps_its_model() -> None:
    wanted = scenario(**BOUND, storage__model=STORAGE)
    assert learned(wanted, modelled_storage=True).storage == wanted.storage


def test_a_guessed_bandwidth_carries_the_checkpoints_that_the_run_wrote() -> None:
    # Reads of one size tell a request's time alone; checkpoints of both ranks are much larger.
    saved = {"every": {"steps": 10}, "path": "ck", "model": {"bytes": "20 MB"}, "writers": "all_ranks"}
    small = BOUND | {"dataset__sample_bytes": "20 kB", "checkpoint": saved}
    wanted = scenario(**small, storage__model=STORAGE | {"bandwidth": "2 GB/s"})
    was, again = (simulated(one) for one in (wanted, learned(wanted)))
    # Two shards that share a bandwidth are done one after the other: the later one is what a checkpoint takes.
    assert checkpoint_ns(again.spans).max() == pytest.approx(checkpoint_ns(was.spans).max(), rel=0.02)


@pytest.mark.parametrize(
    "evaluated",
    [
        {"every": {"epochs": 1}, "compute": "2 ms"},
        {"every": {"steps": 7}, "compute": "2 ms", "batch_size": 3},
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_with_evaluation_and_all_samples_is_simulated_back(evaluated: dict[str, Any], workers: int) -> None:
    more = {"dataset__eval": {"num_files": 40}, "train__evaluate": evaluated, "loader__drop_last": False}
    size = {"dataset__num_files": 190, "loader__num_workers": workers}
    costs = {"lease": "3 ms", "put": "2 ms", "take": "1500 us", "step": "300 us"} if workers else {"step": "300 us"}
    wanted = scenario(**BOUND | more | size, costs=costs, storage__model=STORAGE)
    was, again = (
        measure(RunArrays.of_spans(simulated(one).spans), RunShape.of(one)) for one in (wanted, learned(wanted))
    )
    for name in ("au", "samples_per_second", "wall_seconds"):
        assert again[name] == pytest.approx(was[name], rel=0.03), name
    assert again["evaluation"]["au"] == pytest.approx(was["evaluation"]["au"], rel=0.03)


def test_spans_of_other_libraries_teach_nothing() -> None:
    wanted = scenario(**BOUND, storage__model=STORAGE)
    run = simulated(wanted).spans
    told = {"engine": "ray", "payload": "none", "cpus": 2}
    assert learn(with_foreign(run), wanted, told) == learn(run, wanted, told)


def test_a_run_without_a_reader_in_its_spans_is_told_which_level_has_them(tmp_path: Path) -> None:
    for level in ("none", "step"):
        wanted = scenario(trace__level=level)
        made = RunDirectory.create(tmp_path / level, {"engine": "local"})
        made.write_scenario(to_yaml(wanted))
        made.write_spans(simulated(wanted).spans, "part-00000")
        made.write_result(result())
        with pytest.raises(RunError, match=f"trace.level={level}, which leaves out the readers; run it with trace"):
            calibrate(made.path)


def test_a_run_without_costs_has_none() -> None:
    assert learned_costs(scenario(**BOUND, storage__model=STORAGE)) == Costs(checkpoint_bytes=0)


def test_the_way_of_the_bytes_is_told_from_the_way_of_the_message() -> None:
    wanted = scenario(
        **BOUND, storage__model=STORAGE, loader__payload="none",
        costs={"take": "2 ms", "transfer_latency": "1 ms", "transfer_bandwidth": "500 MB/s"},
    )  # fmt: skip
    moving = wanted.model_copy(
        update={
            "dataset": wanted.dataset.model_copy(update={"path": "data"}),
            "loader": wanted.loader.model_copy(update={"payload": "real"}),
        }
    )
    found = learned(moving, payload="real").charges
    assert found.transfer_bandwidth == pytest.approx(500e6, rel=1e-3)
    assert found.take == pytest.approx(3e-3, abs=1e-5), "both are there for every batch, so nothing tells them apart"


def test_the_answer_of_the_barrier_is_found_where_the_compute_is_too_short_to_hide_it() -> None:
    short = BOUND | {"train__compute": "100 us", "loader__decode": 0}
    wanted = scenario(**short, storage__model=STORAGE, costs={"barrier": "2 ms"})
    assert learned(wanted).charges.barrier == pytest.approx(2e-3, abs=1e-8)


#: A file of a small shape for each layer, and states of one and of several files.
SHAPE = {"kind": "transformer", "layers": 4, "hidden": 256, "ffn": 512, "vocabulary": 2000, "heads": 8}


@pytest.mark.parametrize(
    "state",
    [{"model": {"bytes": "2 MB"}}, {"model": {"files": ["1 KB"] * 8 + ["1 MB"]}},
     {"model": SHAPE, "writers": "parallel"}],
    ids=["bytes", "files", "shape"],
)  # fmt: skip
def test_what_a_checkpoint_takes_beyond_its_files_comes_back(state: dict[str, Any]) -> None:
    """Every file of a writer is opened, and has its own last request."""
    saved = {"every": {"steps": 4}, "path": "c", "request_bytes": "256 KiB"} | state
    divided = {"pipeline": 2, "zero_stage": 1}
    wanted = scenario(
        **BOUND, storage__model=STORAGE, checkpoint=saved, train__parallelism=divided, costs={"checkpoint": "30 ms"}
    )
    assert learned(wanted).charges.checkpoint == pytest.approx(30e-3, rel=0.05)


def test_what_a_checkpoint_takes_beyond_its_bytes_comes_back() -> None:
    saved = {"every": {"steps": 10}, "path": "ck", "model": {"bytes": "40 MB"}, "request_bytes": "4 MB"}
    wanted = scenario(**BOUND, storage__model=STORAGE, checkpoint=saved, costs={"checkpoint": "30 ms"})
    assert learned(wanted).charges.checkpoint == pytest.approx(30e-3, rel=0.02)


def test_storage_that_is_never_saturated_comes_back() -> None:
    model: Any = learned(scenario(**BOUND, storage__model=STORAGE)).storage.model
    assert model.first_byte.expected == pytest.approx(500e-6, rel=0.02)
    assert model.connection_bandwidth == pytest.approx(400e6, rel=0.02)
    assert model.bandwidth >= 4 * 0.5 * 400e6


def test_the_spread_of_a_requests_time_comes_back() -> None:
    slow = STORAGE | {"first_byte": {"kind": "lognormal", "median": "2 ms", "sigma": 0.5}}
    model: Any = learned(scenario(**BOUND, storage__model=slow)).storage.model
    assert model.first_byte.expected == pytest.approx(2e-3 * 1.133, rel=0.05)
    assert model.first_byte.sigma == pytest.approx(0.5, rel=0.15)


def test_what_a_run_cannot_know_is_said_at_the_top_of_the_file() -> None:
    def said(*, is_cached: bool = False, **overrides: Any) -> str:
        wanted = scenario(**BOUND | {"storage__model": STORAGE} | overrides)
        found = learn(simulated(wanted).spans, wanted, {"engine": "ray"}, is_cached=is_cached)
        return Calibration.of(found).to_yaml().partition("\nname:")[0]

    plain = said()
    assert "never saturated, so storage.model.bandwidth is a guess" in plain
    assert "page cache" not in plain
    assert "they came from the page cache, so it is a model of memory" in said(is_cached=True)
    assert "costs.barrier: hidden" in plain
    assert "costs.put" not in plain
    crowded = said(cluster__ranks_per_node=8, storage__model=STORAGE | {"bandwidth": "500 MB/s"})
    assert "what all share is known; what one connection gives alone was not seen" in crowded
    assert "costs.put: part of costs.take" in said(loader__prefetch_factor=1)
    assert "costs.lease and .take: ranks waited for" in said(train__compute="200 ms")
    assert "costs.barrier" not in said(train__sync="none")


@pytest.mark.parametrize("workers", [2, 4])
def test_what_saturated_storage_gives_to_all_comes_back(workers: int) -> None:
    narrow = STORAGE | {"bandwidth": "500 MB/s"}
    bound = BOUND | {"loader__num_workers": workers, "loader__prefetch_factor": 2}
    model: Any = learned(scenario(**bound, storage__model=narrow)).storage.model
    assert model.bandwidth == pytest.approx(500e6, rel=0.05)


def test_what_a_hundred_readers_share_comes_back_from_a_part_of_their_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST", 2000)
    crowd = BOUND | {"cluster__ranks_per_node": 32, "loader__num_workers": 3, "dataset__num_files": 32 * 4 * 40}
    model: Any = learned(scenario(**crowd | {"train__epochs": 2}, storage__model=STORAGE)).storage.model
    assert model.bandwidth == pytest.approx(10e9, rel=0.05)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (2, 1), (4, 4), (6, 2)])
def test_what_was_learned_from_one_run_predicts_others(workers: int, prefetch: int) -> None:
    costs = {"lease": "3 ms", "put": "2 ms", "take": "1500 us", "step": "300 us"}
    narrow = STORAGE | {
        "first_byte": {"kind": "lognormal", "median": "2 ms", "sigma": 0.5}, "bandwidth": "500 MB/s",
    }  # fmt: skip
    wanted = scenario(**BOUND | {"loader__num_workers": 4}, costs=costs, storage__model=narrow)
    changed = {"num_workers": workers, "prefetch_factor": prefetch}

    def wall(base: Scenario) -> int:
        run = simulated(base.model_copy(update={"loader": base.loader.model_copy(update=changed)}))
        return max(int(row["duration_ns"]) for row in run.rows("life"))

    assert wall(learned(wanted)) == pytest.approx(wall(wanted), rel=0.03)


@given(seed=st.integers(0, 1 << 30), share=st.floats(0, 1), names=st.sets(st.sampled_from([*SPANS])))
@settings(max_examples=settings().max_examples // 2)
def test_whatever_spans_are_missing_the_answer_is_a_scenario_or_one_line(
    seed: int, share: float, names: set[str]
) -> None:
    wanted = scenario(train__compute={"kind": "normal", "mean": "3 ms", "stdev": "2 ms"})
    spans = simulated(wanted).spans
    kept = (np.random.default_rng(seed).random(spans.num_rows) < share) | np.array(
        [name not in names for name in spans.column("name").to_pylist()]
    )
    said = ""
    try:
        found = learn(spans.filter(pa.array(kept)), wanted, {"engine": "ray", "modelled_storage": False})
        assert build(yaml.safe_load(Calibration.of(found).to_yaml())) == found.scenario
    except RunError as error:
        said = str(error)
    assert "\n" not in said


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the local engine on modelled storage: 24 steps."""
    root = tmp_path_factory.mktemp("runs")
    quick = scenario(train__compute="1 ms", storage__model="memory")
    return session.run(quick, engine="local", root=root, out="local").path


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


def changed(run: Path, name: str, **values: Any) -> Path:
    file = run / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return run


def test_the_file_is_a_scenario_that_says_where_it_comes_from(a_run: Path, home: Path) -> None:
    assert main_exits(["calibrate", str(a_run), "--out", "calibrated.yaml"]) == 0
    text = Path("calibrated.yaml").read_text()
    assert text.startswith("# small, calibrated from local (local engine, rayio ")
    again = load("calibrated.yaml")
    assert again == calibrate(a_run).scenario
    assert again.charges.lease > 0
    learned = text[text.index("storage:") : text.index("loader:")] + text[text.index("\ncosts:") :]
    assert max(len(number.replace(".", "").strip("0")) for number in re.findall(r"[\d.]+", learned)) == DIGITS
    assert again.charges.source.startswith("calibrated from local (local engine, ")
    assert again.dataset == load(a_run / "scenario.yaml").dataset
    assert main_exits(["simulate", "calibrated.yaml", "--out", "predicted"]) == 0
    assert [p.name for p in home.iterdir() if "partial" in p.name] == []


def test_without_out_the_file_goes_to_standard_output(
    a_run: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_exits(["calibrate", str(a_run)]) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    assert load("printed.yaml") == calibrate(a_run).scenario


def main_exits(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda run: shutil.rmtree(run), "is not a run directory: no such path"),
        (lambda run: (run / "result.json").unlink(), "has no result.json: the run broke off"),
        (lambda run: (changed(run, "run.json", scenario=None) / "scenario.yaml").unlink(), "has no scenario.yaml"),
        (lambda run: changed(run, "result.json", exit_code=2), "ended with exit code 2"),
        (lambda run: changed(run, "run.json", engine="virtual"), "was simulated"),
        (lambda run: [p.unlink() for p in (run / "spans").iterdir()], "has no span file"),
        (lambda run: [p.write_bytes(p.read_bytes()[:-300]) for p in (run / "spans").iterdir()], "the file is damaged"),
        (lambda run: (run / "run.json").write_text("{"), "run.json is not JSON"),
        (lambda run: changed(run, "run.json", scenario="name: x\nloader: {batch: 1}"), "loader.batch"),
    ],
)
def test_what_cannot_be_calibrated_is_said_in_one_line(
    a_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, says: str
) -> None:
    run = copied(a_run, tmp_path / "run")
    spoil(run)
    out = tmp_path / "calibrated.yaml"
    assert main_exits(["calibrate", str(run), "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert not out.exists()


def test_too_few_steps_are_refused_with_their_number() -> None:
    short = scenario(train__epochs=1, dataset__num_files=24)
    with pytest.raises(RunError, match="5 steps per rank after its 1 warm-up steps; calibrating needs at least 10"):
        learned(short)


@pytest.mark.parametrize("out", ["/dev/null/calibrated.yaml", "."])
def test_a_place_that_cannot_be_written_is_refused(a_run: Path, home: Path, out: str) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*--out"):
        rayio.calibrate(a_run).write(Path(out))
    assert [*home.iterdir()] == []


def test_folders_that_are_missing_are_made(a_run: Path, tmp_path: Path) -> None:
    rayio.calibrate(a_run).write(tmp_path / "new" / "folder" / "calibrated.yaml")
    assert load(tmp_path / "new" / "folder" / "calibrated.yaml").name


def test_a_device_or_a_pipe_is_not_replaced(a_run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="it is a device, a pipe or a link"):
        rayio.calibrate(a_run).write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_write_that_fails_leaves_the_old_file(a_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "calibrated.yaml"
    out.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    learned = rayio.calibrate(a_run)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RayioError, match=r"no space left while writing .*, or choose another --out"):
        learned.write(out)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("calibrated.yaml", "before")]


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_run_on_ray_teaches_what_its_messages_cost(home: Path) -> None:
    wanted = scenario(
        dataset__path="data", dataset__num_files=40, dataset__sample_bytes="200 kB", cluster__ranks_per_node=1,
        loader__batch_size=4, loader__num_workers=1, loader__decode="15 ms", train__compute="50 ms", train__sync="none",
    )  # fmt: skip
    real = session.run(wanted, out="real").result
    again = calibrated("real")
    assert again.loader.payload == "real"
    assert again.charges.lease + again.charges.take > 0  # how they share it depends on who got a processor when
    said = RunDirectory.open("real").info["cpu_seconds"]
    assert (said["reads"]["batches"], said["reads"]["samples"]) == (2 * 10, 2 * 40.0)
    assert {"reader", "queue", "rank", "collector"} <= {*said["roles"]}
    assert all(0 < seconds < 4 * said["wall_seconds"] for seconds in said["roles"].values())
    assert 0 < said["reads"]["seconds"] < said["roles"]["reader"], "reading is a part of what a reader does"
    assert again.cluster.cores == os.cpu_count()
    roles = said["roles"]
    learned, cpu = again.charges.cpu.queue, (roles["queue"] + roles["collector"] + said["nodes"]) / 20
    beyond = (roles["reader"] - said["reads"]["seconds"]) / 20  # costs.put is a part of it, by the clock of this run
    # Where all processors were busy, caches and turns made a part of it: that is not learned with it. Where they were
    # idle, a part of it may have gone on all the time.
    assert learned <= (cpu + beyond) * 1.001, (learned, cpu, beyond)
    assert again.charges.cpu.background or cpu / again.charges.cpu.contention <= learned * 1.001, (learned, cpu)
    predicted = session.simulate(again).result
    assert predicted["ledger"]["delivered_samples"] == real["ledger"]["delivered_samples"] == 2 * 40


def calibrated(out: str) -> Scenario:
    """Learn from a run."""
    assert main_exits(["calibrate", out, "--no-busy-run", "--out", "calibrated.yaml"]) == 0
    return load("calibrated.yaml")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_run_on_ray_is_predicted_by_what_it_taught(home: Path) -> None:
    """The bound is for a busy machine; ``benchmarks/grid.py`` says how near it is on a quiet one."""
    wanted = scenario(
        dataset__path="data", dataset__num_files=160, dataset__sample_bytes="200 kB",
        loader__batch_size=4, loader__num_workers=1, loader__decode="15 ms", train__compute="50 ms", train__epochs=3,
    )  # fmt: skip
    for attempt in range(3):  # a machine that stalls in the middle of a run is no engine's cost
        real = session.run(wanted, out=f"real-{attempt}").result
        predicted = session.simulate(calibrated(f"real-{attempt}")).result
        if predicted["samples_per_second"] == pytest.approx(real["samples_per_second"], rel=0.1):
            break
    for name in ("au", "samples_per_second"):
        assert predicted[name] == pytest.approx(real[name], rel=0.1)


def test_reads_whose_bytes_take_no_time_have_a_connection_that_bounds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rounding leaves of no slope, 1e-26 s a byte, is no rate: one of 1e26 B/s cannot be."""
    start = np.arange(100, dtype=np.int64) * 10_000_000
    size = np.tile(np.array([100_000, 1_000_000], np.int64), 50)
    none = np.zeros(100, np.int64)
    read = Reads(np.arange(100), none, none, start, start + 1_000_000, size, none + 1, none - 1, start + 1_000_000)
    monkeypatch.setattr("rayio.predict.storage._alone", lambda *_: (0.001, 0.0, 3e-26))
    found = storage.fit(read, 0, 1, 2).parameters
    assert found.first_byte.expected == pytest.approx(0.001)
    assert found.connection_bandwidth == pytest.approx(10 * found.bandwidth)
