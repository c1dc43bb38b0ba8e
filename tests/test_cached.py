"""Caches of nodes in the model of storage: held against sums, and against a walk of the test's own over the samples."""

from __future__ import annotations

import csv
import math
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.stalls import attribute
from rayio.cli import main
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import ScenarioError, StorageError
from rayio.model.planning import plan_of
from rayio.model.pool import NodePool
from rayio.place import Where
from rayio.predict.calibrate import calibrate
from rayio.predict.changes import applied, offered
from rayio.predict.counterfactual import ready
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.report.text.summary import fetched_line
from rayio.reporter import Reporter
from rayio.scenario.load import load
from rayio.scenario.reader_pool import ReaderPool
from rayio.scenario.write import to_yaml
from rayio.session import run, simulate
from rayio.storage.base import Moved, Opener, Requests, Served
from rayio.storage.layers.cache import COMING, MISSING, THERE, CachedStorage, Lru, NodeCache
from rayio.storage.layers.layer import Mount
from rayio.study.sizing import knee
from rayio.study.sizing.capacity import capacity
from rayio.study.sizing.knee import Planned
from rayio.trace.recorder import Recorder
from rayio.trace.slices import Slices
from scenarios import Outcome, run_locally, scenario, simulated

#: What npz reads of a file beside its sample: its end and its start.
HEADS = 2 * 4096
#: Bytes of a sample where all are alike.
SAMPLE = 10_000


def ram(nbytes: float, **more: Any) -> list[dict[str, Any]]:
    return [{"tier": "ram", "bytes": round(nbytes), **more}]


def kept(samples: int, cache: float | None, *, ranks: int = 1, **more: Any) -> dict[str, Any]:
    """A scenario in which each node can keep so many of the samples, of which one reader of each rank reads some."""
    storage: dict[str, Any] = {"model": "memory"} | ({} if cache is None else {"cache": ram(cache * SAMPLE)})
    return {
        "cluster": {"nodes": 1, "ranks_per_node": ranks},
        "dataset": {"path": "model://kept", "num_files": samples, "sample_bytes": f"{SAMPLE} B"},
        "loader": {"batch_size": 4, "num_workers": 1},
        "train": {"epochs": 4, "compute": "1 ms"},
        "storage": storage,
    } | more


def moved(outcome: Outcome) -> Moved:
    """Where the bytes of all ranks came from."""
    first, *others = [tally.moved for tally in outcome.tallies]
    assert first is not None
    for other in others:
        assert other is not None
        first = first + other
    return first


def hit_share(outcome: Outcome) -> float:
    """The share that came from memory of what was read from the second epoch on; the first one finds nothing."""
    asked, fetched, _ = moved(outcome)
    first = asked / outcome.scenario.train.epochs
    assert fetched is not None
    return 1 - (fetched - first) / (asked - first)


# --- theory ---------------------------------------------------------------------------------------------------------


def shuffled(part: float) -> float:
    """The hits of an LRU cache that holds a part of samples which are read in another random order every epoch.

    A sample at place u of one epoch and at v of the next comes again after (1 - u) N + v N others; of these, as many
    differ as the union of two random sets has, and the cache has it if those are fewer than it holds.
    """
    x = 1 - min(part, 1.0)
    return 1 - x + (x * math.log(x) if x else 0.0)


@pytest.mark.parametrize("part", [0.25, 0.5, 0.9, 1.0, 1.5])
def test_shuffled_epochs_find_in_the_cache_what_theory_says(part: float) -> None:
    found = simulated(**kept(4000, 4000 * part, train={"epochs": 5, "compute": "1 ms"}))
    assert hit_share(found) == pytest.approx(shuffled(part), abs=0.012)
    assert found.ledger.even


def test_theory_is_the_one_that_is_written_down() -> None:
    assert (round(shuffled(0.5), 3), round(shuffled(0.9), 3), shuffled(1.0)) == (0.153, 0.67, 1.0)


@pytest.mark.parametrize(("part", "share"), [(0.9, 0.0), (0.999, 0.0), (1.0, 1.0)])
def test_the_same_order_every_epoch_is_the_worst_that_an_lru_cache_can_meet(part: float, share: float) -> None:
    loader = {"batch_size": 4, "num_workers": 1, "shuffle": "none"}
    assert hit_share(simulated(**kept(1000, 1000 * part, loader=loader))) == share


def test_the_first_epoch_finds_nothing() -> None:
    asked, fetched, _ = moved(simulated(**kept(400, 400, train={"epochs": 1, "compute": "1 ms"})))
    assert asked == fetched == 400 * (SAMPLE + HEADS)


def test_a_sample_that_is_larger_than_the_cache_is_never_kept() -> None:
    asked, fetched, _ = moved(simulated(**kept(400, 0.99)))
    assert asked == fetched


def test_without_the_key_nobody_knows_where_bytes_came_from() -> None:
    assert [tally.moved for tally in simulated(**kept(40, None)).tallies] == [None]


# --- against a walk of the test's own -------------------------------------------------------------------------------


def walked(batches: Sequence[Sequence[tuple[int, int]]], capacity: int) -> int:
    """Read batches of (sample, bytes) one after the other through a cache; give the bytes that it had not."""
    there = OrderedDict[int, int]()
    fetched = 0
    for batch in batches:
        for sample, nbytes in batch:
            if sample in there:
                there.move_to_end(sample)
                continue
            fetched += nbytes + HEADS
            there[sample] = nbytes
            while sum(there.values()) > capacity:
                there.popitem(last=False)
    return fetched


SIZES = {"kind": "normal", "mean": "20 kB", "stdev": "4 kB"}


@pytest.mark.parametrize("part", [0.1, 0.4])
@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_four_nodes_fetch_to_the_byte_what_a_walk_over_their_samples_does(part: float, shuffle: str) -> None:
    capacity = round(part * 800 * 20_000)
    wanted = scenario(**kept(
        800, None, cluster={"nodes": 4, "ranks_per_node": 1}, storage={"model": "nvme", "cache": ram(capacity)},
        dataset={"path": "model://kept", "num_files": 800, "sample_bytes": SIZES},
        loader={"batch_size": 4, "num_workers": 1, "shuffle": shuffle},
    ))  # fmt: skip
    found = simulated(wanted)
    sampler = found.plan.sampler()
    for rank, tally in enumerate(found.tallies):
        batches = [
            [*zip(one.samples.tolist(), one.nbytes.tolist(), strict=True)]
            for epoch in range(4)
            for one in (sampler.batch(epoch, rank, step) for step in range(50))
        ]
        asked = sum(nbytes + HEADS for batch in batches for _, nbytes in batch)
        assert tally.moved == Moved(asked, walked(batches, capacity), None)
    share = 1 - moved(found).fetched / moved(found).requested  # type: ignore[operator]
    assert share == (0.0 if part < 0.25 else 0.75) if shuffle == "none" else 0.001 < share < 0.5


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=60), st.integers(1, 100))
def test_a_cache_holds_what_was_used_last_as_far_as_it_fits(uses: list[tuple[int, int]], capacity: int) -> None:
    cache, sizes, order = Lru(capacity), dict[int, int](), list[int]()
    for key, size in uses:
        size = sizes.setdefault(key, size)
        assert cache.use(key, size) == (key in order)
        if size <= capacity:
            order = [*(one for one in order if one != key), key]
        while sum(sizes[one] for one in order) > capacity:
            order.pop(0)
        assert cache.nbytes == sum(sizes[one] for one in order) <= capacity


def test_the_books_are_the_same_with_and_without_caches() -> None:
    four = {"nodes": 4, "ranks_per_node": 2, "placement": "spread", "nic_bandwidth": "1 GB/s"}
    loader = {"batch_size": 2, "num_workers": 2}
    with_caches, without = (simulated(**kept(400, cache, cluster=four, loader=loader)) for cache in (60, None))
    assert with_caches.ledger == without.ledger
    assert with_caches.ledger.even
    asked, fetched, _ = moved(with_caches)
    assert fetched is not None
    assert 0 < fetched < asked
    assert [with_caches.delivered(rank) for rank in range(8)] == [without.delivered(rank) for rank in range(8)]


# --- what a part of a batch asks for --------------------------------------------------------------------------------

FORMATS: dict[str, dict[str, Any]] = {
    "npz": {"format": "npz"},
    "npz of many": {"format": "npz", "samples_per_file": 6},
    "hdf5": {"format": "hdf5", "samples_per_file": 6},
    "hdf5 in chunks": {"format": "hdf5", "samples_per_file": 6, "chunk": "25 kB"},
    "tfrecord": {"format": "tfrecord", "samples_per_file": 6},
    "parquet": {"format": "parquet", "samples_per_file": 6},
}


class Storing:
    """A storage that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Requests] = []

    async def read(self, requests: Requests, load: Callable[[Opener], Any]) -> Served[Any]:
        """Note it."""
        self.asked.append(requests)
        return Served(None, requests.num_opens, len(requests.nbytes), requests.total_bytes)

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Nobody writes."""
        raise AssertionError


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", ["batch", "io"])
def test_storage_is_asked_for_the_samples_that_are_not_there_as_the_format_asks_for_those(
    name: str, level: str
) -> None:
    dataset = {"path": "model://x", "num_files": 40, "sample_bytes": "10 kB", **FORMATS[name]}
    wanted = scenario(
        dataset=dataset, storage__cache=ram(1e9), loader={"batch_size": 8, "num_workers": 1}, trace={"level": level}
    )
    plan = plan_of(wanted, modelled=True)
    load_of, kernel, below = plan.loading().of(Where(0, 0, 0)), VirtualKernel(), Storing()
    cache = NodeCache(kernel, 10**9)
    there = load_of.batch.samples[[1, 2, 5]].tolist()
    cache.look((9, 9, 9), there, [1, 1, 1])
    cache.came((9, 9, 9), there)
    requests = load_of.requests

    def no_files(opener: Opener) -> None:
        raise AssertionError("a model opens no files")

    mount = Mount(kernel, 0, "data", True, 1, False, lambda: cache)
    served = kernel.run(CachedStorage(below, cache, mount).read(requests, no_files))
    (asked,) = below.asked
    left = np.array([0, 3, 4, 6, 7])
    batch = load_of.batch
    batch = type(batch)(0, 0, 0, batch.samples[left], batch.files[left], batch.index[left], batch.nbytes[left])
    expected = plan.form.requests(plan.layout, batch)
    assert asked.nbytes.tolist() == expected.nbytes.tolist()
    assert (asked.num_opens, asked.num_samples) == (expected.num_opens, 5)
    assert served.moved is not None
    assert served.moved.fetched == expected.total_bytes < served.moved.requested == served.nbytes
    assert served.requests > len(expected.nbytes)
    again = kernel.run(CachedStorage(below, cache, mount).read(requests, no_files))
    assert len(below.asked) == 1, "now all of it is there"
    assert again.moved == Moved(requests.total_bytes, 0, None)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", ["io", "sample"])
def test_requests_and_samples_are_recorded_wherever_they_came_from(name: str, level: str) -> None:
    dataset = {"path": "model://x", "num_files": 40, "sample_bytes": "10 kB", **FORMATS[name]}
    found = simulated(**kept(0, 120, dataset=dataset, trace={"level": level}, train={"epochs": 3, "compute": "1 ms"}))
    assert 0.05 < hit_share(found) < 0.9 or name == "npz"
    for read in found.rows("read"):
        within = [one for one in found.rows("io.read" if level == "io" else "sample") if one["step"] == read["step"]]
        within = [one for one in within if one["epoch"] == read["epoch"]]
        assert len(within) == (read["requests"] if level == "io" else 4)
        assert sum(one["bytes"] for one in within) == (read["bytes"] if level == "io" else 40_000)
        ends = read["start_ns"] + read["duration_ns"]
        assert all(read["start_ns"] <= one["start_ns"] for one in within)
        assert all(one["start_ns"] + one["duration_ns"] <= ends + 1 for one in within)
        files = found.plan.sampler().batch(read["epoch"], 0, read["step"]).files
        assert {one["file"] for one in within} == {found.plan.layout.path(file) for file in files.tolist()}


# --- time -----------------------------------------------------------------------------------------------------------

#: A storage that serves 20 samples a second, and a rank that could train on 400.
SLOW: dict[str, Any] = {"first_byte": 0, "connection_bandwidth": "200 MB/s", "bandwidth": "200 MB/s"}
SLOWLY: dict[str, Any] = {
    "dataset": {"path": "model://slow", "format": "tfrecord", "num_files": 400, "sample_bytes": "10 MB"},
    "train": {"epochs": 4, "compute": "10 ms", "sync": "none"},
}


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_later_epochs_take_the_time_that_what_is_missing_takes_of_the_storage(part: float) -> None:
    storage = {"model": SLOW, "cache": ram(part * 400 * 10e6)}
    found = simulated(**kept(400, None, **SLOWLY, storage=storage))
    ends = [0] + [found.rows("compute", epoch=epoch)[-1]["start_ns"] + 10_000_000 for epoch in range(4)]
    first, *later = [(end - begin) / 1e9 for begin, end in pairwise(ends)]
    assert first == pytest.approx(400 * 10e6 / 200e6, rel=0.03)
    missed = 1 - shuffled(part)
    for seconds in later:
        assert seconds == pytest.approx(max(first * missed, 100 * 0.010), rel=0.12)


def test_what_is_there_comes_at_the_rate_of_memory() -> None:
    storage = {"model": SLOW, "cache": ram(400 * 10e6)}
    found = simulated(**kept(400, None, **SLOWLY, storage=storage))
    for read in found.rows("read", epoch=2):
        assert read["duration_ns"] == pytest.approx(read["requests"] * 2000 + read["bytes"] / 10, abs=2)


def test_two_ranks_that_read_the_same_read_it_once_and_both_wait_for_it() -> None:
    same = {"batch_size": 4, "num_workers": 1, "partition": "replicated"}
    keys = SLOWLY | {"train": {"epochs": 2, "compute": "10 ms"}}
    alone = simulated(**kept(400, None, **keys, storage={"model": SLOW, "cache": ram(5e9)}, loader=same))
    both = simulated(**kept(400, None, ranks=2, **keys, storage={"model": SLOW, "cache": ram(5e9)}, loader=same))
    assert moved(both).fetched == moved(alone).fetched
    assert moved(both).requested == 2 * moved(alone).requested
    for step in range(100):  # 40 MB each, one after the other at 200 MB/s
        ends = [one["start_ns"] + one["duration_ns"] for one in both.rows("read", epoch=0, step=step)]
        assert len(ends) == 2
        assert min(ends) >= (step + 1) * 200_000_000, "nobody has it before it was read"


def test_a_cache_spares_a_throttled_storage_its_refusals() -> None:
    throttle = {"reads_per_second": 100, "burst": "100 ms", "split_after": "never"}
    mean = {"first_byte": "1 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    storage = {"model": mean, "throttle": throttle, "max_attempts": 50, "cache": ram(1e9)}
    found = simulated(**kept(200, None, storage=storage, loader={"batch_size": 4, "num_workers": 4}))
    assert {row["epoch"] for row in found.rows("retry")} == {0}
    assert found.ledger.even
    half = storage | {"cache": ram(100 * SAMPLE)}
    found = simulated(**kept(200, None, storage=half, loader={"batch_size": 4, "num_workers": 4}))
    assert {row["epoch"] for row in found.rows("retry")} == {0, 1, 2, 3}, "refusals of what is missing are told"


def test_a_storage_that_refuses_for_good_ends_the_run_also_where_others_wait_for_the_sample() -> None:
    throttle = {"reads_per_second": 1, "burst": "0 s", "split_after": "never"}
    storage = {"model": SLOW, "throttle": throttle, "max_attempts": 1, "cache": ram(1e9)}
    same = {"batch_size": 4, "num_workers": 2, "partition": "replicated"}
    with pytest.raises(StorageError, match="503 SlowDown"):
        simulated(**kept(40, None, ranks=2, storage=storage, loader=same))


# --- what a cache is of ---------------------------------------------------------------------------------------------


def test_an_evaluation_has_samples_of_its_own() -> None:
    held_out = {"path": "model://kept", "num_files": 100, "sample_bytes": f"{SAMPLE} B", "eval": {"num_files": 40}}
    for epochs, times in ((1, 1), (2, 2)):
        train = {"epochs": epochs, "compute": "1 ms", "evaluate": {"compute": "1 ms"}}
        asked, fetched, _ = moved(simulated(**kept(0, 1000, dataset=held_out, train=train)))
        assert asked == times * 140 * (SAMPLE + HEADS)
        assert fetched == 140 * (SAMPLE + HEADS), "what training has read is no sample of the evaluation"


def test_checkpoints_go_past_it() -> None:
    saved = {"every": {"epochs": 1}, "path": "model://saved", "model": {"bytes": "100 MB"}}
    with_cache, without = (simulated(**kept(100, cache, checkpoint=saved)) for cache in (50, None))
    written = [[row["duration_ns"] for row in one.rows("write")] for one in (with_cache, without)]
    assert len(written[0]) == len(written[1]) == 4
    plain = moved(simulated(**kept(100, 50)))
    assert moved(with_cache) == plain


def test_a_batch_that_is_read_once_more_reads_what_it_was_to_read_and_others_wait_for_that() -> None:
    kernel, heard = VirtualKernel(), list[str]()
    cache = NodeCache(kernel, 1000)

    async def waits() -> None:
        assert cache.look((1, 0, 0), [7, 8], [10, 10]) == [COMING, MISSING]
        cache.came((1, 0, 0), [8])
        await cache.arrived([7])
        heard.append("arrived")
        assert cache.look((1, 0, 1), [7, 8], [10, 10]) == [THERE, THERE]

    async def reads() -> None:
        assert cache.look((0, 0, 0), [7], [10]) == [MISSING]
        await kernel.sleep_until(10)  # its reader is killed meanwhile, and another one is given the batch
        assert heard == []
        assert cache.look((0, 0, 0), [7], [10]) == [MISSING]
        cache.came((0, 0, 0), [7])

    kernel.run(kernel.gather(reads(), waits()))
    assert heard == ["arrived"]
    cache.clear()
    assert cache.look((2, 0, 0), [7, 8], [10, 10]) == [MISSING, MISSING]


def test_a_node_that_comes_anew_has_an_empty_cache() -> None:
    kernel, gone = VirtualKernel(), list[tuple[int, float]]()
    spec = ReaderPool(nodes=1, start=10, idle_timeout=5)
    pool = NodePool(kernel, spec, 3, Recorder(), lambda node: gone.append((node, kernel.now() / 1e9)))

    async def story() -> None:
        pool.want((0, 0), lambda node: None)
        await kernel.sleep_until(20 * 10**9)
        pool.free((0, 0))
        await kernel.sleep_until(60 * 10**9)

    kernel.run(story())
    assert gone == [(3, 25.0)]


def test_nodes_of_a_pool_have_caches_of_their_own() -> None:
    found = simulated(**kept(
        600, 600, cluster={"ranks_per_node": 1, "reader_pool": {"nodes": 1, "start": "10 ms"}},
        loader={"batch_size": 4, "num_workers": {"min": 1, "max": 2}},
    ))  # fmt: skip
    assert found.ledger.even
    plan = found.plan
    (layer,) = plan.layers
    assert plan.shared_by(layer) == (0, 1)
    assert [plan.state_of_node(node) for node in (0, 1, 2)] == [0, 1, 1]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("ram", "storage.cache=ram: must be none, or a list of one tier, such as [{tier: ram, bytes: 64 GiB}]"),
        ("{tier: ram, bytes: 1 GiB}", "storage.cache={tier: ram, bytes: 1 GiB}: must be none, or a list of one tier"),
        ("[]", "storage.cache=[]: has no tier; write none, or one such as [{tier: ram, bytes: 64 GiB}]"),
        ("[ram]", "storage.cache=[ram]: must be none, or a list of one tier"),
        ("[{tier: ram}]", "storage.cache[0].bytes: is required and missing"),
        ("[{bytes: 1 GiB}]", "storage.cache[0].tier: is required and missing"),
        ("[{tier: ram, bytes: 0}]", "must be greater than 0"),
        ("[{tier: ram, bytes: 3 s}]", "unknown unit 's'"),
        ("[{tier: tape, bytes: 1 GiB}]", "must be ram"),
        ("[{tier: ram, bytes: 1 GiB, policy: fifo}]", "must be lru"),
        ("[{tier: ram, bytes: 1 GiB, size: 3}]", "no such key"),
        ("[{tier: local_disk, bytes: 1 GiB}]", "not yet: storage.cache[0].tier=local_disk; there is ram"),
        ("[{tier: ram, bytes: 1 GiB}, {tier: local_disk, bytes: 2 GiB}]", "; there is one tier"),
    ],
)
def test_a_cache_that_cannot_be_is_refused_in_a_line(value: str, says: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("unet3d-small", [f"storage.cache={value}"])
    assert says in str(refused.value)
    assert "storage.cache" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert ("not yet: " in str(refused.value)) == ("local_disk" in value)


def test_it_is_written_and_read_back(tmp_path: Path) -> None:
    wanted = scenario(storage__cache=ram(64 << 30))
    (tmp_path / "a.yaml").write_text(to_yaml(wanted))
    assert load(tmp_path / "a.yaml") == wanted
    assert "tier: ram" in (tmp_path / "a.yaml").read_text()
    assert "64 GiB" in (tmp_path / "a.yaml").read_text()
    assert load(tmp_path / "a.yaml", ["storage.cache=none"]) == scenario()


# --- what is said of it ---------------------------------------------------------------------------------------------


def test_a_simulation_says_which_share_came_from_memory(tmp_path: Path) -> None:
    ended = simulate(scenario(**kept(400, 400)), root=tmp_path)
    told = ended.result.fetched
    assert told is not None
    read = 4 * 400 * (SAMPLE + HEADS)
    assert (told.read_bytes, told.fetched_bytes, told.page_cache_share) == (read, read // 4, 0.75)
    assert (told.source, told.delivered_bytes) == ("model", 4 * 400 * SAMPLE)
    assert told.how == "storage.cache: modelled caches of 3.81 MiB on each reading node, empty at first"
    line = "from storage: 6.94 MiB of 27.8 MiB read; 75.0 % from the modelled cache"
    assert fetched_line(told) == line
    assert line in report(ended.path).read_text()
    assert ended.result.origin is not None
    assert "page caches" not in ended.result.origin.leaves_out
    assert ended.result.origin.model is not None
    assert "storage.cache: each node that reads keeps 3.81 MiB of samples" in ended.result.origin.model.source


def test_explain_counts_what_the_cache_had_and_says_what_a_larger_one_brings(tmp_path: Path) -> None:
    storage = {"model": SLOW | {"connection_bandwidth": "1 GB/s"}, "cache": ram(200 * 10e6)}
    keys = kept(400, None, **SLOWLY, storage=storage)
    ended = simulate(scenario(**keys), root=tmp_path)
    found = explain(ended.path)
    limit, told = found.capacity.storage, ended.result.fetched
    assert limit is not None
    assert told is not None
    missed = (1 + 3 * (1 - shuffled(0.5))) / 4
    assert told.page_cache_share == pytest.approx(1 - missed, abs=0.02)
    assert (limit.resource, limit.is_short) == ("bandwidth", True)
    assert limit.gives == pytest.approx(200e6 / (4 * 10e6 * missed), rel=0.03), "batches a second"
    assert limit.gives == pytest.approx(found.capacity.delivered, rel=0.05), "all of it is used"
    (note,) = (note for note in found.notes if "storage.cache" in note)
    assert note.endswith("% of what was read in the whole run: what ranks need of storage is the rest")
    assert found.simulated is not None
    assert found.simulated.au == pytest.approx(ended.au, abs=1e-6), "lived again with its caches, it is the same run"
    rows = {row.change: row for row in found.simulated.changes}
    for name, other in (
        ("cache × 2", {"cache": ram(400 * 10e6)}),
        ("read = 0", {"model": {"first_byte": 0, "connection_bandwidth": 1e18, "bandwidth": 1e18}, "cache": "none"}),
    ):
        made = simulate(scenario(**keys | {"storage": storage | other}), root=tmp_path)
        assert rows[name].au == pytest.approx(made.au, abs=0.005)
    # A cache that has it all cannot be too small.
    whole = explain(simulate(scenario(**keys | {"storage": storage | {"cache": ram(5e9)}}), root=tmp_path).path)
    assert whole.simulated is not None
    assert "cache × 2" not in {row.change for row in whole.simulated.changes}


def test_lived_again_a_run_has_its_caches_and_without_reads_it_makes_its_samples() -> None:
    wanted = scenario(**kept(100, 50))
    spans = simulated(wanted).spans
    base = ready(wanted, {"engine": "virtual"}, attribute(spans), Slices.of(spans))
    assert base is not None
    replay = base.measured.replayed(base.scenario, modelled=base.modelled)
    possible = {change.name: change for change in offered(base, "explain")}
    assert replay.scenario.storage.cache[0].bytes == 50 * SAMPLE
    assert applied(possible["bandwidth = ∞"], replay, base).scenario.storage.cache[0].bytes == 50 * SAMPLE
    assert applied(possible["cache × 2"], replay, base).scenario.storage.cache[0].bytes == 100 * SAMPLE
    assert applied(possible["read = 0"], replay, base).scenario.dataset.format == "synthetic"
    assert base.measured.replayed(base.scenario, modelled=None).scenario.storage.cache is None, "it is in the times"


def test_a_capacity_of_the_model_is_none_of_the_page_cache(tmp_path: Path) -> None:
    keys = kept(40, 40, train={"epochs": 4, "compute": "1 ms", "warmup_steps": 0})
    file = scenario_file(tmp_path, keys)
    found = capacity(file, target_au=0.5, most=1, engine="local", out=tmp_path / "capacity")
    assert [point.page_cache_share for point in found.points] == [None] * len(found.points)
    assert not [note for note in found.notes if "page cache" in note]
    assert [note for note in found.notes if note.startswith("storage.cache: caches do not grow with the dataset")]


def test_what_would_move_a_capacity_is_tried_with_caches_that_hold_the_same_part() -> None:
    base = scenario(**kept(400, 40))
    tried = {change.advice: change for change in offered(Planned(base), "capacity")}
    (name,) = (name for name in tried if name.startswith("storage.cache=[{tier: ram, bytes: "))
    larger = knee.applied(tried[name], base)
    assert (larger.storage.cache[0].bytes, larger.dataset.num_files) == (800_000, 400)
    deeper = knee.applied(tried["loader.prefetch_factor=4"], base)
    assert (deeper.storage.cache[0].bytes, deeper.dataset.num_files) == (800_000, 800)
    uncached = offered(Planned(scenario(**kept(400, None))), "capacity")
    assert not [change for change in uncached if "cache" in change.advice]


def scenario_file(folder: Path, keys: dict[str, Any]) -> Path:
    file = folder / "kept.yaml"
    file.write_text(to_yaml(scenario(**keys)))
    return file


def test_a_sweep_over_caches_has_a_point_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = SLOWLY | {"train": {"epochs": 2, "compute": "10 ms"}, "storage": {"model": SLOW}}
    file = scenario_file(tmp_path, kept(100, None, **few))
    caches = "storage.cache=none,[{tier: ram, bytes: 500 MB}],[{tier: ram, bytes: 4 GB}]"
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(file), caches, "--out", str(tmp_path / "swept")])
    assert ended.value.code == 0
    assert "4 GB" in capsys.readouterr().out
    with (tmp_path / "swept" / "sweep.csv").open() as table:
        none, half, all_ = (float(row["au"]) for row in csv.DictReader(table))
    assert none < half < all_


# --- other engines --------------------------------------------------------------------------------------------------


def test_a_local_run_of_the_model_fetches_what_a_simulation_does(tmp_path: Path) -> None:
    wanted = scenario(**kept(80, 40, train={"epochs": 3, "compute": "1 ms"}))
    here, there = run_locally(wanted, tmp_path, modelled=True), simulated(wanted)
    assert moved(here) == moved(there)
    assert here.ledger == there.ledger


def test_real_storage_says_that_the_cache_is_of_the_model(tmp_path: Path) -> None:
    keys = {"dataset__path": "data", "train__epochs": 1, "storage__cache": ram(1e9)}
    ended = run(scenario(**keys), engine="local", root=tmp_path)
    (note,) = (note for note in ended.result.notes if "storage.cache" in note)
    assert note.startswith("storage.cache: no effect")
    assert ended.result.fetched is None or ended.result.fetched.source != "model"


def test_what_is_learned_of_real_storage_has_no_cache(tmp_path: Path) -> None:
    keys = {"dataset__path": "data", "train__epochs": 3, "storage__cache": ram(1e9)}
    ended = run(scenario(**keys), engine="local", root=tmp_path)
    taught = calibrate(ended.path).scenario
    assert taught.storage.cache is None, "what memory gave is in the times of the run"


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_packed_nodes_on_ray_have_caches_of_their_own_and_fetch_what_a_simulation_does(tmp_path: Path) -> None:
    wanted = scenario(**kept(
        64, 20, cluster={"nodes": 2, "ranks_per_node": 1}, train={"epochs": 3, "compute": "5 ms", "sync": "none"},
        loader={"batch_size": 4, "num_workers": 0},
    ))  # fmt: skip
    predicted, ended = simulated(wanted), run(wanted, root=tmp_path)
    told = ended.result.fetched
    assert told is not None
    assert (told.source, told.read_bytes, told.fetched_bytes) == ("model", *moved(predicted)[:2])
    assert 0.02 < (told.page_cache_share or 0.0) < 0.6
    assert ended.result.ledger is not None
    assert ended.result.ledger.even
    (packed,) = (note for note in ended.result.notes if "are emulated on" in note)
    assert packed.endswith("storage device (storage.model) and cache (storage.cache)")
    explained = explain(ended.path, simulate=False)
    assert explained.fetched == told


class CacheKiller(Reporter):
    """Kills the cache of node 0, once, when the run is under way."""

    def __init__(self) -> None:
        self.killed = 0

    def live(self, text: str, share: float | None = None) -> None:
        """Kill it when a third of the steps are done."""
        import ray

        if not self.killed and (share or 0.0) > 0.3:
            (one,) = (n for n in ray.util.list_named_actors(all_namespaces=True) if n["name"] == "cache-0")
            self.killed = ray.get(ray.get_actor("cache-0", namespace=one["namespace"]).ready.remote())["pid"]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_cache_that_is_killed_begins_empty_and_the_run_goes_on(tmp_path: Path) -> None:
    wanted = scenario(**kept(160, 160, train={"epochs": 10, "compute": "20 ms"}))
    reporter = CacheKiller()
    ended = run(wanted, root=tmp_path, reporter=reporter)
    assert reporter.killed
    assert ended.result.ledger is not None
    assert ended.result.ledger.even
    assert [note for note in ended.result.notes if note.startswith("cache-0 died and was started again")]
    told, once = ended.result.fetched, 160 * (SAMPLE + HEADS)
    assert told is not None
    assert told.fetched_bytes is not None
    assert once < told.fetched_bytes <= 2 * once, "what it had is fetched once more"


def test_who_waited_for_a_reader_that_went_with_its_node_goes_on_and_the_next_one_reads() -> None:
    kernel = VirtualKernel()
    cache = NodeCache(kernel, 1000)

    async def live() -> None:
        assert cache.look((0, 0, 0), [7], [100]) == [MISSING]
        assert cache.look((1, 0, 0), [7], [100]) == [COMING]
        waiting = kernel.spawn(cache.arrived([7]), "who waits")
        cache.clear()
        await waiting
        assert cache.look((2, 0, 0), [7], [100]) == [MISSING], "the node came anew: nobody is reading it"

    kernel.run(live())
