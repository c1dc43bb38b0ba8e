"""Files striped over object servers: against counts byte by byte, queueing theory, and the field's findings."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rayio
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import ScenarioError
from rayio.model.planning import storage_of
from rayio.report.explain import explain
from rayio.scenario.load import build
from rayio.scenario.servers import Servers
from rayio.storage.base import Placed, Requests, Served
from rayio.storage.layers.layer import Mount
from rayio.storage.layers.stripes import ObjectServers, StripedStorage, Stripes

MB = 1_000_000


def scenario(files: int, per_file: int, storage: dict[str, Any], **more: Any) -> Any:
    return build(
        {
            "name": "striped",
            "dataset": {
                "path": "model://striped", "num_files": files, "samples_per_file": per_file, "sample_bytes": "1 MB",
                "format": more.pop("format", "hdf5"),
            },
            "loader": {"batch_size": 16, "num_workers": 4, "prefetch_factor": 1, "shuffle": "global"}
            | more.pop("loader", {}),
            "train": {"epochs": 2, "compute": "1 ms"},
            "storage": storage,
            "cluster": {"nodes": 8, "ranks_per_node": 1},
            **more,
        },
        "striped.yaml",
    )  # fmt: skip


def rate(wanted: Any, out: Path) -> float:
    """Return samples/s in a simulation."""
    return float(rayio.simulate(wanted, out=out).result.samples_per_second or 0)


def test_each_byte_of_a_request_is_on_the_server_of_its_stripe() -> None:
    drawn = random.Random(7)
    for _ in range(300):
        size, count, number = drawn.randint(1, 12), drawn.randint(1, 5), drawn.randint(1, 6)
        first = np.array([drawn.randint(0, 100) for _ in range(number)])
        nbytes = np.array([drawn.choice([0, 1, drawn.randint(0, 200)]) for _ in range(number)])
        expected = [0] * count
        for begin, length in zip(first.tolist(), nbytes.tolist(), strict=True):
            for byte in range(begin, begin + length):
                expected[byte // size % count] += 1
        servers = Servers(number=8, bandwidth=1e9, stripe_count=count, stripe_size=size)
        assert Stripes(servers, 1).pieces(first, nbytes, np.array([0])).tolist() == [expected]


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_waiting_for_one_server_is_that_of_an_m_d_1_queue(load: float) -> None:
    service, number = 1_000_000, 300_000
    state = ObjectServers(Servers(number=1, bandwidth=1e9))
    arrivals = np.cumsum(np.random.default_rng(3).exponential(service / load, number)).astype(np.int64).tolist()
    waited = [state.reserve(now, 0, [(0, 1, service)]) - now - service for now in arrivals]
    assert np.mean(waited) == pytest.approx(load * service / (2 * (1 - load)), rel=0.02)


def expected_most(balls: int, bins: int) -> float:
    """Return the expected largest number of balls in a bin, exactly, by exponential generating functions."""
    below, total = [], Fraction(bins) ** balls
    for most in range(balls + 1):
        each = [Fraction(1, math.factorial(number)) for number in range(most + 1)]
        ways = [Fraction(1), *[Fraction(0)] * balls]
        for _ in range(bins):
            ways = [
                sum((ways[n - k] * each[k] for k in range(min(most, n) + 1)), Fraction(0)) for n in range(balls + 1)
            ]
        below.append(ways[balls] * math.factorial(balls) / total)
    return float(sum(1 - share for share in below[:-1]))


def test_files_are_spread_over_servers_as_balls_are_thrown_into_bins() -> None:
    bins, balls = 8, 16
    longest = []
    for seed in range(3000):
        stripes = Stripes(Servers(number=bins, bandwidth=1e9), seed)
        striped = reading(stripes, node=0)
        files, each = [f"img_{n:06d}.npz" for n in range(balls)], np.arange(balls)
        loads, _ = striped._loads(
            Placed(files, each, np.zeros(balls, np.int64)), np.full(balls, 1000), [0, balls], [""]
        )
        longest.append(stripes.state(VirtualKernel()).reserve(0, 0, loads[0]) / 1000)
    assert np.mean(longest) == pytest.approx(expected_most(balls, bins), rel=0.02)


class Pipe:
    """Storage that takes no time."""

    async def read(self, requests: Requests, load: Any) -> Served[Any]:
        return Served(None, 0, len(requests.nbytes), requests.total_bytes)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        return Served(None, 1, 1, num_bytes)


def reading(stripes: Stripes, node: int, kernel: Any = None, state: Any = None) -> StripedStorage:
    kernel = kernel or VirtualKernel()
    state = state or stripes.state(kernel)
    return StripedStorage(Pipe(), stripes, Mount(kernel, node, "data", True, 1, False, lambda: state))


def placed(offsets: list[int], nbytes: list[int], opening: NDArray[np.int64] | None) -> Requests:
    file = np.zeros(len(offsets), np.int64)
    sizes = np.array(nbytes, np.int64)
    return Requests((0, 0, 0), 1, sizes, lambda: (["a"], file, np.array(offsets), opening))


def test_only_requests_that_do_not_continue_the_one_before_in_an_open_file_are_random() -> None:
    striped = reading(Stripes(Servers(number=4, bandwidth=1e9, seek=0.01), 1), node=0)

    def sought(offsets: list[int], nbytes: list[int], opening: list[int] | None, reader: str = "") -> list[int]:
        requests = placed(offsets, nbytes, None if opening is None else np.array(opening, np.int64))
        assert requests.places is not None
        _, (waiting,) = striped._loads(Placed(*requests.places()), requests.nbytes, [0, len(nbytes)], [reader])
        return [int(number) for number in waiting]

    assert sought([0, 10, 30], [10, 10, 10], None) == [0, 2], "the first of a file, and one with a gap before it"
    assert sought([40], [10], None) == [0], "the file was closed in between"
    assert sought([0, 10], [10, 10], [0]) == [0]
    assert sought([20, 30], [10, 10], []) == [], "the file stayed open, and reading goes on where it ended"
    assert sought([20], [10], [], "another") == [0], "another worker has the file open, and begins"
    assert sought([40], [10], []) == [], "which is another handle"
    assert sought([20], [10], []) == [0], "it jumps back"
    assert sought([50], [10], []) == [0], "and away again: an end before the last one is no place to go on from"
    assert sought([30], [10], [], "another") == []


@pytest.mark.parametrize("keep_open", [0, 64])
def test_every_request_of_a_global_shuffle_is_random_in_every_epoch(keep_open: int, tmp_path: Path) -> None:
    model = {
        "first_byte": 0, "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s",
        "servers": {"number": 4, "bandwidth": "1 TB/s", "random": "8 ms"},
    }  # fmt: skip
    loader = {"batch_size": 1, "num_workers": 1, "keep_open": keep_open}
    wanted = scenario(10, 100, {"model": model}, format="raw", loader=loader, cluster={"nodes": 2})
    seconds = rayio.simulate(wanted, out=tmp_path / "run").result.wall_seconds
    # Two ranks read 500 samples in each of two epochs; one in a hundred is by chance the next one of its file.
    assert seconds == pytest.approx(2 * 500 * 0.008 + 2 * 0.001, rel=0.02)


def test_seeks_locks_and_first_accesses_keep_a_server_busy() -> None:
    state = ObjectServers(Servers(number=2, bandwidth=1e9, lock=5e-9, cold=100e-9))
    assert state.reserve(0, 0, [(0, 9, 10)]) == 110, "the first access to the file"
    assert state.reserve(0, 0, [(0, 9, 10)]) == 120, "the same node"
    assert state.reserve(0, 1, [(0, 9, 10)]) == 135, "another node has to wait for the lock"
    assert state.reserve(0, 1, [(1, 9, 10)]) == 110, "the first access on the other server"
    stripes = Stripes(Servers(number=2, bandwidth=1e9, seek=1e-6, stripe_count=2, stripe_size=100), 1)
    requests = placed([100, 0], [100, 50], None)
    assert requests.places is not None
    (loads,), _ = reading(stripes, 0)._loads(Placed(*requests.places()), requests.nbytes, [0, 2], [""])
    assert sorted(load.busy for load in loads) == [1050, 1100]


@pytest.mark.parametrize(("count", "within"), [(1, 0.02), (4, 0.02), (16, 0.05)])
def test_one_shared_file_gives_what_its_servers_give(count: int, within: float, tmp_path: Path) -> None:
    model = {
        "first_byte": "1 us", "connection_bandwidth": "10 GB/s", "bandwidth": "1 TB/s", "scope": "cluster",
        "servers": {"number": 16, "bandwidth": "500 MB/s", "stripe_count": count, "stripe_size": "1 MB"},
    }  # fmt: skip
    wanted = scenario(1, 4096, {"model": model}, train={"epochs": 6, "compute": "1 us"})
    assert rate(wanted, tmp_path / "run") == pytest.approx(count * 500, rel=within)


def test_many_files_beat_one_shared_file_of_one_stripe_and_not_one_of_sixteen(tmp_path: Path) -> None:
    """The field's finding (docs/findings.md); without servers one file was 3.7 times as fast as 512."""
    given = {
        (files, count): rate(
            scenario(files, 4096 // files, {"model": "lustre-theta", "stripe_count": count}),
            tmp_path / f"{files}-{count}",
        )
        for files, count in ((1, 1), (1, 16), (512, 1))
    }
    assert given[512, 1] > 2 * given[1, 1]
    assert given[1, 16] > given[512, 1], "opens have a price too"


def test_what_explain_says_of_busy_servers_is_what_the_change_gives(tmp_path: Path) -> None:
    wanted = scenario(1, 4096, {"model": "lustre-theta"}, train={"epochs": 2, "compute": "10 ms"})
    run = rayio.simulate(wanted, out=tmp_path / "run")
    found = explain(run.directory.address)
    assert found.verdict.cause == "server"
    assert "of it `server`: 32 workers do " in found.sentence
    assert "fast enough" not in found.sentence
    (worker,) = (row for row in found.capacity.stages if row.stage == "worker")
    assert worker.capacity == pytest.approx(found.capacity.delivered, rel=0.15), "the servers are the limit"
    assert found.simulated is not None
    changes = {change.change: change for change in found.simulated.changes}
    assert (changes["read = 0"].time_saved or 0.0) < 0.05, "a read without the pipe still waits for servers"

    def changed(**storage: Any) -> Any:
        return wanted.model_copy(update={"storage": wanted.storage.model_copy(update=storage)})

    more = rayio.simulate(changed(stripe_count=4), out=tmp_path / "more")
    assert changes["stripe_count 4"].au == pytest.approx(more.au, abs=0.01)
    model = storage_of(wanted).model_copy(update={"servers": None})
    without = rayio.simulate(changed(model=model), out=tmp_path / "without")
    assert changes["servers = ∞"].au == pytest.approx(without.au, abs=0.01)

    model = storage_of(wanted)
    assert model.servers is not None
    single = model.model_copy(update={"servers": model.servers.model_copy(update={"number": 1})})
    advised = explain(rayio.simulate(changed(model=single), out=tmp_path / "single").path).prediction
    assert advised is not None
    assert advised.change == "With servers = ∞", "a single server has no other stripes"


def test_stripes_without_servers_and_more_stripes_than_servers_are_refused() -> None:
    with pytest.raises(ScenarioError, match="stripe_count: nvme has no servers; choose one that has, such as lustre"):
        scenario(1, 4096, {"model": "nvme", "stripe_count": 4})
    with pytest.raises(ScenarioError, match="stripe_count: 100 stripes on 56 servers; give at most that many"):
        scenario(1, 4096, {"model": "lustre-theta", "stripe_count": 100})
