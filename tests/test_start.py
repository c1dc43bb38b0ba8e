"""The law of starts: a run from a step equals the tail of the run from step 0, on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engines import COSTS, computed, roles_do_one_thing_at_a_time
from test_engines import scenarios as scenarios_of_engines

import rayio
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.place import BEGINNING, Start, batch_id
from rayio.scenario.costs import Costs
from rayio.scenario.model import Scenario
from scenarios import Outcome, run_locally, scenario, simulated

#: A device whose ranks never wait for each other.
UNSHARED = {
    "first_byte": {"kind": "lognormal", "median": "1 ms", "sigma": 0.5},
    "connection_bandwidth": "10 MB/s",
    "bandwidth": "1 TB/s",
}
#: One whose bandwidth a single rank fills; every 2048 bytes take a whole number of nanoseconds of it.
FULL = {"first_byte": "1 ms", "connection_bandwidth": "1 MiB/s", "bandwidth": "1 MiB/s"}
SAVED = {"every": {"steps": 5}, "path": "ck", "model": {"bytes": "5 MB"}, "request_bytes": "1 MB", "fsync": False}
DRAWN = {"kind": "lognormal", "median": "5 ms", "sigma": 0.5}


def is_after(row: dict[str, Any], start: Start) -> bool:
    """Whether a span belongs to a step of training that a run from ``start`` has."""
    return (row["epoch"], row["step"]) >= start[:2]


def evaluations(run: Outcome, rank: int) -> list[tuple[int, int]]:
    """Give the steps that an evaluation of a rank followed."""
    return [(row["epoch"], row["step"]) for row in run.rows("evaluate", rank=rank)]


def links(run: Outcome, rank: int, first_evaluation: int) -> list[int]:
    """Give the batches of a rank's evaluations, from one on."""
    least = batch_id(rank, len(run.plan.steps) + first_evaluation, 0)
    return [row["link"] for row in run.rows("eval_data_wait", rank=rank) if row["link"] >= least]


def saved(run: Outcome, start: Start) -> list[tuple[Any, ...]]:
    """Give what was written after each step."""
    columns = ("role", "index", "rank", "epoch", "step", "bytes", "requests")
    return sorted(tuple(row[c] for c in columns) for row in run.rows("write") if is_after(row, start))


def asked(run: Outcome, batches: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Give bytes and requests of batches that were read."""
    mine = set(batches)
    return {row["batch"]: (row["bytes"], row["requests"]) for row in run.rows("read") if row["batch"] in mine}


def is_tail(tail: Outcome, whole: Outcome) -> None:
    """Hold a run from a later step to the law."""
    plan, start = tail.plan, tail.plan.start
    taken: set[int] = set()
    for rank in range(plan.world_size):
        least = batch_id(rank, start.epoch, start.step)
        before = [batch for batch in whole.delivered(rank) if batch >= least]
        order = (lambda batches: batches) if plan.loader.in_order else sorted
        assert order(tail.delivered(rank)) == order(before)
        past = [where for where in evaluations(whole, rank) if where < start[:2]]
        assert evaluations(tail, rank) == evaluations(whole, rank)[len(past) :]
        assert order(links(tail, rank, 0)) == order(links(whole, rank, len(past)))
        taken |= {*before, *links(whole, rank, len(past))}
    assert asked(tail, taken) == asked(whole, taken)
    assert {row["batch"] for row in tail.rows("read")} == taken
    drawn = computed(whole)
    assert computed(tail) == {batch: drawn[batch] for batch in taken}
    assert saved(tail, BEGINNING) == saved(whole, start)
    assert {row["attempt"] for row in tail.all_rows if row["rank"] >= 0} <= {start.attempt}
    roles_do_one_thing_at_a_time(tail)
    assert tail.ledger.even
    assert [(t.steps, t.samples, t.attempt) for t in tail.tallies] == [
        (t.steps, t.samples, t.attempt) for t in plan.planned_numbers()
    ]
    assert [tally.attempt for tally in tail.tallies] == [start.attempt] * plan.world_size


@st.composite
def scenarios_and_starts(draw: st.DrawFn) -> tuple[Scenario, Start]:
    """Draw a scenario of the engines' law, and a step of it: the last one of an epoch and the first one included."""
    wanted = draw(scenarios_of_engines())
    whole = wanted.model_copy(update={"costs": Costs.model_validate(draw(st.sampled_from([{}, COSTS])))})
    steps = plan_of(whole, modelled=True).steps
    epoch = draw(st.integers(0, len(steps) - 1))
    return whole, Start(epoch, draw(st.integers(0, steps[epoch])), draw(st.integers(0, 3)))


@given(scenarios_and_starts())
def test_a_run_from_a_step_is_the_tail_of_the_run_from_the_beginning(drawn: tuple[Scenario, Start]) -> None:
    wanted, start = drawn
    is_tail(simulated(wanted, start), simulated(wanted))


@settings(max_examples=5)
@given(scenarios_and_starts())
def test_so_it_is_on_real_files_in_this_process(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Scenario, Start]
) -> None:
    wanted, start = drawn
    root = tmp_path_factory.mktemp("run")
    is_tail(run_locally(on_disk(wanted, root), root, start), simulated(wanted))


def moved(run: Outcome, start: Start) -> dict[int, list[tuple[Any, ...]]]:
    """Give the spans of each rank from a step on, at times from the rank's first one."""
    columns = ("name", "role", "index", "lane", "epoch", "step", "bytes", "requests", "link", "status", "duration_ns")
    found: dict[int, list[tuple[Any, ...]]] = {}
    for rank in range(run.plan.world_size):
        past = len([where for where in evaluations(run, rank) if where < start[:2]])
        first_evaluation = len(run.plan.steps) + (past if run.plan.start == BEGINNING else 0)

        def belongs(row: dict[str, Any], first_evaluation: int = first_evaluation) -> bool:
            if row["epoch"] >= len(run.plan.steps):
                return bool(row["epoch"] >= first_evaluation)
            return is_after(row, start)

        mine = [row for row in run.all_rows if row["rank"] == rank and row["step"] >= 0 and belongs(row)]
        begin = min(row["start_ns"] for row in mine)
        found[rank] = sorted((row["start_ns"] - begin, *(row[c] for c in columns)) for row in mine)
    return found


GRID: list[dict[str, Any]] = [
    {"train__sync": "none", "checkpoint": SAVED, "train__evaluate": {"every": {"steps": 4}, "compute": DRAWN}},
    {"train__sync": "none", "checkpoint": SAVED | {"writers": "all_ranks"}, "loader__decode": DRAWN},
    {"train__sync": "none", "checkpoint": SAVED | {"writers": "sharded", "every": {"epochs": 1}}},
    {"train__sync": {"kind": "allreduce", "bytes": "1 MB", "bandwidth": "1 GB/s"}, "dataset__format": "tfrecord"},
    {"train__sync": "none", "dataset__format": "hdf5", "dataset__samples_per_file": 3, "loader__drop_last": False},
    {"train__sync": "none", "trace__level": "io", "dataset__samples_per_file": 2},
    {"storage__model": FULL, "dataset__sample_bytes": 4096, "cluster__ranks_per_node": 1},
    *({"loader__shuffle": shuffle} for shuffle in ("none", "file", "global")),
    *({"loader__shuffle": shuffle, f"loader__shuffle_{shuffle}": 5} for shuffle in ("block", "buffer")),
    *({"loader__partition": partition} for partition in ("strided", "replicated")),
    {"train__stragglers": {"ranks": [1], "factor": 2}},
]


STARTS = pytest.mark.parametrize(
    "start", [Start(0, 0), Start(0, 7, 1), Start(0, 12, 2), Start(1, 0, 1), Start(1, 11, 3)]
)


@STARTS
@pytest.mark.parametrize(
    "overrides",
    [
        {},  # reads that are foreseen
        {"trace__level": "io"},
        {"costs": COSTS},
        {"loader__assignment": "dynamic"},
        {"loader__in_order": False},
        {"loader__max_bytes_in_flight": 1},
    ],
    ids=str,
)
def test_every_queue_begins_where_its_rank_does(overrides: dict[str, Any], start: Start) -> None:
    wanted = scenario(
        train__evaluate={"every": {"steps": 4}, "compute": DRAWN}, dataset__eval={"num_files": 6}, **overrides
    )
    is_tail(simulated(wanted, start), simulated(wanted))


@STARTS
@pytest.mark.parametrize("overrides", GRID, ids=lambda one: ",".join(one))
def test_read_by_the_ranks_themselves_the_spans_of_the_tail_are_those_of_the_whole(
    overrides: dict[str, Any], start: Start
) -> None:
    base = {
        "dataset__num_files": 50, "loader__num_workers": 0, "train__compute": DRAWN, "storage__model": UNSHARED,
        "dataset__eval": {"num_files": 6}, "train__sync": "barrier",
    }  # fmt: skip
    wanted = scenario(**{**base, **overrides})
    tail, whole = simulated(wanted, start), simulated(wanted)
    is_tail(tail, whole)
    assert moved(tail, start) == moved(whole, start)


def test_checkpoints_of_the_tail_have_the_names_and_the_bytes_of_the_whole(tmp_path: Path) -> None:
    written = {}
    wanted = scenario(dataset__path="data", train__compute="100 us", checkpoint=SAVED | {"writers": "all_ranks"})
    for start in (BEGINNING, Start(0, 10, 1)):
        root = tmp_path / str(start.step)
        run_locally(on_disk(wanted, root), root, start)
        files = sorted((root / "ck").rglob("*.bin"))
        written[start] = {str(path.relative_to(root)): path.read_bytes() for path in files}
    whole, tail = written.values()
    assert tail == {name: content for name, content in whole.items() if "epoch-0000-step-00000004" not in name
                    and "epoch-0000-step-00000009" not in name}  # fmt: skip
    assert 0 < len(tail) < len(whole)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pytorch_s_loader_begins_where_it_is_told_to(num_workers: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    wanted = scenario(
        dataset__path="data", train__compute="100 us", loader__kind="torch", loader__num_workers=num_workers,
        loader__multiprocessing_context="fork", loader__shuffle="global", train__epochs=2,
    )  # fmt: skip
    start = Start(0, 5, 1)
    is_tail(run_locally(on_disk(wanted, tmp_path), tmp_path, start), simulated(wanted))


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Start], None]:
    """Have runs of this process begin at a step."""

    def begin(start: Start) -> None:
        def planned(*arguments: Any, **options: Any) -> Plan:
            return replace(plan_of(*arguments, **options), start=start)

        monkeypatch.setattr("rayio.session.execute.plan_of", planned)

    return begin


@pytest.mark.slow  # by default tests/test_failures_ray.py has actors begin at a step
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_actors_begin_where_they_are_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starting: Callable[[Start], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    saving = SAVED | {"model": {"bytes": "5 KB"}, "request_bytes": "1 KB"}
    wanted = scenario(dataset__path="data", train__compute="2 ms", loader__num_workers=1, checkpoint=saving)
    start = Start(0, 7, 2)
    starting(start)
    run = rayio.run(wanted, engine="ray", out="run")
    assert run.result.ledger is not None
    assert run.result.ledger.even
    assert run.result.ledger.planned_steps == 2 * (5 + 12)
    spans = run.spans()
    whole = simulated(wanted)
    for rank in (0, 1):
        waits = spans[(spans.name == "data_wait") & (spans["rank"] == rank)].sort_values("start_ns")
        least = batch_id(rank, start.epoch, start.step)
        assert waits.link.tolist() == [batch for batch in whole.delivered(rank) if batch >= least]
        assert set(waits.attempt) == {2}
    writes = spans[spans.name == "write"]
    assert sorted(zip(writes.epoch, writes.step, strict=True)) == [(0, 9), (1, 2), (1, 7)]
