"""Modelled storage that refuses: held against a walk of the test's own, against sums, and against a real S3 server."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from objects import Objects, first, slow_down

import rayio
from rayio.cli import _exit_code
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import ScenarioError, StorageError
from rayio.model.planning import plan_of
from rayio.report.explain import explain
from rayio.scenario.load import load
from rayio.scenario.write import to_yaml
from rayio.schema.distribution import Constant
from rayio.seeds import Draws
from rayio.session import simulate
from rayio.storage.base import OPEN, READ, Clock, Opener, Requests, Served
from rayio.storage.layers.gate import Bucket, Gate
from rayio.storage.layers.throttle import Throttle, ThrottledStorage
from rayio.storage.model import Device, DeviceSpec, Latencies, LocalArbiter, ModelStorage
from rayio.storage.stores.retrying import Budget
from scenarios import run_locally, scenario, simulated

SECOND = 10**9
#: Bandwidth that takes no time.
WIDE = 1e18


# --- a bucket, against exact arithmetic -----------------------------------------------------------------------------


def walked(arrivals: Sequence[int], rate: int, burst: Fraction, split: int | None) -> list[bool]:
    """Say which requests are served, in fractions: tokens, the rate, and when the refused load began."""
    served, tokens, last, since, refused, per_second = [], None, 0, 0, None, Fraction(rate)
    for now in arrivals:
        most = max(per_second * burst, Fraction(1))
        tokens = most if tokens is None else min(most, tokens + Fraction(now - last, SECOND) * per_second)
        last = now
        served.append(tokens >= 1)
        if tokens >= 1:
            tokens -= 1
            continue
        since = now if refused is None or now - refused > 10 * SECOND else since
        refused = now
        if split is not None and now - since >= split * SECOND:
            per_second, since = per_second * 2, now
    return served


@given(
    st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=60),
    st.integers(1, 20),
    st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(3)]),
    st.sampled_from([None, 1, 4]),
)
def test_a_bucket_serves_whom_exact_arithmetic_serves(
    gaps: list[int], rate: int, burst: Fraction, split: int | None
) -> None:
    arrivals = [int(at) for at in np.cumsum(gaps)]
    bucket = Bucket(float(rate), float(burst), split)
    assert [bucket.admit(at) for at in arrivals] == walked(arrivals, rate, burst, split)


@pytest.mark.parametrize("today", [0, 1_750_000_000 * SECOND])
def test_a_load_that_stays_above_the_rate_has_prefixes_split_again_and_again(today: int) -> None:
    # 1000 requests a second on 100: after 20 s of refusals 200, after 20 more 400, then 800, then all.
    bucket, each = Bucket(100.0, 1.0, 20.0), SECOND // 1000
    served = [bucket.admit(today + number * each) for number in range(120_000)]
    by_second = np.array(served).reshape(120, 1000).sum(axis=1)
    assert by_second[[2, 19, 30, 50, 70]].tolist() == [100, 100, 200, 400, 800]
    assert (by_second[90:] == 1000).all()


def test_a_prefix_that_nobody_lets_rest_is_served_however_often_it_was_split() -> None:
    # Nothing is saved up and two come at a time: the second is always refused, whatever the rate has become.
    bucket = Bucket(1.0, 0.0, 1e-9)
    served = [bucket.admit(number // 2 * SECOND) for number in range(3000)]
    assert served == [True, False] * 1500


def test_a_load_that_pauses_begins_anew() -> None:
    def served(calm: int) -> int:
        bucket = Bucket(10.0, 0.0, 20.0)
        burst = [bucket.admit(start * SECOND + n * SECOND // 100) for start in (0, 15 + calm) for n in range(1500)]
        return sum(burst[1500:])

    assert served(8) > 160 > 151 >= served(12), "no refusal for more than 10 s: the 20 s are counted from there"


def test_a_bucket_that_was_started_again_goes_on_from_what_it_told() -> None:
    arrivals = [number * SECOND // 300 for number in range(9000)]
    whole, before, after = (Bucket(100.0, 1.0, 5.0) for _ in range(3))
    expected = [whole.admit(at) for at in arrivals]
    got = [before.admit(at) for at in arrivals[:5000]]
    after.learn(before.state)
    after.learn(Bucket(100.0, 1.0, 5.0).state)  # older news
    assert got + [after.admit(at) for at in arrivals[5000:]] == expected


# --- readers, against a walk of events ------------------------------------------------------------------------------


class CountingGate(Gate):
    """A gate that counts who came."""

    def __init__(self, throttle: Throttle) -> None:
        super().__init__(throttle)
        self.asked: list[bool] = []

    def admit(self, now: int, kind: int, prefix: int) -> bool:
        """Admit, and note the answer."""
        self.asked.append(super().admit(now, kind, prefix))
        return self.asked[-1]


def no_files(opener: Opener) -> Never:
    raise AssertionError("a model opens no files")


def storage(
    kernel: Clock, throttle: Throttle, gate: Gate | None = None, *, first_byte: float = 0.0, io_depth: int = 1,
    spec: DeviceSpec | None = None, is_itemised: bool = False, device: Device | None = None, draws: Draws | None = None,
) -> ThrottledStorage:  # fmt: skip
    spec = spec or DeviceSpec(WIDE, WIDE)
    model = ModelStorage(
        LocalArbiter(device or Device(spec)), spec, Latencies((draws or Constant(value=first_byte)).draw, 10), kernel,
        io_depth=io_depth, is_itemised=is_itemised,
    )  # fmt: skip
    return ThrottledStorage(model, gate or Gate(throttle), throttle, "data")


def asking(number: int, rank: int = 0, files: Sequence[str] = (), step: int = 0, nbytes: int = 0) -> Requests:
    """Give requests of which each goes to the file in its place, or all to one that nobody names."""
    sizes, places = np.full(number, nbytes, np.int64), None
    if files:
        places = lambda: ([*files], np.arange(number) % len(files), np.zeros(number, np.int64))  # noqa: E731
    return Requests((rank, 0, step), 0, sizes, places)


def walk(readers: int, number: int, throttle: Throttle, first_byte: int) -> tuple[int, int]:
    """Let readers make requests one after the other; give how many were refused, and when all were served (ns)."""
    rate, budget = Fraction(throttle.reads_per_second), Budget(1000, throttle.seed)
    tokens = [rate * Fraction(throttle.burst_seconds)] * throttle.prefixes
    filled, refused, over = [0] * throttle.prefixes, 0, 0
    events = [(0, reader, 0, 1) for reader in range(readers)]
    while events:
        now, reader, request, attempt = heappop(events)
        if request == number:
            over = max(over, now)
            continue
        prefix = (reader + request) % throttle.prefixes
        most = rate * Fraction(throttle.burst_seconds)
        tokens[prefix] = min(most, tokens[prefix] + Fraction(now - filled[prefix], SECOND) * rate)
        filled[prefix] = now
        if tokens[prefix] >= 1:
            tokens[prefix] -= 1
            heappush(events, (now + first_byte, reader, request + 1, 1))
        else:
            refused += 1
            pause = round(budget.seconds(attempt, f"{reader}/{request % 3}") * 1e9)
            heappush(events, (now + first_byte + pause, reader, request, attempt + 1))
    return refused, over


@pytest.mark.parametrize("readers", [1, 10, 30])
@pytest.mark.parametrize("prefixes", [1, 3])
@pytest.mark.parametrize("first_byte", [1_000_000, 30_000_000])
def test_readers_are_refused_as_often_and_done_when_a_walk_of_events_says(
    readers: int, prefixes: int, first_byte: int
) -> None:
    throttle = Throttle(40.0, 1.0, prefixes, 0.5, attempts=1000, seed=7)
    kernel, gate, number = VirtualKernel(), CountingGate(throttle), 60
    retries: list[int] = []

    async def reader(rank: int) -> None:
        mine = storage(kernel, throttle, gate, first_byte=first_byte / 1e9)
        served = await mine.read(asking(number, rank, [f"{rank}/{one}" for one in range(3)]), no_files)
        assert (served.requests, served.value) == (number, None)
        retries.append(0 if served.retried is None else len(served.retried.rows))

    kernel.run(kernel.gather(*(reader(rank) for rank in range(readers))))
    refused, over = walk(readers, number, throttle, first_byte)
    assert (gate.asked.count(False), kernel.now()) == (refused, over)
    assert sum(retries) == refused
    assert gate.asked.count(True) == readers * number
    assert refused > 0 or readers == 1


def test_many_readers_get_the_rate_and_never_more() -> None:
    throttle = Throttle(200.0, 1.0, attempts=1000)
    kernel, gate = VirtualKernel(), Gate(throttle)

    async def reader(rank: int) -> None:
        await storage(kernel, throttle, gate, first_byte=0.005).read(asking(100, rank), no_files)

    kernel.run(kernel.gather(*(reader(rank) for rank in range(60))))
    fewest = (60 * 100 - 200) / 200  # a bucket of a second's worth, then the rate
    assert fewest <= kernel.now() / 1e9 < 1.5 * fewest


def test_reads_and_writes_have_rates_of_their_own() -> None:
    throttle = Throttle(1000.0, 10.0, burst_seconds=0.1, attempts=100)
    kernel = VirtualKernel()
    mine = storage(kernel, throttle, first_byte=0.001)
    assert kernel.run(mine.read(asking(90), no_files)).retried is None
    written = kernel.run(mine.write("shard", 50, 10, fsync=True))
    assert (written.requests, written.nbytes, written.opens, written.syncs) == (5, 50, 1, 2)
    assert written.retried is not None
    assert written.retried.files == ["shard"]
    assert len(written.retried.rows) >= 4


# --- what is as it was ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io_depth", [1, 3])
def test_whoever_is_never_refused_is_served_as_without_a_rate(io_depth: int) -> None:
    spec = DeviceSpec(50e6, 80e6)
    for number in (0, 1, 2, 6):
        throttled, kernel = VirtualKernel(), VirtualKernel()
        wanted = asking(number, nbytes=100_000)
        never = Throttle(1e9, 1e9)
        one = throttled.run(
            storage(throttled, never, spec=spec, first_byte=0.003, io_depth=io_depth).read(wanted, no_files)
        )
        latencies = Latencies(Constant(value=0.003).draw, 10)
        plain = ModelStorage(LocalArbiter(Device(spec)), spec, latencies, kernel, io_depth=io_depth)
        assert one == kernel.run(plain.read(wanted, no_files)) == Served(None, 0, number, number * 100_000)
        assert abs(throttled.now() - kernel.now()) <= number


def test_requests_that_are_served_share_the_bandwidth() -> None:
    spec, never = DeviceSpec(WIDE, 10e6), Throttle(1e9, 1e9)
    kernel = VirtualKernel()
    device = Device(spec)

    async def reader(rank: int) -> None:
        await storage(kernel, never, spec=spec, device=device).read(asking(5, rank, nbytes=100_000), no_files)

    kernel.run(kernel.gather(*(reader(rank) for rank in range(4))))
    assert kernel.now() == 4 * 5 * 10_000_000


@pytest.mark.parametrize("io_depth", [1, 2])
def test_every_request_has_a_row_from_its_first_attempt_to_when_it_was_served(io_depth: int) -> None:
    throttle = Throttle(20.0, 20.0, burst_seconds=0.0, attempts=100)
    kernel, spec = VirtualKernel(), DeviceSpec(WIDE, WIDE, open=Constant(value=0.002))
    mine = storage(kernel, throttle, first_byte=0.004, io_depth=io_depth, spec=spec, is_itemised=True)
    wanted = asking(4, files=["a", "b"])._replace(
        num_opens=2, places=lambda: (["a", "b"], np.array([0, 0, 1, 1]), np.arange(4) * 7)
    )
    served = kernel.run(mine.read(wanted, no_files))
    assert served.issued is not None
    assert served.retried is not None
    rows, retried = served.issued.rows, served.retried.rows
    opens, reads = rows[rows["kind"] == OPEN], rows[rows["kind"] == READ]
    assert (len(opens), len(reads), served.issued.files) == (2, 4, ["a", "b"])
    assert (opens["end"] - opens["start"]).tolist() == [2_000_000] * 2
    assert reads["file"].tolist() == [0, 0, 1, 1]
    assert reads["offset"].tolist() == [0, 7, 14, 21]
    assert opens["end"].tolist() == reads["start"][[0, 2]].tolist()
    assert reads["end"].max() == kernel.now()
    if io_depth == 1:
        assert (reads["start"][1:] >= reads["end"][:-1]).all()
    for row in retried:  # each lies in the request that it is an attempt of
        of = reads[reads["slot"] == row["slot"]]
        inside = (of["start"] - 2_000_000 <= row["start"]) & (row["end"] <= of["end"])
        assert inside.any()


def test_a_scenario_without_it_has_none_and_with_it_has_the_rates_that_amazon_publishes() -> None:
    assert plan_of(scenario(storage__model="s3"), modelled=True).device.requests_per_second == 5500
    throttled = plan_of(scenario(storage={"model": "s3", "throttle": {}, "max_attempts": 5}), modelled=True)
    assert throttled.device.requests_per_second is None, "nobody waits: who comes above the rate is refused"
    assert throttled.layers == (Throttle(5500.0, 3500.0, 1, 1.0, 1800.0, 5, 10),)
    none = plan_of(scenario(storage={"model": "s3", "throttle": "none"}), modelled=True)
    assert none.device == plan_of(scenario(storage__model="s3"), modelled=True).device
    assert none.layers == ()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"throttle": {"reads_per_second": 0}}, "storage.throttle.reads_per_second=0: must be a number per second"),
    "none": ({"throttle": {"writes_per_second": "none"}}, "storage.throttle.writes_per_second=none: must be a number"),
    "prefixes": ({"throttle": {"prefixes": 0}}, "storage.throttle.prefixes=0: must be a whole number of at least 1"),
    "split": ({"throttle": {"split_after": 0}}, "storage.throttle.split_after=0: must be greater than 0"),
    "unknown": ({"throttle": {"rate": 1}}, "storage.throttle.rate"),
    "lustre": ({"model": "lustre-theta", "throttle": {}}, "storage.model=lustre-theta has a metadata server"),
    "two caps": (
        {"model": {"first_byte": 0, "connection_bandwidth": 1, "bandwidth": 1, "requests_per_second": 1},
         "throttle": {}},
        "storage.throttle: takes the place of storage.model.requests_per_second",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_its_key(case: str) -> None:
    keys, says = REFUSED[case]
    with pytest.raises(ScenarioError) as error:
        scenario(storage=keys)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert "or none" not in str(error.value), "none is refused"


def test_it_is_written_and_read_back(tmp_path: Path) -> None:
    wanted = scenario(storage={"model": "s3", "throttle": {"prefixes": 4, "split_after": "never", "burst": "2 s"}})
    (tmp_path / "a.yaml").write_text(to_yaml(wanted))
    assert load(tmp_path / "a.yaml") == wanted
    changed = load(tmp_path / "a.yaml", ["storage.throttle.prefixes=8"])
    assert changed.storage.throttle is not None
    assert changed.storage.throttle.prefixes == 8


# --- whole runs -----------------------------------------------------------------------------------------------------

#: 2 ranks × 2 workers, 48 samples of one read each, twice; 40 reads a second are served, and nothing is saved up.
MEAN: dict[str, Any] = {
    "dataset__format": "tfrecord",
    "train__compute": "1 ms",
    "storage": {
        "model": {"first_byte": "2 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"},
        "throttle": {"reads_per_second": 40, "burst": "100 ms"},
        "max_attempts": 20,
    },
}


def test_every_request_that_was_made_was_served_or_refused() -> None:
    saved = {"every": {"steps": 5}, "path": "ck", "model": {"bytes": 400}, "request_bytes": 100}
    run = simulated(**MEAN, checkpoint=saved)
    assert run.ledger.even
    served = sum(row["requests"] for row in (*run.rows("read"), *run.rows("write")))
    assert served == 96 + 4 * len(run.rows("write"))
    retries = run.rows("retry")
    assert {row["role"] for row in retries} == {"reader"}, "writes are below their rate"
    assert all(row["requests"] == row["bytes"] == 0 and row["file"] for row in retries)
    reads = run.rows("read")
    for row in retries:
        mine = [r for r in reads if (r["rank"], r["epoch"], r["step"]) == (row["rank"], row["epoch"], row["step"])]
        assert any(
            r["start_ns"] <= row["start_ns"]
            and row["start_ns"] + row["duration_ns"] <= r["start_ns"] + r["duration_ns"]
            for r in mine
        )
    # Of any stretch of time no more were served than the rate and what was saved up let through.
    took = max(r["start_ns"] + r["duration_ns"] for r in reads) - reads[0]["start_ns"]
    assert 4 + 40 * took / 1e9 >= 96
    again = simulated(**MEAN, checkpoint=saved)
    assert again.spans.equals(run.spans)


def test_all_nodes_share_the_prefix() -> None:
    """A rate is the bucket's, and no node's, whatever the scope of the bandwidth."""
    keys = {**MEAN, "dataset__num_files": 240, "train__epochs": 1}
    one = simulated(cluster={"nodes": 1, "ranks_per_node": 4}, **keys)
    four = simulated(cluster={"nodes": 4, "ranks_per_node": 1}, **keys)
    assert four.plan.num_devices == 4
    assert len(one.rows("retry")) == len(four.rows("retry")) > 0


def test_the_clock_on_the_wall_refuses_too(tmp_path: Path) -> None:
    run = run_locally(scenario(**MEAN), tmp_path, modelled=True)
    assert run.ledger.even
    assert sum(row["requests"] for row in run.rows("read")) == 96
    retries, budget = run.rows("retry"), Budget(20, 10)
    assert retries
    shortest = 2_000_000 + min(budget.seconds(1, row["file"]) for row in retries) * 1e9
    assert min(row["duration_ns"] for row in retries) >= round(shortest)


@pytest.mark.slow  # by default tests/test_toy_layer.py has actors pass one gate
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_actors_are_refused_by_one_gate(tmp_path: Path) -> None:
    """Two nodes have a device each and share the rate: 24 requests, of which one gate serves 10 a second."""
    throttle = {"reads_per_second": 10, "burst": "100 ms"}
    keys = {
        **MEAN, "cluster": {"nodes": 2, "ranks_per_node": 1}, "loader__num_workers": 1, "train__sync": "none",
        "dataset__num_files": 24, "train__epochs": 1, "storage": MEAN["storage"] | {"throttle": throttle},
    }  # fmt: skip
    run = rayio.run(scenario(**keys), root=tmp_path)
    spans = run.spans()
    reads, retries = (spans[spans["name"] == name] for name in ("read", "retry"))
    assert run.result["ledger"]["even"] is True
    assert int(reads["requests"].sum()) == 24
    assert {*retries["node"]} == {0, 1}
    took = (reads["start_ns"] + reads["duration_ns"]).max() - reads["start_ns"].min()
    assert 2 + 10 * took / 1e9 >= 24


def test_a_budget_that_is_used_up_ends_the_run_in_the_line_of_a_real_store(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"model": "s3", "throttle": {"reads_per_second": 1, "burst": 0}, "max_attempts": 2}
    (home / "a.yaml").write_text(to_yaml(scenario(dataset__path="data", storage=keys)))
    assert _exit_code(["simulate", "a.yaml", "--out", "r"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("rayio: data/000000/")
    assert " 503 SlowDown from the model of storage while reading, 2 times in 0." in line
    assert line.endswith(" s; raise storage.max_attempts, or read with fewer workers")
    run = rayio.Run.open(home / "r")
    assert (run.exit_code, run.result["error"]) == (2, line.removeprefix("rayio: "))
    spans = run.spans()
    failed = spans[(spans["name"] == "read") & (spans["status"] == "error")]
    tried = spans[(spans["name"] == "retry") & (spans["step"] == failed["step"].iloc[0])]
    assert len(failed) == 1
    assert len(tried) >= 1
    with pytest.raises(StorageError) as error:
        simulated(scenario(dataset__path="data", storage=keys | {"max_attempts": 1}))
    assert " while reading; raise storage.max_attempts" in str(error.value)


# --- the real client ------------------------------------------------------------------------------------------------


def test_spans_of_refused_requests_are_those_of_the_real_client(home: Path, objects: Objects, place: str) -> None:
    """Each attempt of either lasts its answer and the pause that seed, name and number of the attempt give."""
    wanted = scenario(
        **{
            **MEAN, "dataset__path": "data", "dataset__num_files": 12, "cluster__ranks_per_node": 1,
            "loader__num_workers": 1, "train__epochs": 1, "storage": MEAN["storage"] | {"max_attempts": 4},
        }
    )  # fmt: skip
    rayio.generate(wanted, root=place)
    with objects.misbehaving(first(3, slow_down, within="/data/0")):
        real = rayio.run(wanted, engine="local", root=place, out=home / "real").spans()
    model = rayio.simulate(wanted, root=home, out=home / "model").spans()

    def tries(spans: Any) -> list[tuple[Any, ...]]:
        """The attempts of each request in order: what their spans say beside times."""
        rows = spans[spans["name"] == "retry"].sort_values("start_ns")
        columns = ["role", "index", "lane", "rank", "attempt", "bytes", "requests", "offset", "status"]
        assert rows["file"].str.fullmatch(r"000000/\w+\.tfrecord").all()
        return [tuple(row) for row in rows[columns].itertuples(index=False)]

    assert len(tries(real)) == 3
    assert {*tries(real)} == {*tries(model)}
    for spans, answer in ((real, None), (model, 2_000_000)):
        attempt: dict[tuple[str, int], int] = {}
        rows = spans[spans["name"] == "retry"].sort_values("start_ns")
        for file, step, took in zip(rows["file"], rows["step"], rows["duration_ns"], strict=True):
            number = attempt[file, step] = attempt.get((file, step), 0) + 1
            pause = round(Budget(4, 10).seconds(number, file) * 1e9)
            assert took >= pause if answer is None else took == pause + answer
    assert sum(real[real["name"] == "read"]["requests"]) == sum(model[model["name"] == "read"]["requests"]) == 12


# --- what explain says ----------------------------------------------------------------------------------------------


def test_explain_names_the_rate_with_both_numbers_and_what_more_prefixes_bring(tmp_path: Path) -> None:
    # 2 ranks of 10 ms and 2 requests a batch ask for 400 requests/s; 100 are served.
    keys = {
        **MEAN, "train__compute": "10 ms", "dataset__num_files": 480, "train__epochs": 1, "loader__num_workers": 8,
        "storage": {**MEAN["storage"], "throttle": {"reads_per_second": 100, "burst": "200 ms"}},
    }  # fmt: skip
    found = explain(simulate(scenario(**keys), root=tmp_path).path)
    limit = found.capacity.storage
    assert limit is not None
    assert (limit.resource, limit.is_short) == ("throttling", True)
    assert limit.gives == pytest.approx(50)
    assert 0.8 * 50 < found.capacity.delivered < 1.02 * 50, "all of it, but for what is left while everybody pauses"
    assert found.verdict.cause == "retry"
    assert found.sentence.startswith("Storage-bound: ")
    assert "Storage serves 100 requests/s and refuses more (503, storage.throttle); the ranks need 400." in (
        found.sentence
    )
    assert found.simulated is not None
    rows = {row.change: row for row in found.simulated.changes}
    for name, throttle in (
        ("no throttling", "none"),
        ("prefixes × 2", {"reads_per_second": 100, "burst": "200 ms", "prefixes": 2}),
    ):
        made = scenario(**keys | {"storage": {**MEAN["storage"], "throttle": throttle}})
        au = explain(simulate(made, root=tmp_path).path, simulate=False).verdict.au
        assert rows[name].au == pytest.approx(au, abs=0.005)
        assert (rows[name].time_saved or 0.0) > 0.3


def test_a_change_with_which_the_run_breaks_off_costs_its_row_and_no_more(tmp_path: Path) -> None:
    keys = {
        **MEAN, "train__compute": "10 ms", "dataset__num_files": 240, "train__epochs": 1, "loader__num_workers": 2,
        "storage": {**MEAN["storage"], "max_attempts": 3, "throttle": {
            "reads_per_second": 100, "burst": "50 ms", "split_after": "never",
        }},
    }  # fmt: skip
    with pytest.raises(StorageError, match="3 times in"):
        simulate(scenario(**keys | {"loader__num_workers": 4}), root=tmp_path)
    found = explain(simulate(scenario(**keys), root=tmp_path).path)
    assert found.simulated is not None
    rows = {row.change for row in found.simulated.changes}
    assert "workers × 2" not in rows
    assert {"no throttling", "workers ÷ 2"} <= rows
    (said,) = (note for note in found.notes if note.startswith("workers × 2: "))
    assert "the run breaks off" in said
    assert "3 times in" in said
