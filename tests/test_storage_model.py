"""The modelled device: what one connection sees, what many share, and that latencies have addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rayio
from rayio.engines.virtual.clock import VirtualKernel
from rayio.schema.distribution import Constant, LogNormal
from rayio.storage.base import OPEN, READ, Opener, Requests, RequestTable, Served
from rayio.storage.model import Device, DeviceSpec, FirstByte, Latencies, LocalArbiter, ModelStorage
from scenarios import Outcome, scenario, simulated

MB = 1_000_000
KNEE = DeviceSpec(connection_bandwidth=20 * MB, bandwidth=100 * MB)
AT_ONCE: FirstByte = Constant(value=0.0).draw
LATE: FirstByte = LogNormal(median=0.001, sigma=0.5).draw
#: A time on the wall clock: nanoseconds since the Unix epoch.
TODAY = 1_750_000_000_000_000_000


def no_files(opener: Opener) -> Never:
    raise AssertionError("a model opens no files")


def of(*nbytes: int, address: tuple[int, int, int] = (0, 0, 0)) -> Requests:
    return Requests(address, 1, np.array(nbytes, np.int64))


def storage(
    kernel: VirtualKernel, device: Device, first_byte: FirstByte = AT_ONCE, *, seed: int = 10, io_depth: int = 1
) -> ModelStorage:
    latencies = Latencies(first_byte, seed)
    return ModelStorage(LocalArbiter(device), device.spec, latencies, kernel, io_depth=io_depth)


def read_for(readers: int, leases: int, requests: Requests, spec: DeviceSpec) -> int:
    """Let readers begin together and read one lease after the other; give the time they take (ns)."""
    kernel, device = VirtualKernel(), Device(spec)

    async def reader() -> None:
        mine = storage(kernel, device)
        for _ in range(leases):
            await mine.read(requests, no_files)

    kernel.run(kernel.gather(*(reader() for _ in range(readers))))
    return kernel.now()


def duration(requests: Requests, spec: DeviceSpec = KNEE, first_byte: FirstByte = AT_ONCE, **options: int) -> int:
    """Give how long one read takes on an idle system (ns)."""
    kernel = VirtualKernel()
    kernel.run(storage(kernel, Device(spec), first_byte, **options).read(requests, no_files))
    return kernel.now()


def test_one_reader_sees_its_connections_rate() -> None:
    assert read_for(1, 7, of(2 * MB), KNEE) == 7 * 100_000_000


@pytest.mark.parametrize("readers", [5, 8, 16, 100])
def test_many_readers_share_exactly_the_aggregate(readers: int) -> None:
    assert read_for(readers, 1, of(2 * MB), KNEE) == max(100_000_000, readers * 20_000_000)


@pytest.mark.parametrize("readers", [1, 2, 4, 8, 16])
def test_a_connection_cap_and_an_aggregate_make_a_knee(readers: int) -> None:
    alone, leases = 100_000_000, 30
    shared = readers * leases * 20_000_000
    took = read_for(readers, leases, of(2 * MB), KNEE)
    if readers <= 5:
        assert took == leases * alone
    else:
        assert shared <= took <= shared + alone, "the shared part never idles while somebody waits"


@pytest.mark.parametrize(("readers", "rate"), [(1, 20), (2, 40), (4, 80), (8, 100), (16, 100)])
def test_whole_runs_show_the_knee(readers: int, rate: int) -> None:
    run = simulated(
        cluster__ranks_per_node=1,
        dataset__num_files=320,
        dataset__sample_bytes="2 MB",
        loader__batch_size=1,
        loader__num_workers=readers,
        train__compute=0,
        train__epochs=1,
        storage__model={"first_byte": 0, "connection_bandwidth": "20 MB/s", "bandwidth": "100 MB/s"},
    )
    assert throughput(run) == pytest.approx(rate * MB, rel=0.02)


def throughput(run: Outcome) -> float:
    """Give the bytes per second that all readers together got from storage."""
    reads = run.rows("read")
    seconds = max(r["start_ns"] + r["duration_ns"] for r in reads) / 1e9
    return float(sum(r["bytes"] for r in reads) / seconds)


def test_requests_per_second_are_shared_as_bytes_are() -> None:
    spec = DeviceSpec(connection_bandwidth=1e12, bandwidth=1e12, requests_per_second=1000)
    assert read_for(4, 5, of(*[1] * 50), spec) == 4 * 5 * 50 * 1_000_000


def opening(num_opens: int, *nbytes: int, address: tuple[int, int, int] = (0, 0, 0)) -> Requests:
    return Requests(address, num_opens, np.array(nbytes, np.int64))


def test_every_open_costs_its_time_however_many_requests_follow_it() -> None:
    spec = DeviceSpec(1e12, 1e12, open=Constant(value=0.003))
    assert duration(opening(2, *[0] * 5), spec) == 6_000_000
    assert duration(opening(5, 0, 0), spec) == 15_000_000
    assert duration(opening(0, 0, 0), spec) == 0
    assert duration(opening(4, *[0] * 8), spec, io_depth=4) == 3_000_000, "opens overlap as requests do"


def test_opens_are_drawn_at_their_address_apart_from_first_bytes() -> None:
    slow = DeviceSpec(1e12, 1e12, open=LogNormal(median=0.001, sigma=0.5))
    one = duration(opening(1, 0), slow)
    assert one == duration(opening(1, 0), slow)
    others = [duration(opening(1, 0, address=address), slow) for address in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({one, *others, duration(opening(1, 0), slow, seed=11)}) == 5
    first_byte = duration(of(0), KNEE, LATE)
    assert duration(opening(1, 0), slow, LATE) == pytest.approx(one + first_byte, abs=1)
    assert first_byte != one, "the distributions are equal, the draws are not the same"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 70), st.integers(0, 9), st.integers(0, 3)), max_size=20),
    st.booleans(),
    st.sampled_from([1, 4]),
)
def test_latencies_depend_on_the_step_alone_whatever_was_drawn_with_it(
    steps: list[tuple[int, int, int, int]], opens: bool, io_depth: int
) -> None:
    spec = DeviceSpec(1e12, 1e12, open=LogNormal(median=0.001, sigma=0.5) if opens else None)

    def took(latencies: Latencies, requests: Requests) -> int:
        kernel = VirtualKernel()
        mine = ModelStorage(LocalArbiter(Device(spec)), spec, latencies, kernel, io_depth=io_depth)
        kernel.run(mine.read(requests, no_files))
        return kernel.now()

    shared = Latencies(LATE, 10)
    for rank, step, number, num_opens in steps:
        requests = opening(num_opens, *[1] * number, address=(rank, 0, step))
        assert took(shared, requests) == took(Latencies(LATE, 10), requests)


def test_opens_per_second_are_capped_in_place_of_requests() -> None:
    spec = DeviceSpec(1e12, 1e12, opens_per_second=1000)
    assert read_for(4, 5, opening(2, *[1] * 50), spec) == 4 * 5 * 2 * 1_000_000
    assert read_for(4, 5, opening(0, *[1] * 50), spec) < 1_000_000


def test_a_file_is_opened_once_to_be_written() -> None:
    spec = DeviceSpec(1e12, 1e12, opens_per_second=100, open=LogNormal(median=0.5, sigma=0.5))

    def took(path: str) -> int:
        kernel = VirtualKernel()
        kernel.run(storage(kernel, Device(spec)).write(path, 1000, 10, fsync=False))
        return kernel.now()

    assert took("a") == took("a") != took("b")
    assert 100_000_000 < took("a") < 3_000_000_000
    free = DeviceSpec(1e12, 1e12, opens_per_second=100)
    assert duration(of(1), free) == 10_000_000


def test_whichever_limit_is_tighter_decides() -> None:
    spec = DeviceSpec(connection_bandwidth=1e12, bandwidth=100 * MB, requests_per_second=1000)
    assert duration(of(1, 1), spec) == 2_000_000
    assert duration(of(MB, MB), spec) == 20_000_000


@st.composite
def loads(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw leases by arrival: (arrival in ns, requests, bytes)."""
    gaps = draw(st.lists(st.integers(0, 30_000_000), min_size=1, max_size=30))
    sizes = [(draw(st.integers(1, 20)), draw(st.integers(1, 2 * MB))) for _ in gaps]
    return [(int(at), *size) for at, size in zip(np.cumsum(gaps), sizes, strict=True)]


@given(loads(), st.sampled_from([None, 500.0]), st.sampled_from([0, TODAY]))
def test_the_shared_part_is_a_queue_without_gaps(
    load: list[tuple[int, int, int]], per_second: float | None, clock: int
) -> None:
    device = Device(DeviceSpec(20 * MB, 100 * MB, per_second))
    work = [max(n / per_second if per_second else 0.0, nbytes / (100 * MB)) * 1e9 for _, n, nbytes in load]
    for last, (arrival, number, nbytes) in enumerate(load):
        served = device.reserve(clock + arrival, number, nbytes, 0) - clock
        # Lindley's recursion, solved: the busy period that makes it latest.
        expected = max(load[first][0] + sum(work[first : last + 1]) for first in range(last + 1))
        assert abs(served - expected) <= 2


@given(loads(), st.integers(0, 10**9))
def test_who_comes_first_is_not_delayed_by_who_comes_later(load: list[tuple[int, int, int]], alone: int) -> None:
    device, fewer = Device(KNEE), Device(KNEE)
    served = [device.reserve(*lease, alone) for lease in load]
    assert [fewer.reserve(*lease, alone) for lease in load[:-1]] == served[:-1]
    assert all(time >= arrival + alone for time, (arrival, _, _) in zip(served, load, strict=True))
    assert served == sorted(served), "equal needs are served in the order of arrival"


@pytest.mark.parametrize("clock", [0, TODAY])
def test_many_small_requests_add_up_on_any_clock(clock: int) -> None:
    device = Device(DeviceSpec(connection_bandwidth=3e9, bandwidth=3e9))
    served = [device.reserve(clock, 1, 100, 0) for _ in range(30_000)]
    assert abs(served[-1] - clock - 1_000_000) <= 2, "each takes 33.3 ns"


def lanes(each: list[float], depth: int) -> float:
    """Give when all requests are served: whenever one ends, the next begins, so that ``depth`` are under way."""
    now, waiting, under_way = 0.0, [*each], list[float]()
    while waiting or under_way:
        while waiting and len(under_way) < depth:
            under_way.append(now + waiting.pop(0))
        now = min(under_way)
        under_way.remove(now)
    return now


@pytest.mark.parametrize("first_byte", [Constant(value=0.001).draw, LATE], ids=["constant", "drawn"])
@pytest.mark.parametrize(
    ("number", "depth", "num_opens"),
    [
        (4, 1, 0),
        (4, 2, 0),
        (4, 64, 0),
        (20, 8, 0),
        (9, 8, 0),
        (3, 2, 0),
        (17, 16, 0),
        (5000, 64, 0),
        (9, 4, 3),
        (12, 5, 4),
    ],
)
def test_each_request_is_taken_by_the_first_of_io_depth_connections_that_is_free(
    number: int, depth: int, num_opens: int, first_byte: FirstByte
) -> None:
    spec = DeviceSpec(100 * MB, 1e12, open=LogNormal(median=0.002, sigma=0.5))
    latencies, device = Latencies(first_byte, 10, depth=depth), Device(spec)
    file = np.arange(number) * num_opens // number
    wanted = opening(num_opens, *[MB] * number)._replace(places=lambda: ([*"abcd"], file, None))
    requests, opens = latencies.apart((0, 0, 0), number, spec.open, num_opens)
    each = requests + 0.01
    each[np.arange(num_opens) * number // max(num_opens, 1)] += opens
    expected = lanes(each.tolist(), depth)
    for is_itemised in (False, True):
        kernel = VirtualKernel()
        storage = ModelStorage(LocalArbiter(device), spec, latencies, kernel, io_depth=depth, is_itemised=is_itemised)
        served = kernel.run(storage.read(wanted, no_files))
        assert kernel.now() / 1e9 == pytest.approx(expected, abs=1e-9)
    assert served.issued is not None
    rows = served.issued.rows
    took = (rows["end"] - rows["start"]) / 1e9
    assert took[rows["kind"] == READ] == pytest.approx(requests + 0.01, abs=3e-9), "a row is as long as its request"
    assert took[rows["kind"] == OPEN] == pytest.approx(opens, abs=3e-9)
    table = RequestTable.of([wanted])
    assert storage.ahead((0, 0, 0), table, ["0"]).alone == pytest.approx([expected * 1e9], abs=1)


def test_overlapping_never_makes_the_longest_request_shorter() -> None:
    spec = DeviceSpec(connection_bandwidth=MB, bandwidth=1e12)
    assert duration(of(MB, 1, 1, 1), spec, io_depth=4) == 1_000_000_000


def test_writes_of_a_file_follow_each_other_whatever_io_depth_as_on_files(tmp_path: Path) -> None:
    """``loader.io_depth`` is about reads: real files are written by one request after another."""
    saved = {"every": {"steps": 4}, "path": "saved", "model": {"bytes": "8 MB"}, "request_bytes": "1 MB"}
    keys: dict[str, Any] = {
        "dataset": {"path": "data", "format": "raw", "num_files": 32, "sample_bytes": "4 kB"},
        "loader": {"batch_size": 4, "num_workers": 1, "io_depth": 4},
        "train": {"epochs": 1, "compute": "1 ms"}, "storage": {"model": "nvme"}, "checkpoint": saved,
        "trace": {"level": "io"},
    }  # fmt: skip
    wanted = scenario(**keys)
    rayio.generate(wanted, root=tmp_path)
    runs = [rayio.simulate(wanted, out=tmp_path / "model"), rayio.run(wanted, engine="local", root=tmp_path)]
    for run in runs:
        spans: Any = run.spans()
        writes = spans[spans.name == "io.write"].sort_values("start_ns")
        assert len(writes) >= 8
        ends = (writes.start_ns + writes.duration_ns).to_numpy()
        assert (writes.start_ns.to_numpy()[1:] >= ends[:-1]).all()


@given(st.integers(0, 100), st.integers(0, 5), st.integers(0, 2**30 - 1))
def test_latencies_are_drawn_at_the_address_whoever_asks_and_whenever(rank: int, epoch: int, step: int) -> None:
    here = of(1000, 1000, address=(rank, epoch, step))
    alone = duration(here, first_byte=LATE)
    kernel, device = VirtualKernel(), Device(KNEE)

    async def after_others() -> int:
        mine = storage(kernel, device, LATE)
        await mine.read(of(500, address=(rank, epoch, step + 1)), no_files)
        start = kernel.now()
        await storage(kernel, device, LATE).read(here, no_files)
        return kernel.now() - start

    assert kernel.run(after_others()) == alone


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["rank", "epoch", "step"])
def test_latencies_differ_at_another(other: tuple[int, int, int]) -> None:
    assert duration(of(1000, address=other), first_byte=LATE) != duration(of(1000), first_byte=LATE)


def test_latencies_differ_with_another_seed() -> None:
    assert duration(of(1000), first_byte=LATE, seed=1) != duration(of(1000), first_byte=LATE, seed=2)


def test_each_request_of_a_batch_draws_for_itself() -> None:
    depth = 2  # the slower of two decides, so twice one of them would show
    two, one = duration(of(1, 1), first_byte=LATE), duration(of(1), first_byte=LATE)
    assert two != 2 * one
    assert duration(of(1, 1), first_byte=LATE, io_depth=depth) >= one


def served(requests: Requests) -> Served[None]:
    kernel = VirtualKernel()
    return kernel.run(storage(kernel, Device(KNEE)).read(requests, no_files))


def test_a_read_counts_its_opens_requests_and_bytes_and_has_none_of_them() -> None:
    assert served(Requests((0, 0, 0), 3, np.array([10, 20, 30, 40]))) == Served(None, 3, 4, 100)


def test_a_batch_of_no_requests_takes_no_time() -> None:
    assert duration(of()) == 0


def written(num_bytes: int, request_bytes: int, path: str = "a", **options: Any) -> tuple[int, Served[None]]:
    kernel = VirtualKernel()
    mine = storage(kernel, Device(KNEE), options.pop("first_byte", AT_ONCE))
    done = kernel.run(mine.write(path, num_bytes, request_bytes, fsync=options.pop("fsync", True)))
    return kernel.now(), done


def test_a_write_is_cut_into_requests_and_the_last_one_is_the_rest() -> None:
    took, done = written(10 * MB, 3 * MB)
    assert (done.requests, done.nbytes, done.opens) == (4, 10 * MB, 1)
    assert took == 500_000_000
    late: FirstByte = Constant(value=0.001).draw
    assert written(10 * MB, 3 * MB, first_byte=late)[0] == 504_000_000


def test_fsync_is_counted_when_it_was_asked_for() -> None:
    assert [written(1, 1, fsync=fsync)[1].syncs > 0 for fsync in (True, False)] == [True, False]


def test_latencies_of_a_write_have_the_address_of_its_path() -> None:
    first, again, other = (written(10, 10, path, first_byte=LATE)[0] for path in ("a", "a", "b"))
    assert first == again != other


@pytest.mark.parametrize(("scope", "rate"), [("node", 200), ("cluster", 100)])
def test_scope_says_whether_nodes_share_one_device(scope: str, rate: int) -> None:
    run = simulated(
        cluster={"nodes": 2, "ranks_per_node": 1},
        dataset__num_files=240,
        dataset__sample_bytes="2 MB",
        loader__batch_size=1,
        loader__num_workers=8,
        train__compute=0,
        train__epochs=1,
        storage__model={
            "first_byte": 0, "connection_bandwidth": "20 MB/s", "bandwidth": "100 MB/s", "scope": scope,
        },
    )  # fmt: skip
    assert run.plan.num_devices == (2 if scope == "node" else 1)
    assert throughput(run) == pytest.approx(rate * MB, rel=0.05)


def test_checkpoints_and_reads_share_the_device() -> None:
    """A writer's bytes slow down readers, and with a device per node only those beside it."""

    def reading(scope: str, saved: bool) -> list[int]:
        every = {"every": {"steps": 1}, "path": "ck", "model": {"bytes": "100 MB"}}
        run = simulated(
            cluster={"nodes": 2, "ranks_per_node": 1},
            dataset__sample_bytes="2 MB",
            train__epochs=1,
            train__sync="none",
            loader__prefetch_factor=4,
            checkpoint=every if saved else None,
            storage__model={"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s", "scope": scope},
        )
        return [sum(r["duration_ns"] for r in run.rows("read", node=node)) for node in (0, 1)]

    alone, node, cluster = reading("node", saved=False), reading("node", saved=True), reading("cluster", saved=True)
    assert node[0] > alone[0]
    assert node[1] == alone[1]
    assert cluster[1] > alone[1]
