"""Readers that come and go: the policy as a function, and against an oracle that knows the load, in virtual time."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from handmade import Trace
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import rayio
from rayio.analyze.arrays import RunArrays
from rayio.analyze.scaling import scaling
from rayio.engines.virtual.simulation import simulate
from rayio.errors import ScenarioError
from rayio.model.autoscale import Look, Memory, decide, need
from rayio.model.ledger import Tally
from rayio.model.planning import Times, plan_of
from rayio.report.explain import explain
from rayio.scenario.load import load
from rayio.scenario.workers import Autoscaled
from rayio.schema.distribution import Exponential
from rayio.seeds import Draws
from rayio.session import run
from rayio.trace.recorder import Recorder
from rayio.trace.rows import Wide
from scenarios import latest, scenario

#: What a batch takes a reader, in seconds; the oracle knows it.
READ = 0.4
RULES = {"min": 1, "max": 32, "every": "2 s", "calm": "30 s"}


@dataclass(frozen=True)
class Planted:
    """A load that is known: the seconds of compute of each step."""

    seconds: Callable[[NDArray[np.int64]], NDArray[np.float64]]
    expected: float = 0.1

    def draw(self, address_key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.seconds(index)


class Change(NamedTuple):
    """A change of the number of readers; times in seconds."""

    begun: float
    done: float
    before: int
    after: int


class Story:
    """A run with a planted load, and what became of it."""

    def __init__(
        self, seconds: Callable[[NDArray[np.int64]], NDArray[np.float64]], steps: int, *overrides: str,
        decode: Draws | None = None, workers: str | None = None,
    ) -> None:  # fmt: skip
        rules = "{" + ", ".join(f"{key}: {value}" for key, value in RULES.items()) + "}"
        scenario = load(
            "unet3d-small",
            latest(
                "dataset.path=model://planted", "cluster.ranks_per_node=1", f"dataset.num_files={steps}",
                "dataset.sample_bytes=1000 B", "loader.batch_size=1", "loader.prefetch_factor=2", "train.epochs=1",
                f"loader.decode={READ} s", f"loader.num_workers={workers or rules}",
                "storage.model={first_byte: 0 s, connection_bandwidth: 1 GB/s, bandwidth: 100 GB/s}", *overrides,
            ),
        )  # fmt: skip
        plan = plan_of(scenario, modelled=True, times=Times(compute=Planted(seconds), decode=decode))
        recorder, self.tallies = Recorder(), [Tally(0)]
        simulate(plan, recorder, self.tallies)
        self.planned = plan.planned()
        table = recorder.drain()
        assert table is not None
        self.frame = table.to_pandas()
        self.changes = (
            []
            if not len(self.of("scale"))
            else [
                Change(row.start_ns / 1e9, (row.start_ns + row.duration_ns) / 1e9, said["from"], said["to"])
                for row in self.of("scale").itertuples()
                for said in [json.loads(row.attributes)]
            ]
        )
        steps_ = self.of("compute")
        self.starts: NDArray[np.float64] = steps_.start_ns.to_numpy() / 1e9
        self.end = float(self.starts[-1] + steps_.duration_ns.to_numpy()[-1] / 1e9)

    def of(self, name: str) -> Any:
        return self.frame[self.frame["name"] == name]

    def at(self, time: float) -> int:
        """The readers at work at a time."""
        return [change.after for change in self.changes if change.done <= time][-1]

    @property
    def is_even(self) -> bool:
        """Whether every planned sample was delivered once."""
        return [t.digest for t in self.tallies] == [t.digest for t in self.planned] and len(self.of("read")) == sum(
            t.steps for t in self.planned
        )

    @property
    def reader_seconds(self) -> float:
        """Reader-seconds that were paid: a reader is paid from when it was wanted until it has gone."""
        edges = [(c.begun if c.after > c.before else c.done, c.after - c.before) for c in self.changes]
        return sum((self.end - time) * number for time, number in edges)

    @property
    def turns(self) -> int:
        """How often more readers came after some had gone, or the other way round."""
        signs = [change.after > change.before for change in self.changes]
        return sum(a != b for a, b in itertools.pairwise(signs))

    def share(self, begin: float, end: float) -> float:
        """The share of a time that the rank waited."""
        waits = self.of("data_wait")
        starts, ends = waits.start_ns / 1e9, (waits.start_ns + waits.duration_ns) / 1e9
        return float((np.minimum(ends, end) - np.maximum(starts, begin)).clip(lower=0).sum() / (end - begin))


def constant(seconds: float) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    return lambda index: np.full(len(index), seconds)


def step(before: float, after: float, at: int) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    return lambda index: np.where(index < at, before, after)


def oracle(compute: float) -> int:
    """The fewest readers that keep up with a rank that computes so long: each reads a batch in ``READ`` seconds."""
    return math.ceil(READ / compute)


def most(compute: float) -> int:
    """The most that may stay: not more than 80 % of them busy."""
    return math.ceil(READ / compute / 0.8)


@pytest.mark.parametrize("compute", [0.35, 0.1, 0.05, 0.025])
def test_a_constant_load_gets_the_readers_that_it_takes_and_keeps_them(compute: float) -> None:
    told = Story(constant(compute), 3000)
    assert oracle(compute) <= told.at(told.end) <= most(compute)
    assert told.turns == 0
    settled = told.changes[-1].done
    assert settled < 25, "the stated settling time: log2 of the readers, a look and a window each"
    assert told.share(settled + 2, told.end) < 0.05
    assert told.is_even


def test_a_step_up_is_followed_by_doubling_and_no_further() -> None:
    told = Story(step(0.4, 0.04, 200), 2200)
    came = float(told.starts[200])
    later = [change for change in told.changes if change.begun > came]
    assert later[0].begun - came < 12, "reaction: two looks of 2 s or 16 batches, and what was begun before"
    assert oracle(0.04) <= told.at(told.end) <= most(0.04)
    assert later[-1].done - came < 30
    assert told.turns == 0
    assert told.is_even


def test_a_step_down_is_followed_after_the_calm_at_once_and_for_good() -> None:
    told = Story(step(0.04, 0.4, 1500), 1900)
    fell = float(told.starts[1500])
    down = [change for change in told.changes if change.after < change.before]
    assert len(down) == 1
    assert 30 <= down[0].begun - fell <= 45
    assert oracle(0.4) <= down[0].after <= most(0.4)
    assert told.share(fell, told.end) < 0.05
    assert told.is_even


def test_a_ramp_is_followed_without_going_back() -> None:
    def ramp(index: NDArray[np.int64]) -> NDArray[np.float64]:
        return 0.4 * (0.02 / 0.4) ** (np.minimum(index, 4000) / 4000)

    told = Story(ramp, 5000)
    assert told.turns == 0
    assert oracle(0.02) <= told.at(told.end) <= most(0.02)
    for at in range(1000, 5000, 500):
        load = READ / float(ramp(np.array([at]))[0])
        assert load / told.at(float(told.starts[at])) < 1.3, f"step {at}: too few for the load there"
    best = sum(oracle(float(c)) * c for c in ramp(np.arange(5000)))
    assert told.reader_seconds < 1.6 * best
    assert told.is_even


def test_noise_neither_flaps_nor_runs_away() -> None:
    """Reads whose times are drawn from an exponential distribution, the steepest that a storage preset has but one."""
    told = Story(constant(0.1), 6000, decode=Exponential(mean=READ))
    assert told.turns <= 2 * math.log2(told.end / 30), "a wrong try doubles the time to the next"
    late = [change for change in told.changes if change.begun > 120]
    assert all(oracle(0.1) <= change.after <= 6 * oracle(0.1) for change in late)
    assert told.share(60, told.end) < 0.05
    fixed = {
        number: Story(constant(0.1), 2000, decode=Exponential(mean=READ), workers=str(number)) for number in (8, 12)
    }
    assert fixed[8].share(20, fixed[8].end) > 0.05 > fixed[12].share(20, fixed[12].end), "what a fixed number takes"
    assert 8 <= told.reader_seconds / told.end <= 12
    assert told.is_even


def test_readers_that_bring_nothing_go_again_and_are_tried_less_and_less_often() -> None:
    """The storage gives ten batches a second to whoever asks, and the rank could take forty."""
    told = Story(
        constant(0.025), 6000,
        "storage.model={first_byte: 0 s, connection_bandwidth: 1 GB/s, bandwidth: 10 KB/s}",
    )  # fmt: skip
    ups = [change for change in told.changes if change.after > change.before and change.after > 8]
    assert told.at(told.end) <= 8, "4 readers get all that the storage gives, and 8 are the next that were tried"
    tries = [change.begun for change in ups]
    assert len(tries) <= math.log2(told.end / 30) + 2
    gaps = np.diff(tries)
    assert (gaps[1:] > 1.5 * gaps[:-1]).all()
    assert told.is_even


@pytest.mark.parametrize("rules", ["loader.assignment=dynamic", "loader.in_order=false", "loader.shuffle=none"])
def test_nothing_is_lost_or_read_twice_however_batches_are_dealt(rules: str) -> None:
    def waves(index: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(index // 400 % 2 == 0, 0.04, 0.4)

    short = "{min: 1, max: 16, every: 1 s, calm: 5 s, start: 300 ms}"
    told = Story(waves, 2000, rules, workers=short)
    assert told.turns >= 3
    assert told.is_even
    ups = [change for change in told.changes[1:] if change.after > change.before]
    assert all(change.done - change.begun == pytest.approx(0.3) for change in ups)
    read = told.of("read")
    assert len(read) == 2000
    assert read.batch.is_unique
    for change in told.changes:
        if change.after < change.before:
            gone = [f"0-{worker}" for worker in range(change.after, change.before)]
            again = [c.begun for c in told.changes if c.begun > change.done and c.after > c.before]
            back = min(again, default=told.end)
            begun = read[read["index"].isin(gone)].start_ns / 1e9
            assert not ((begun > change.done) & (begun < back)).any(), "somebody read who had gone"


def test_the_bounds_hold_and_the_least_is_there_at_first() -> None:
    told = Story(constant(0.01), 1000, workers="{min: 3, max: 5, every: 1 s}")
    assert told.changes[0] == (0.0, 0.0, 0, 3)
    assert told.at(told.end) == 5


def test_readers_come_in_real_time_too(tmp_path: Path) -> None:
    told = scenario(
        cluster__ranks_per_node=1, dataset__path="data", dataset__num_files=60, loader__batch_size=1, train__epochs=1,
        train__compute="5 ms", loader__decode="40 ms", train__sync="none",
        loader__num_workers={"min": 1, "max": 3, "every": "100 ms", "start": "50 ms"},
    )  # fmt: skip
    done = run(told, engine="local", root=tmp_path)
    assert done.result.ledger is not None
    assert done.result.ledger.even
    assert done.result.scaling is not None
    assert [change.after for change in done.result.scaling.changes][:2] == [1, 2]


looks = st.builds(
    Look, now=st.floats(1, 1e6), seconds=st.floats(0.1, 100), workers=st.integers(1, 64), ready=st.floats(0, 128),
    reading=st.floats(0, 128), waited=st.floats(0, 100), read=st.integers(0, 10_000),
)  # fmt: skip


@given(looks, st.integers(1, 8), st.integers(8, 64))
def test_what_is_wanted_is_within_bounds_and_at_most_twice_as_many(look: Look, least: int, more: int) -> None:
    scaling = Autoscaled(min=least, max=more)
    wanted, _ = decide(scaling, Memory(), look)
    assert wanted == decide(scaling, Memory(), look)[0], "a function of what it is told alone"
    if least <= look.workers <= more:
        assert least <= wanted.workers <= max(more, look.workers)
        assert wanted.workers <= 2 * look.workers
        assert wanted.workers <= need(scaling, look) or wanted.workers == look.workers
        assert (wanted.workers == look.workers) == (not wanted.why)


@given(st.integers(1, 16), st.integers(1, 64))
def test_a_rank_that_waits_gets_what_readers_in_proportion_would_give(workers: int, enough: int) -> None:
    """Readers of one second each, and a rank that could take ``enough`` batches a second."""
    share = 1 - workers / enough
    if share <= 0.05:
        return
    look = Look(10.0, 10.0, workers, 0.0, 2.0 * workers, share * 10, 10 * workers)
    assert need(Autoscaled(min=1, max=64), look) == min(2 * workers, max(enough, workers + 1))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{min: 4, max: 2}", "loader.num_workers.max=2: must be at least min, which is 4"),
        ("{min: 0, max: 2}", "loader.num_workers.min=0: must be a whole number of at least 1"),
        ("{min: 1}", "loader.num_workers.max: is required and missing"),
        ("{min: 1, max: 2, wait: 2}", "loader.num_workers.wait=2: must be a number greater than 0 and at most 1"),
        ("{min: 1, max: 2, calm: 0 s}", "loader.num_workers.calm=0 s: must be greater than 0"),
        ("{min: 1, max: 2, most: 3}", "loader.num_workers.most=3: no such key"),
        ("many", "loader.num_workers=many: must be a whole number of at least 0, or {min: ..., max: ...}"),
    ],
)
def test_bounds_that_cannot_be_are_refused_in_a_line(value: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("unet3d-small", [f"loader.num_workers={value}"])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("loader.kind=torch", "loader.kind=torch cannot change its workers; give a number, or use actors"),
        ("loader.worker=thread", "not yet: loader.num_workers={min: 1, max: 4} with loader.worker=thread"),
        ("train.evaluate={compute: 5 ms}", "not yet: loader.num_workers={min: 1, max: 4} with train.evaluate"),
    ],
)
def test_what_cannot_scale_says_so_in_a_line(override: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("unet3d-small", ["loader.num_workers={min: 1, max: 4}", "dataset.eval.num_files=8", override])
    assert said in str(refused.value)


def test_a_queue_that_is_started_again_hides_nothing_of_how_many_readers_there_were() -> None:
    """It says once more with how many it begins; the peak was before."""
    trace = Trace()
    trace.rank(0, [("data_wait", 0), ("compute", 100 * 10**9)])
    queue = trace.recorder.register("queue", "0", 0)
    for second, before, after in ((0, 0, 1), (10, 1, 6), (50, 0, 1)):
        said = json.dumps({"from": before, "to": after, "why": "planted"})
        moment = second * 10**9
        trace.recorder.add_wide(Wide(queue, "scale", moment, moment, 1, (0, 0, -1, 0), 0, "ok", 0, said))
    spans = trace.spans
    found = scaling(spans, RunArrays.of_spans(spans))
    assert found is not None
    assert (found.least, found.most) == (1, 6)
    assert found.reader_seconds == 10 + 40 * 6 + 50


def test_what_stages_can_do_is_that_of_the_readers_that_there_were(tmp_path: Path) -> None:
    wanted = scenario(
        dataset__num_files=1200, loader__num_workers={"min": 1, "max": 8}, loader__decode="40 ms", train__epochs=1,
        train__compute="50 ms",
    )  # fmt: skip
    done = rayio.simulate(wanted, root=tmp_path, out="r")
    assert done.result.scaling is not None
    mean = done.result.scaling.mean
    assert mean < 12
    found = explain(done.path)
    (worker,) = (row for row in found.capacity.stages if row.stage == "worker")
    assert worker.parallelism == round(mean)
    assert any(f"count their average number ({mean:.1f})" in note for note in found.notes)
