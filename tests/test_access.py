"""How storage was used: by hand with exact numbers, against plain loops, and at a level that has no requests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from handmade import Trace, access_of
from hypothesis import given
from hypothesis import strategies as st

from rayio.analyze.access import SIZES
from scenarios import simulated


class Requests:
    """A rank's life of 1000 ns, of which it computes 400-700, and requests of a reader (index 0) for it."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.trace.rank(
            0, [("startup", 100), ("data_wait", 300), ("compute", 300), ("data_wait", 200), ("compute", 100)]
        )
        self.files: list[str] = []
        self.offsets: list[int] = []

    def add(
        self, operation: str, start: int, end: int, *, file: str = "", offset: int = -1, nbytes: int = 0,
        index: str = "0-0", role: str = "reader", rank: int = 0,
    ) -> None:  # fmt: skip
        writer = self.trace.recorder.register(role, index, 0)
        self.trace.recorder.add(writer, f"io.{operation}", start, end, 2, rank, 0, 0, 0, nbytes)
        self.files.append(file)
        self.offsets.append(offset)

    @property
    def spans(self) -> pa.Table:
        spans = self.trace.spans
        others = len(spans) - len(self.files)
        files = pa.array([""] * others + self.files).dictionary_encode()
        offsets = pa.array([-1] * others + self.offsets, pa.int64())
        for name, column in (("file", files), ("offset", offsets)):
            place = spans.schema.get_field_index(name)
            spans = spans.append_column(name, column) if place < 0 else spans.set_column(place, name, column)
        return spans

    @property
    def access(self) -> dict[str, Any]:
        spans = self.spans
        return access_of(spans)


def test_an_evaluation_reads_files_of_its_own_uses_its_bytes_and_computes() -> None:
    train = {"epochs": 1, "compute": "10 ms", "evaluate": {"compute": "10 ms"}}
    dataset = {"path": "data", "num_files": 16, "sample_bytes": "50 kB", "eval": {"num_files": 8}}
    storage = {"first_byte": "5 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"}
    run = simulated(
        dataset=dataset, train=train, trace__level="io", storage__model=storage, loader__num_workers=1,
        loader__prefetch_factor=4,
    )  # fmt: skip
    found = access_of(run.spans)
    assert found["read_amplification"] == pytest.approx(1 + 2 * 4096 / 50_000, abs=0.001)
    assert (found["num_files"], found["opens_per_file"], found["once_share"]) == (24, 1, 1)
    assert sorted(row["file"] for row in found["files"])[:2] == [
        "000000/000000000.npz", "000000/000000000.npz (evaluation)",
    ]  # fmt: skip
    rows = run.spans.to_pylist()
    busy = sum(row["duration_ns"] for row in rows if row["name"] in ("compute", "eval_compute"))
    wall = sum(row["duration_ns"] for row in rows if row["name"] == "life")
    assert found["exposed_share"] <= 1 - busy / wall


def test_requests_and_bytes_are_counted_by_operation_file_and_rank() -> None:
    requests = Requests()
    for file in ("a", "b"):
        requests.add("open", 100, 110, file=file)
        requests.add("read", 110, 150, file=file, offset=0, nbytes=4000)
    requests.add("read", 150, 190, file="b", offset=4000, nbytes=1000)
    requests.add("write", 300, 310, file="c", offset=0, nbytes=70, role="checkpoint_writer", index="0")
    requests.add("fsync", 310, 330, file="c", role="checkpoint_writer", index="0")
    found = requests.access
    assert found["level"] == "io"
    totals = {name: (row["requests"], row["bytes"], row["seconds"]) for name, row in found["operations"].items()}
    assert totals == {"open": (2, 0, 2e-8), "read": (3, 9000, 1.2e-7), "write": (1, 70, 1e-8), "fsync": (1, 0, 2e-8)}
    assert found["files"] == [
        {"file": "b", "open": {"requests": 1, "bytes": 0}, "read": {"requests": 2, "bytes": 5000}},
        {"file": "a", "open": {"requests": 1, "bytes": 0}, "read": {"requests": 1, "bytes": 4000}},
        {"file": "c", "write": {"requests": 1, "bytes": 70}, "fsync": {"requests": 1, "bytes": 0}},
    ]
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["read"], rank["write"]) == (
        0, {"requests": 3, "bytes": 9000}, {"requests": 1, "bytes": 70},
    )  # fmt: skip
    assert found["notes"] == []


@pytest.mark.parametrize(
    ("size", "bin_"),
    [
        (0, "0-100"),
        (100, "0-100"),
        (101, "100-1K"),
        (1000, "100-1K"),
        (1001, "1K-10K"),
        (10**9, "100M-1G"),
        (10**9 + 1, "1G+"),
    ],
)
def test_a_request_is_in_the_bin_whose_upper_end_it_does_not_exceed(size: int, bin_: str) -> None:
    requests = Requests()
    requests.add("read", 100, 200, file="a", offset=0, nbytes=size)
    assert requests.access["sizes"] == {"read": {name: int(name == bin_) for name in SIZES}}


def test_sequential_is_at_or_after_the_end_before_and_consecutive_is_at_it() -> None:
    requests = Requests()
    for number, (offset, nbytes) in enumerate([(0, 10), (10, 10), (50, 10), (5, 10), (15, 1)]):
        requests.add("read", 100 + number, 101 + number, file="a", offset=offset, nbytes=nbytes)
    # Another role, another file and a write start anew; an unknown offset is not compared.
    requests.add("read", 102, 103, file="a", offset=0, nbytes=10, index="0-1")
    requests.add("read", 102, 103, file="b", offset=10, nbytes=10)
    requests.add("write", 103, 104, file="a", offset=20, nbytes=10)
    requests.add("read", 103, 104, file="b", nbytes=10)
    found = requests.access
    assert (found["sequential_share"], found["consecutive_share"]) == (3 / 4, 2 / 4)


def test_opens_per_file_and_files_touched_once() -> None:
    requests = Requests()
    for number, file in enumerate(["a", "b", "b", "b", "c"]):
        requests.add("open", 100 + number, 101 + number, file=file)
    requests.add("read", 120, 130, file="d", offset=0, nbytes=1)
    found = requests.access
    assert (found["num_files"], found["opens_per_file"], found["most_opens_of_a_file"]) == (4, 5 / 3, 3)
    assert found["once_share"] == 2 / 3


def test_bandwidth_is_of_all_bytes_together_and_percentiles_are_of_single_requests() -> None:
    requests = Requests()
    for number, length in enumerate([10, 20, 40]):
        requests.add("read", 100, 100 + length, file="a", offset=100 * number, nbytes=80)
    found = requests.access["operations"]["read"]["bytes_per_second"]
    assert found == {"mean": 240 / 70e-9, "p50": pytest.approx(4e9), "p99": pytest.approx(8e9)}


def test_time_in_io_is_a_union_and_its_exposed_part_is_not_hidden_by_compute() -> None:
    requests = Requests()
    # The rank lives 0-1000 and computes 400-700 and 900-1000. In flight: 300-500, 650-750, 950-1000 (it ends later).
    for start, end in ((300, 450), (350, 500), (650, 750), (950, 1200)):
        requests.add("read", start, end, file="a", offset=0, nbytes=1)
    found = requests.access
    assert (found["time_share"], found["exposed_share"]) == (350 / 1000, 150 / 1000)
    assert found["ranks"][0]["io_seconds"] == pytest.approx(350e-9)
    assert found["ranks"][0]["exposed_seconds"] == pytest.approx(150e-9)


interval = st.tuples(st.integers(0, 1100), st.integers(0, 300))


@given(st.lists(interval, max_size=12), st.integers(1, 1000))
def test_the_union_is_that_of_a_plain_walk(intervals: list[tuple[int, int]], end: int) -> None:
    requests = Requests()
    requests.trace.rank(1, [("startup", end)])  # without requests; it may end before the other
    for start, length in intervals:
        requests.add("read", start, start + length, file="a", offset=0, nbytes=1)
    requests.add("open", 0, 0, file="a")
    busy = {t for start, length in intervals for t in range(start, min(start + length, 1000))}
    hidden = {t for t in busy if 400 <= t < 700 or t >= 900}
    found = requests.access
    assert found["time_share"] == len(busy) / 2000
    assert found["exposed_share"] == (len(busy) - len(hidden)) / 2000


def test_read_amplification_is_bytes_read_over_bytes_that_reached_a_rank() -> None:
    trace = Requests()
    trace.trace.add("rank", "data_wait", 2000, 2001, rank=0, epoch=0, step=2, nbytes=500)
    spans = trace.trace.spans
    trace.add("read", 100, 200, file="a", offset=0, nbytes=1500)
    whole = pa.concat_tables([spans, trace.spans])
    assert access_of(whole)["read_amplification"] == 3


def test_level_batch_gives_what_whole_batches_say_and_names_the_level_for_the_rest() -> None:
    run = simulated()
    found = access_of(run.spans)
    assert found["level"] == "batch"
    rows = run.rows("read")
    read = found["operations"]["read"]
    assert (read["requests"], read["bytes"]) == (sum(r["requests"] for r in rows), sum(r["bytes"] for r in rows))
    assert found["read_amplification"] == pytest.approx(read["bytes"] / sum(r["bytes"] for r in run.rows("data_wait")))
    assert (found["sizes"], found["files"], found["sequential_share"]) == ({}, [], None)
    assert found["notes"] == ["opens, files, offsets and the sizes of single requests need trace.level=io"]
    assert 0 < found["time_share"] < 1


def test_requests_without_files_and_offsets_say_so() -> None:
    requests = Requests()
    requests.add("read", 100, 200, nbytes=10)
    spans = requests.spans.drop_columns(["file", "offset"])
    found = access_of(spans)
    assert found["notes"] == ["spans have no file and no offset: nothing is known of files"]
    assert found["sizes"]["read"]["0-100"] == 1


def test_a_run_without_spans_used_nothing() -> None:
    spans = Trace().spans
    found = access_of(spans)
    assert (found["operations"], found["time_share"], found["ranks"]) == ({}, None, [])
