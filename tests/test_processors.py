"""Cores that the jobs of a node share: against what theory says of processor sharing, and of whole runs."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import TRUTH, busy, recorded, seconds_per_step

from rayio.analyze.timeline import texts
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import RunError, ScenarioError, StorageError
from rayio.machine.cpu_time import cpu_seconds_of
from rayio.model.cpu_account import StageCpu
from rayio.model.processors import Cores, Process, SlicedCores
from rayio.predict.calibrate import calibrate, learn
from rayio.predict.learnable import Learnable
from rayio.predict.processors import SeenCpu, learn_cpu, receiving
from rayio.records.calibrated import Note, OneSize
from rayio.report.text.calibration import worded
from rayio.scenario import checks
from rayio.scenario.costs import CpuCosts
from rayio.scenario.load import load
from rayio.session import run
from rayio.session.calibration import Calibration
from scenarios import scenario, simulated


def ends(number: float, jobs: list[tuple[float, float]]) -> list[float]:
    """When each job ends, of some given as (when it comes, its CPU seconds), on so many cores."""
    kernel = VirtualKernel()
    cores = Cores(kernel, number)

    async def one(comes: float, seconds: float) -> float:
        await kernel.sleep_until(round(comes * 1e9))
        await cores.work(seconds)
        return kernel.now() / 1e9

    return kernel.run(kernel.gather(*(one(*job) for job in jobs)))


def shared(number: float, jobs: list[tuple[float, float]]) -> list[float]:
    """The same by going through time from event to event: the definition of processor sharing."""
    left = {place: seconds for place, (_, seconds) in enumerate(jobs)}
    done, now = [0.0] * len(jobs), 0.0
    coming = sorted({comes for comes, _ in jobs})
    while left:
        here = [place for place in left if jobs[place][0] <= now]
        later = next((comes for comes in coming if comes > now), float("inf"))
        if not here:
            now = later
            continue
        rate = min(1.0, number / len(here))
        first = min(left[place] for place in here)
        step = min(first / rate, later - now)
        now += step
        for place in here:
            left[place] -= step * rate
            if left[place] <= 1e-12:
                done[place] = now
                del left[place]
    return done


JOBS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=12)


@given(number=st.sampled_from([1, 1.5, 2, 4]), jobs=JOBS)
def test_jobs_share_cores_as_the_definition_says(number: float, jobs: list[tuple[int, int]]) -> None:
    given_jobs = [(comes / 1000, seconds / 1000) for comes, seconds in jobs]
    assert ends(number, given_jobs) == pytest.approx(shared(number, given_jobs), abs=1e-7)


def test_alone_a_job_takes_its_cpu_seconds_and_none_takes_no_time() -> None:
    assert ends(8, [(0.0, 0.25), (1.0, 0.0)]) == [0.25, 1.0]


def test_a_process_does_its_jobs_one_after_the_other_on_however_many_cores() -> None:
    kernel = VirtualKernel()
    process = Process(Cores(kernel, 8))

    async def one() -> float:
        await process.work(0.01)
        return kernel.now() / 1e9

    times = kernel.run(kernel.gather(*(one() for _ in range(4))))
    assert times == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert all(earlier < later for earlier, later in pairwise(times))


#: Every part of a batch takes CPU time: 2 × 5 + 2 + 4 + 2 = 18 ms a batch.
BUSY: dict[str, Any] = {
    "cluster__ranks_per_node": 2,
    "dataset__num_files": 240,
    "loader__batch_size": 2,
    "loader__num_workers": 2,
    "train__epochs": 2,
    "train__compute": "4 ms",
    "storage__model": "memory",
    "costs": {
        "lease": "2 ms", "put": "2 ms", "take": "3 ms",
        "cpu": {"sample": "5 ms", "queue": "4 ms", "rank": "2 ms"},
    },
}  # fmt: skip


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_a_node_whose_cores_are_busy_takes_the_cpu_seconds_of_its_batches(cores: int) -> None:
    expected = 2 * 18e-3 / cores  # of both ranks
    assert seconds_per_step(scenario(**BUSY, cluster__cores=cores)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("where", "milliseconds"), [("actor", 10), ("in_rank", 15)])
def test_a_queue_in_its_rank_works_in_its_ranks_process(where: str, milliseconds: int) -> None:
    """With cores to spare a batch takes as long as the busiest process works on it."""
    cpu = {"queue": "10 ms", "rank": "5 ms"}
    costs = {"lease": "5 ms", "take": "10 ms", "cpu": cpu}
    one = BUSY | {"cluster__ranks_per_node": 1, "loader__num_workers": 4, "loader__prefetch_factor": 4, "costs": costs}
    wanted = scenario(**one | {"train__compute": "1 ms"}, cluster__cores=8, loader__queue=where)
    assert seconds_per_step(wanted) == pytest.approx(milliseconds / 1000, rel=0.05)


@pytest.mark.parametrize(("rank", "milliseconds"), [("0 ms", 10), ("1 ms", 11), ("4 ms", 14), ("6 ms", 16)])
def test_taking_a_batch_keeps_a_core_only_for_the_ranks_cpu_time(rank: str, milliseconds: int) -> None:
    """On one core a worker reads while its rank waits for the rest: a step takes the CPU time of both."""
    costs = {"receive": "4 ms", "cpu": {"sample": "5 ms", "rank": rank}}
    relaxed = BUSY | {"cluster__ranks_per_node": 1, "loader__num_workers": 2, "train__compute": 0, "costs": costs}
    assert seconds_per_step(scenario(**relaxed, cluster__cores=1)) == pytest.approx(milliseconds / 1e3, rel=0.01)


def test_nodes_have_cores_of_their_own() -> None:
    apart = BUSY | {"cluster__ranks_per_node": 1, "cluster__nodes": 2}
    assert seconds_per_step(scenario(**apart, cluster__cores=1)) == pytest.approx(18e-3, rel=0.02)


def test_sleeps_take_no_core() -> None:
    """Decoding that sleeps is as long on one core as on none; the same as work of a processor is not."""
    slept = BUSY | {"costs": "none", "loader__decode": "10 ms", "train__compute": "1 ms"}
    free, bound = (seconds_per_step(scenario(**slept, cluster__cores=cores)) for cores in (None, 1))
    assert bound == pytest.approx(free, rel=1e-6)
    worked = slept | {"loader__decode": {"kind": "decompress", "rate": "100 MB/s"}, "dataset__sample_bytes": "1 MB"}
    # A batch of 2 MB is 20 ms of work, and there are two ranks for the one core.
    assert seconds_per_step(scenario(**worked, cluster__cores=1)) == pytest.approx(40e-3, rel=0.02)
    assert seconds_per_step(scenario(**worked)) == pytest.approx(10e-3, rel=0.05)


def test_what_runs_on_a_node_all_the_time_takes_its_share() -> None:
    costs = BUSY["costs"] | {"cpu": BUSY["costs"]["cpu"] | {"background": "500 ms"}}
    assert seconds_per_step(scenario(**BUSY | {"costs": costs}, cluster__cores=1)) == pytest.approx(72e-3, rel=0.02)


def test_where_cores_are_free_costs_are_what_they_say() -> None:
    """CPU time is a part of the times that costs name, and not on top of them."""
    told = {"lease": "4 ms", "put": "3 ms", "take": "6 ms"}
    relaxed = BUSY | {"cluster__ranks_per_node": 1, "loader__num_workers": 1, "train__compute": "1 ms"}
    cpu = {"queue": "4 ms", "rank": "2 ms"}
    plain = seconds_per_step(scenario(**relaxed | {"costs": told}))
    assert seconds_per_step(scenario(**relaxed | {"costs": told | {"cpu": cpu}}, cluster__cores=64)) == pytest.approx(
        plain, rel=1e-6
    )


def test_what_one_format_taught_is_not_taken_for_another() -> None:
    learned = BUSY["costs"] | {"cpu": BUSY["costs"]["cpu"] | {"format": "hdf5"}}
    wanted = scenario(**BUSY | {"costs": learned}, cluster__cores=2)
    with pytest.raises(ScenarioError) as refused:
        checks.check_simulated(wanted)
    assert "costs.cpu.format=hdf5" in str(refused.value)
    assert "dataset.format=npz" in str(refused.value)
    checks.check_simulated(scenario(**BUSY | {"costs": learned}))  # no cores, no work


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ("costs={cpu: {sample: 10 ms, slice: 1 ns}}", "costs.cpu.slice=1 ns: must be 0, or at least 100 us"),
        ("costs={step: 1 ms, cpu: {step: 5 ms}}", "costs.cpu.step=5 ms: is the part of costs.step=1 ms"),
    ],
)
def test_costs_of_processors_that_cannot_be_are_refused(costs: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("unet3d-small", [costs])
    assert said in str(refused.value)
    assert load("unet3d-small", ["costs={step: 1 ms, cpu: {step: 1 ms, slice: 100 us}}"]).charges.cpu.slice == 1e-4


def test_what_processes_do_all_the_time_leaves_something_of_the_cores() -> None:
    for background, cores, is_fine in ((1.9, 2, True), (2.0, 2, False), (1e9, 2, False), (1.5, [2, 1], False)):
        wanted = BUSY | {"cluster__nodes": 2, "cluster__cores": cores, "costs": {"cpu": {"background": background}}}
        refused = [one for one in checks.not_simulated(scenario(**wanted)) if "costs.cpu.background" in one]
        assert bool(refused) is not is_fine, (background, cores)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cpus": 10**9}, "cpus=1000000000"),
        ({"cpus": "many"}, "cpus='many'"),
        ({"cpu_seconds": 5}, "cpu_seconds=5"),
        ({"cpu_seconds": {"roles": {"rank": -1.0}, "reads": {}}}, "cpu_seconds.roles.rank=-1.0"),
        ({"cpu_seconds": {"roles": {}, "reads": {"bytes": 1e300}}}, "cpu_seconds.reads.bytes=1e+300"),
    ],
)
def test_what_run_json_cannot_say_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    made = run(scenario(train__epochs=1, train__compute="1 ms"), engine="local", root=tmp_path)
    place = Path(made.path, "run.json")
    place.write_text(json.dumps(json.loads(place.read_text()) | changed))
    with pytest.raises(StorageError, match=r"run\.json: .*: the file is damaged") as caught:
        calibrate(made.path)
    assert said in str(caught.value)


def test_cores_without_work_say_so() -> None:
    said = checks.idle(scenario(cluster__cores=2))
    assert any(line.startswith("cluster.cores=2: costs.cpu is empty") for line in said)
    assert not any("cluster.cores" in line for line in checks.idle(scenario(**BUSY, cluster__cores=2)))


def told(batch_bytes: float, batches: int = 100, **changed: Any) -> dict[str, Any]:
    """What run.json would say of a run whose CPU times are known."""
    samples, nbytes = 4.0, batch_bytes
    read = samples * 1e-3 + nbytes / 2e9
    reads = {
        "batches": batches, "samples": batches * samples, "bytes": batches * nbytes, "seconds": batches * read,
        "samples_samples": batches * samples**2, "samples_bytes": batches * samples * nbytes,
        "bytes_bytes": batches * nbytes**2, "samples_seconds": batches * samples * read,
        "bytes_seconds": batches * nbytes * read,
    }  # fmt: skip
    roles = {
        "reader": batches * (read + 2e-3 + nbytes * 1e-9), "queue": batches * 3e-3,
        "rank": batches * (1e-3 + nbytes / 4e9),
    }  # fmt: skip
    return {"cpu_seconds": {"roles": roles, "nodes": batches * 1e-3, "reads": reads} | changed}


def seen_of(*sizes: float) -> list[SeenCpu]:
    seen = [SeenCpu.of(told(size), f"run-{size:g}") for size in sizes]
    return [one for one in seen if one is not None]


def learned_from(*sizes: float) -> tuple[CpuCosts, list[Note]]:
    return learn_cpu(seen_of(*sizes), "npz", receiving([(seen_of(*sizes), 1.0)]))


@pytest.mark.parametrize("sizes", [(1e6, 16e6), (6e5, 4e6, 32e6)])
def test_runs_of_different_sizes_tell_batches_from_bytes(sizes: tuple[float, ...]) -> None:
    found, notes = learned_from(*sizes)
    assert not notes
    assert found.format == "npz"
    assert receiving([(seen_of(*sizes), 1.0)]) == pytest.approx(4e9, rel=1e-3), "what a rank takes in a second"
    expected = {"sample": 1e-3, "bandwidth": 2e9, "queue": 4e-3, "rank": 1e-3}
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-3), name


def test_runs_of_one_size_do_not_and_say_so() -> None:
    found, notes = learned_from(4e6)
    assert found.bandwidth is None
    assert found.sample * 4 == pytest.approx(4e-3 + 2e-3)
    assert found.rank == pytest.approx(1e-3 + 1e-3)
    assert len(notes) == 1
    assert notes == [OneSize(4e6)]
    assert "samples of another size" in worded(notes[0])


@pytest.mark.parametrize(
    "info", [{}, {"cpu_seconds": None}, told(1e6, batches=3), {"cpu_seconds": {"roles": {}, "reads": {"batches": "x"}}}]
)
def test_a_run_that_says_nothing_teaches_nothing(info: dict[str, Any]) -> None:
    assert SeenCpu.of(info, "run") is None


def test_reads_are_summed_up_as_they_were() -> None:
    one, other = StageCpu(), StageCpu()
    one.add(4, 1000, 0.5)
    other.add(2, 3000, 0.25)
    other.join(one)
    assert (other.batches, other.samples, other.bytes, other.seconds) == (2, 6.0, 4000.0, 0.75)
    assert other.samples_bytes == 4 * 1000 + 2 * 3000
    assert other.bytes_seconds == 1000 * 0.5 + 3000 * 0.25


def test_the_kernel_says_what_a_process_has_worked() -> None:
    before = cpu_seconds_of(os.getpid())
    began, number = time.process_time(), 0
    while time.process_time() - began < 0.3:
        number += 1
    after = cpu_seconds_of(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0.3, abs=0.1)
    assert cpu_seconds_of(1 << 30) is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_busy_run_teaches_what_more_workers_would_come_to(ranks: int) -> None:
    """Costs are read off a run whose messages waited for processors; what is simulated with them takes as long."""
    large, small = (
        recorded(scenario(**busy(size, 1, ranks), costs=TRUTH, cluster__cores=2)) for size in ("1 MB", "100 kB")
    )
    found = learn(large.spans, large.scenario, large.info, more=[small], is_cached=True).scenario
    assert found.cluster.cores == 2
    for size, workers in (("1 MB", 1), ("1 MB", 2), ("1 MB", 4), ("100 kB", 2), ("4 MB", 2)):
        true = scenario(**busy(size, workers, ranks), costs=TRUTH, cluster__cores=2)
        said = found.model_copy(update={"dataset": true.dataset, "loader": true.loader})
        assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.04), (size, workers)


def test_what_processes_do_all_the_time_is_not_taken_for_what_their_batches_take() -> None:
    """Four readers that sleep, and processes that work meanwhile: if it were the batches', three workers a rank
    would be 21 % slower."""
    idle = {
        "loader__decode": {"kind": "lognormal", "median": "24 ms", "sigma": 0.3}, "train__compute": "50 ms",
        "train__epochs": 2,
    }  # fmt: skip
    costs = {"put": "500 us", "cpu": {"slice": "4 ms", "format": "npz", "sample": "600 us", "background": 0.8}}
    run = recorded(scenario(**busy("1 MB", 1, 4) | idle, costs=costs, cluster__cores=2))
    spans = simulated(run.scenario).spans
    seconds = (spans["start_ns"].to_numpy() + spans["duration_ns"].to_numpy()).max() / 1e9
    said = run.info["cpu_seconds"]
    for role, share in (("reader", 0.3), ("queue", 0.2), ("rank", 0.5)):
        said["roles"][role] += share * 0.8 * seconds
    found = learn(run.spans, run.scenario, run.info, is_cached=True).scenario
    for workers in (1, 2, 3):
        true = scenario(**busy("1 MB", workers, 4) | idle, costs=costs, cluster__cores=2)
        told = found.model_copy(update={"loader": true.loader})
        assert seconds_per_step(told) == pytest.approx(seconds_per_step(true), rel=0.01), workers


SAVED: dict[str, Any] = {"path": "saved", "every": {"epochs": 1}, "model": {"bytes": "1 MB"}}


def saving(*milliseconds: int, size: str = "1 MB", **changes: Any) -> Learnable:
    """A run with a checkpoint after every epoch, which took so long."""
    wanted = busy(size, 1, 1) | {"train__epochs": len(milliseconds)}
    run = recorded(scenario(**wanted, costs=TRUTH, cluster__cores=2, checkpoint=SAVED | changes))
    spans = simulated(run.scenario).spans
    lasts = spans["duration_ns"].to_numpy().copy()
    lasts[(texts(spans, "name", ("checkpoint",)) == 0) & (texts(spans, "role", ("rank",)) == 0)] = [
        number * 10**6 for number in milliseconds
    ]
    spans = spans.set_column(spans.schema.get_field_index("duration_ns"), "duration_ns", pa.array(lasts))
    return Learnable("run", run.scenario, run.info, spans)


def taught(first: Learnable, *more: Learnable) -> Calibration:
    return Calibration.of(learn(first.spans, first.scenario, first.info, more=more, is_cached=True))


def test_how_much_what_a_checkpoint_takes_varied_in_a_run_is_how_sure_a_prediction_is_of_it() -> None:
    found = taught(saving(180, 20, 25, 30, 154))
    costs = found.scenario.charges
    assert costs.checkpoint == pytest.approx(0.030, abs=0.003)
    assert costs.checkpoint_less == pytest.approx(0.010)
    assert costs.checkpoint_more == pytest.approx(0.150)
    assert costs.checkpoint_bytes == 1_000_000
    assert any(" checkpoints of 977 KiB took 20 ms to 180 ms, usually 30 ms" in note for note in found.notes), (
        found.notes
    )


def test_one_checkpoint_makes_nobody_sure() -> None:
    found = taught(saving(30))
    assert found.scenario.charges.checkpoint_less == pytest.approx(0.8 * 0.030)
    assert found.scenario.charges.checkpoint_more == pytest.approx(4 * 0.030)
    assert any("a run with several tells" in note for note in found.notes)


def test_of_runs_without_checkpoints_a_run_with_some_is_refused_and_no_other() -> None:
    found = taught(recorded(scenario(**busy("1 MB", 1, 1), costs=TRUTH, cluster__cores=2)))
    assert found.scenario.charges.checkpoint_bytes == 0
    assert "costs.checkpoint: no checkpoint was saved, so what one takes is not known" in found.notes
    assert not [*checks.not_simulated(found.scenario)]
    saves = scenario(**busy("1 MB", 1, 1), checkpoint=SAVED).checkpoint
    with pytest.raises(ScenarioError, match=r"costs\.checkpoint_bytes=0: .* calibrate a run with checkpoints"):
        checks.check_simulated(found.scenario.model_copy(update={"checkpoint": saves}))


def test_checkpoints_of_the_second_of_two_runs_teach_too() -> None:
    without = recorded(scenario(**busy("100 kB", 1, 1), costs=TRUTH, cluster__cores=2))
    for order in ((without, saving(30, 30, 30)), (saving(30, 30, 30), without)):
        costs = taught(*order).scenario.charges
        assert costs.checkpoint_bytes == 1_000_000
        assert costs.checkpoint == pytest.approx(0.030, abs=0.004)


def test_what_is_written_behind_is_not_made_longer_by_being_simulated_back() -> None:
    run = recorded(
        scenario(**busy("1 MB", 1, 1), costs=TRUTH, cluster__cores=2, checkpoint=SAVED | {"asynchronous": True})
    )
    spans = simulated(run.scenario).spans
    lasts = spans["duration_ns"].to_numpy().copy()
    lasts[texts(spans, "name", ("write",)) == 0] = 60_000_000
    spans = spans.set_column(spans.schema.get_field_index("duration_ns"), "duration_ns", pa.array(lasts))
    found = taught(Learnable("run", run.scenario, run.info, spans))
    assert found.scenario.charges.checkpoint == pytest.approx(0.060, abs=0.003)


def test_runs_that_do_not_teach_together_are_refused(tmp_path: Path) -> None:
    short = {"dataset.num_files": 224, "dataset.sample_bytes": "20 kB", "train.epochs": 2, "train.compute": "1 ms"}
    for form in ("npz", "hdf5"):
        wanted = short | {"dataset.format": form, "dataset.path": f"of-{form}", "loader.decode": 0}
        run("unet3d-small", wanted, engine="local", root=tmp_path, out=tmp_path / form)
    with pytest.raises(RunError, match=r"npz is given twice"):
        calibrate(tmp_path / "npz", tmp_path / "npz")
    with pytest.raises(RunError, match=r"hdf5 cannot .* with npz: dataset\.format is hdf5, not npz"):
        calibrate(tmp_path / "npz", tmp_path / "hdf5")
    assert calibrate(tmp_path / "npz").scenario.cluster.cores is None, "this process says nothing of its roles"


def in_turns(number: int, jobs: list[tuple[int, int]], slice_ms: int) -> list[float]:
    """When each job ends (s), millisecond by millisecond: a core's job goes to the end of the line after its slice."""
    line: list[tuple[int, int]] = []
    on = [[-1, 0, 0] for _ in range(number)]  # place, left of it, left of its slice
    done = [0.0] * len(jobs)
    coming = sorted(range(len(jobs)), key=lambda place: jobs[place][0])
    now = 0
    while coming or line or any(core[0] >= 0 for core in on):
        while coming and jobs[coming[0]][0] <= now:
            line.append((coming[0], jobs[coming.pop(0)][1]))
        for core in on:
            if core[0] < 0 and line:
                core[:] = [*line.pop(0), slice_ms]
        now += 1
        for core in on:
            if core[0] >= 0:
                core[1], core[2] = core[1] - 1, core[2] - 1
                if core[1] == 0:
                    done[core[0]], core[0] = now / 1000, -1
                elif core[2] == 0:
                    if line or (coming and jobs[coming[0]][0] <= now):
                        line.append((core[0], core[1]))
                        core[0] = -1
                    else:
                        core[2] = slice_ms
    return done


@pytest.mark.parametrize(
    ("number", "jobs", "slice_ms"),
    [
        (1, [(0, 10), (1, 3)], 4),  # the short one waits for the long one's slice
        (1, [(0, 20), (3, 2), (5, 2), (6, 9)], 4),
        (2, [(0, 30), (0, 30), (7, 5), (9, 1), (11, 12)], 4),
        (3, [(0, 9), (0, 9), (0, 9), (1, 9), (2, 1), (50, 3)], 5),
    ],
)
def test_jobs_take_turns_on_cores_that_have_slices(number: int, jobs: list[tuple[int, int]], slice_ms: int) -> None:
    kernel = VirtualKernel()
    cores = SlicedCores(kernel, number, slice_ms * 1_000_000)

    async def one(comes: int, worked: int) -> float:
        await kernel.sleep_until(comes * 1_000_000)
        await cores.work(worked / 1000)
        return kernel.now() / 1e9

    ended = kernel.run(kernel.gather(*(one(*job) for job in jobs)))
    assert ended == pytest.approx(in_turns(number, jobs, slice_ms), abs=1e-6)


@pytest.mark.parametrize("turns", ["0 s", "4 ms"], ids=["shared", "in slices"])
def test_work_is_slower_while_all_cores_are_busy_and_only_then(turns: str) -> None:
    def seconds(cores: int, contention: float) -> float:
        cpu = BUSY["costs"]["cpu"] | {"slice": turns, "contention": contention}
        return seconds_per_step(scenario(**BUSY | {"costs": BUSY["costs"] | {"cpu": cpu}}, cluster__cores=cores))

    assert seconds(2, 1.25) == pytest.approx(1.25 * 18e-3, rel=0.03)
    assert seconds(64, 1.25) == pytest.approx(seconds(64, 1.0), rel=1e-6)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_slices_change_who_waits_and_not_what_the_cores_do(cores: int) -> None:
    costs = BUSY["costs"] | {"cpu": BUSY["costs"]["cpu"] | {"slice": "4 ms"}}
    sliced = seconds_per_step(scenario(**BUSY | {"costs": costs}, cluster__cores=cores))
    assert sliced == pytest.approx(2 * 18e-3 / cores, rel=0.03)


def test_the_end_of_a_step_is_work_that_waits_for_a_core() -> None:
    """With free cores a step is as long as ``costs.step`` says; where a batch keeps the core, its end waits for it."""
    relaxed = BUSY | {"cluster__ranks_per_node": 1, "loader__num_workers": 1, "train__compute": "10 ms"}

    def seconds(cores: int, **cpu: str) -> float:
        wanted = scenario(
            **relaxed | {"costs": {"step": "1 ms", "cpu": {"sample": "2 ms", **cpu}}}, cluster__cores=cores
        )
        return seconds_per_step(wanted)

    assert seconds(8, step="1 ms", slice="4 ms") == pytest.approx(11e-3, rel=2e-3)
    assert seconds(8) == pytest.approx(11e-3, rel=2e-3)
    # 10.4 ms of reading for each step are in the way of its end, which is in nobody's where it is no work.
    assert seconds(1, sample="5.2 ms", step="1 ms", slice="4 ms") > 11.3e-3
    assert seconds(1, sample="5.2 ms", slice="4 ms") == pytest.approx(11e-3, rel=1e-2)
