"""Calibrations of planted machines whose processors are busy, against the same machine with the change made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from planted import TRUTH, busy, made, recorded, seconds_per_step

from rayio.predict.calibrate import learn
from rayio.predict.learnable import Learnable
from rayio.session.calibration import Calibration


def taught(first: Learnable, *more: Learnable, full: Sequence[Learnable] = ()) -> Calibration:
    return Calibration.of(learn(first.spans, first.scenario, first.info, more=more, full=full, is_cached=True))


#: Two ranks of two workers, whose decoding keeps both cores busy with samples of 600 kB.
DECODES = {
    "checksum": {"kind": "checksum", "algorithm": "sha256", "rate": "200 MB/s"},
    "passes": {"kind": "checksum", "passes": 2, "rate": "400 MB/s"},
    "decompress": {"kind": "decompress", "ratio": 3, "rate": "200 MB/s", "per_sample": "100 us"},
}


@pytest.fixture(scope="module", params=DECODES)
def decoding(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    decode = DECODES[request.param]
    runs = [recorded(made(busy(size, 2, 2, "5 ms") | {"loader__decode": decode})) for size in ("600 kB", "100 kB")]
    return taught(*runs).scenario, decode


@pytest.mark.parametrize(("size", "compute"), [("100 kB", "5 ms"), ("600 kB", "60 ms"), ("2 MB", "20 ms")])
def test_decoding_is_learned_as_work_on_bytes(decoding: Any, size: str, compute: str) -> None:
    found, decode = decoding
    true = made(busy(size, 2, 2, compute) | {"loader__decode": decode})
    said = found.model_copy(update={"dataset": true.dataset, "train": true.train})
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.03)


#: Workers that pass batches on byte by byte, as copies and the memory of PyTorch's workers do.
PASSED = TRUTH | {"put": "1 ms", "put_bandwidth": "1 GB/s"}


def test_two_sizes_separate_what_passing_a_batch_on_takes_by_bytes() -> None:
    """Of one size it is a time of every batch, whose tenfold has nothing of ten times the bytes."""
    runs = [recorded(made(busy(size, 2, 2, "5 ms"), PASSED)) for size in ("600 kB", "100 kB")]
    costs = taught(*runs).scenario.charges
    assert costs.put_bandwidth == pytest.approx(1e9, rel=0.02)
    assert costs.put == pytest.approx(1e-3, rel=0.3)


@pytest.mark.parametrize(
    ("size", "workers", "compute"), [("2 MB", 2, "5 ms"), ("2 MB", 1, "60 ms"), ("100 kB", 2, "5 ms")]
)
def test_batches_of_other_sizes_are_passed_on_as_their_bytes_take(size: str, workers: int, compute: str) -> None:
    runs = [recorded(made(busy(each, 2, 2, "5 ms"), PASSED)) for each in ("600 kB", "100 kB")]
    found = taught(*runs).scenario
    true = made(busy(size, workers, 2, compute), PASSED)
    said = found.model_copy(update={"dataset": true.dataset, "train": true.train, "loader": true.loader})
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.03)


#: Two ranks whose workers keep both cores busy while their steps end: ends of steps wait for cores.
WAITING = [("1 MB", 1), ("1 MB", 2), ("4 MB", 1), ("100 kB", 2)]


@pytest.fixture(scope="module", params=WAITING, ids=lambda case: f"{case[0]}-{case[1]}")
def waiting(request: pytest.FixtureRequest) -> tuple[Any, str]:
    size, workers = request.param
    run = recorded(made(busy(size, workers, 2, "8 ms")))
    return taught(run).scenario, size


@pytest.mark.parametrize("compute", ["20 ms", "60 ms"])
def test_waits_for_cores_are_no_cost_of_a_step(waiting: Any, compute: str) -> None:
    """Where longer compute leaves cores free, nothing waits for them any more."""
    found, size = waiting
    costs = found.charges
    assert costs.step < 1e-3, "a step's own cost is 0.3 ms"
    true = made(busy(size, 1, 2, compute))
    said = found.model_copy(update={"train": true.train, "loader": true.loader})
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.03)


def cold(factor: float) -> dict[str, Any]:
    """Return the costs of processors that wake up cold: all work but that on bytes takes ``factor`` times as long."""
    work = {name: f"{factor * float(TRUTH['cpu'][name].split()[0])} ms" for name in ("sample", "queue", "rank")}
    return TRUTH | {"put": f"{factor * 3} ms", "cpu": TRUTH["cpu"] | work}


@pytest.fixture(scope="module", params=[1.0, 1.6])
def two_runs(request: pytest.FixtureRequest) -> list[tuple[Learnable, Learnable]]:
    """Return idle runs, in which processors wake up cold, each with a busy run of the same files."""
    sizes = ("1 MB", "100 kB")
    idle = [recorded(made(busy(size, 1, 1, "60 ms"), cold(request.param))) for size in sizes]
    full = [recorded(made(busy(size, 4, 1, "0 ms"))) for size in sizes]
    return list(zip(idle, full, strict=True))


#: Points whose cores are full, with four workers for each of two ranks; and some where they are not.
BOUND = [("1 MB", 4, "1 ms"), ("1 MB", 4, "8 ms"), ("100 kB", 4, "4 ms"), ("4 MB", 2, "10 ms"), ("600 kB", 2, "2 ms")]
FREE = [("1 MB", 1, "60 ms"), ("100 kB", 2, "40 ms")]


@pytest.mark.parametrize("point", BOUND + FREE, ids=lambda point: "-".join(map(str, point)))
def test_a_busy_run_teaches_what_full_cores_can_do(two_runs: Any, point: tuple[str, int, str]) -> None:
    idle = [run for run, _ in two_runs]
    found = taught(*idle, full=[run for _, run in two_runs]).scenario
    size, workers, compute = point
    true = made(busy(size, workers, 2, compute))
    said = found.model_copy(
        update={"dataset": true.dataset, "train": true.train, "loader": true.loader, "cluster": true.cluster}
    )
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.05)


@pytest.fixture(scope="module", params=["0 s", "checksum"])
def slower_when_full(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    """Return a calibration of runs whose work took 1.2 times the CPU time while all cores were busy."""
    keys = {} if request.param == "0 s" else {"loader__decode": {"kind": "checksum", "rate": "400 MB/s"}}
    sizes = ("1 MB", "100 kB")
    idle = [recorded(made(busy(size, 1, 1, "60 ms") | keys)) for size in sizes]
    full = [recorded(made(busy(size, 4, 1, "0 ms") | keys), 1.2) for size in sizes]
    return taught(*idle, full=full).scenario, keys


@pytest.mark.parametrize("point", [("4 MB", 1, 1, "1 ms"), ("1 MB", 1, 1, "1 ms"), ("1 MB", 4, 2, "1 ms")])
def test_work_beside_free_cores_takes_less_cpu_time_than_beside_full_ones(slower_when_full: Any, point: Any) -> None:
    found, keys = slower_when_full
    true = made(busy(*point) | keys)
    loader = true.loader.model_copy(update={"decode": found.loader.decode})
    said = found.model_copy(
        update={"dataset": true.dataset, "train": true.train, "loader": loader, "cluster": true.cluster}
    )
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.05)


def test_without_a_busy_run_a_prediction_of_full_cores_is_less_sure(two_runs: Any) -> None:
    idle = [run for run, _ in two_runs]
    alone = taught(*idle)
    sure = taught(*idle, full=[run for _, run in two_runs])
    width = {each: each.scenario.charges.cpu.at_most / each.scenario.charges.cpu.at_least for each in (alone, sure)}
    assert width[alone] > 2 > 1.5 > width[sure]
    assert "costs.cpu: no busy run, so the interval of predictions with full processors is wide" in alone.notes
    true = made(busy("1 MB", 4, 2, "1 ms"))
    said = alone.scenario.model_copy(
        update={"dataset": true.dataset, "train": true.train, "loader": true.loader, "cluster": true.cluster}
    )
    off = seconds_per_step(said) / seconds_per_step(true)
    cpu = alone.scenario.charges.cpu
    assert cpu.at_least * off <= 1 <= cpu.at_most * off, "the interval covers the truth"


def test_work_of_other_programs_is_named_and_makes_predictions_less_sure(two_runs: Any) -> None:
    (large, of_large), (small, of_small) = two_runs
    for share, at_least in ((0.02, 0.82), (0.4, 0.6), (0.9, 0.55)):
        run = Calibration.of(
            learn(large.spans, large.scenario, large.info, more=[small], full=[of_large, of_small], foreign=share)
        )
        assert run.scenario.charges.cpu.at_least == pytest.approx(at_least)
        told = [note for note in run.notes if f"other programs used {share:.0%}".replace("%", " %") in note]
        assert len(told) == (share > 0.1)


def test_busy_runs_that_leave_cores_free_fit_no_contention() -> None:
    idle = recorded(made(busy("1 MB", 1, 1, "60 ms")))
    lazy = taught(idle, full=[idle])
    cpu = lazy.scenario.charges.cpu
    assert (cpu.at_least, cpu.at_most) == (0.75, 1.35)
    assert any("left processors free or others used them" in note for note in lazy.notes)


def test_one_busy_run_makes_a_prediction_less_sure_than_two(two_runs: Any) -> None:
    (large, of_large), (small, of_small) = two_runs
    one, two = (taught(large, small, full=full).scenario.charges.cpu for full in ([of_large], [of_large, of_small]))
    assert one.at_most - one.at_least >= 0.24
    assert two.at_most - two.at_least < one.at_most - one.at_least


def test_uneven_times_of_decoding_still_count_by_the_byte() -> None:
    """The small samples were slow, as if a larger one took less: then the time of all goes by bytes."""
    keys = {"loader__decode": {"kind": "checksum", "rate": "200 MB/s"}}
    runs = [recorded(made(busy(size, 2, 2, "5 ms") | keys)) for size in ("600 kB", "100 kB")]
    small = runs[1].info["cpu_seconds"]["decodes"]
    small |= {key: 20 * small[key] for key in ("seconds", "samples_seconds", "bytes_seconds")}
    found: Any = taught(*runs).scenario.loader.decode
    assert found.per_sample == 0
    assert 0 < found.rate < 200e6


#: A device far too slow to keep a core busy: only a busy run from memory shows what processors can do.
DEVICE = {"first_byte": "2 ms", "connection_bandwidth": "100 MB/s", "bandwidth": "150 MB/s"}


def test_a_busy_run_reads_from_memory_and_does_not_sleep() -> None:
    slow = {"loader__decode": "3 ms", "storage__model": DEVICE}
    idle = [recorded(made(busy(size, 1, 1, "60 ms") | slow)) for size in ("1 MB", "100 kB")]
    full = [recorded(made(busy(size, 4, 1, "0 ms"))) for size in ("1 MB", "100 kB")]
    found = learn(idle[0].spans, idle[0].scenario, idle[0].info, more=idle[1:], full=full).scenario
    assert 1.05 <= found.charges.cpu.contention <= 1.35, "the truth is 1.2"
    assert found.charges.cpu.sample == pytest.approx(1e-3, rel=0.1)
    true = made(busy("100 kB", 4, 2, "2 ms") | slow)
    said = found.model_copy(
        update={"dataset": true.dataset, "train": true.train, "cluster": true.cluster,
                "loader": true.loader.model_copy(update={"decode": found.loader.decode})}
    )  # fmt: skip
    assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.06)


def test_busy_runs_bound_what_taking_a_batch_costs_where_ranks_hardly_waited() -> None:
    """The few waits of an idle run are those of its start, and of its slowest batches."""
    sizes = ("600 kB", "100 kB")
    idle = [recorded(made(busy(size, 2, 2, "60 ms"), TRUTH | {"take": "25 ms"})) for size in sizes]
    full = [recorded(made(busy(size, 1, 2, "0 ms"))) for size in sizes]
    assert taught(*idle).scenario.charges.take > 20e-3
    calibration = taught(*idle, full=full)
    assert 6e-3 < calibration.scenario.charges.take < 11e-3  # 6 ms, and waits for full processors
    assert any(note.startswith("costs.take: a batch is on its way no longer than in") for note in calibration.notes)


@pytest.mark.parametrize(("workers", "ranks"), [(1, 1), (8, 1)])
def test_times_that_compute_hides_are_not_stretched_to_the_length_of_a_step(workers: int, ranks: int) -> None:
    """The way of a batch was 17 ms then, and is 9: busy runs bound it as a whole, for waits move time between parts."""
    idle = [recorded(made(busy(size, 2, 2, "60 ms"))) for size in ("600 kB", "100 kB")]
    full = [recorded(made(busy(size, workers, ranks, "0 ms"))) for size in ("600 kB", "100 kB")]
    costs = taught(*idle, full=full).scenario.charges
    assert 9e-3 < costs.put + costs.take < 15e-3
    assert costs.take > 5.9e-3


def test_busy_runs_do_not_bound_what_a_run_shows_in_many_batches() -> None:
    slow = busy("600 kB", 1, 2, "1 ms") | {"loader__decode": "10 ms"}  # each sample, so that ranks wait
    idle = recorded(made(slow, TRUTH | {"take": "25 ms"}))
    full = recorded(made(busy("600 kB", 1, 2, "0 ms")))
    assert taught(idle, full=[full]).scenario.charges.take > 20e-3
