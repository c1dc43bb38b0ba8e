"""What published profiles say of requests comes out of the same workloads: sizes, order, opens, amplification."""

from __future__ import annotations

from typing import Any

import numpy as np
from walks import bytes_read, opens

from rayio.data.formats import FORMATS, layout_of
from rayio.scenario.model import Scenario
from scenarios import scenario, simulated


def profiled(**sections: Any) -> Scenario:
    """Give a scenario of 8 nodes with a rank and a worker each, with every request in the trace."""
    base: dict[str, dict[str, Any]] = {
        "dataset": {"path": "model://profiled"}, "cluster": {"nodes": 8, "ranks_per_node": 1},
        "loader": {"num_workers": 1}, "train": {"epochs": 1, "compute": "10 ms"},
        "storage": {"model": "lustre-theta"}, "trace": {"level": "io"},
    }  # fmt: skip
    return scenario(**{name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


def reads(wanted: Scenario) -> list[dict[str, Any]]:
    """Give the read requests of a run, in order."""
    rows = [row for row in simulated(wanted).all_rows if row["name"] == "io.read"]
    return sorted(rows, key=lambda row: row["start_ns"])


def consecutive(rows: list[dict[str, Any]]) -> float:
    """Give the share of requests that begin where the worker's last one to the file ended, of those that could."""
    last: dict[tuple[str, str], int] = {}
    follows = []
    for row in rows:
        place = row["index"], row["file"]
        if place in last:
            follows.append(last[place] == row["offset"])
        last[place] = row["offset"] + row["bytes"]
    return float(np.mean(follows))


def file_bytes(wanted: Scenario) -> int:
    """Give the bytes of all files."""
    layout = layout_of(wanted)
    return int(FORMATS[wanted.dataset.format].file_bytes(layout, np.arange(layout.num_files)).sum())


#: 1000 images of 84.6 KB a file, streamed by TensorFlow (published: 473 files).
IMAGENET = {
    "dataset": {
        "path": "model://imagenet", "format": "tfrecord", "num_files": 16, "samples_per_file": 1000,
        "sample_bytes": "84.6 KB",
    },
    "loader": {"file_access": "streamed", "assignment": "by_file", "shuffle": "file", "batch_size": 500,
               "num_workers": 1},
}  # fmt: skip


def test_imagenet_has_requests_of_256_kb_and_nothing_twice() -> None:
    """As published: 98 % of requests of 256 KB, consecutive, files split over ranks without overlap."""
    wanted = profiled(**IMAGENET)
    rows = reads(wanted)
    assert np.mean([row["bytes"] == 256 << 10 for row in rows]) > 0.98
    assert consecutive(rows) == 1.0
    assert sum(row["bytes"] for row in rows) == file_bytes(wanted)
    per_file = {row["file"]: row["index"] for row in rows}
    assert all(per_file[row["file"]] == row["index"] for row in rows)


def test_records_looked_up_by_index_read_the_same_bytes_in_no_order() -> None:
    """TFRecord's stream against lookups: the finding is in the order and the opens, not in the bytes."""
    streamed = profiled(**IMAGENET)
    loader = IMAGENET["loader"] | {"file_access": "per_sample", "assignment": "static", "shuffle": "global"}
    looked_up = profiled(dataset=IMAGENET["dataset"], loader=loader)
    assert consecutive(reads(looked_up)) < 0.05
    assert opens(simulated(streamed).all_rows) == 16
    assert opens(simulated(looked_up).all_rows) > 16 * 8


def test_few_files_of_many_records_are_opened_less() -> None:
    """The advice to have 8 files in place of 473: 59 times fewer opens, the same bytes to a thousandth."""
    few, many = (
        profiled(
            dataset=IMAGENET["dataset"] | {"num_files": files, "samples_per_file": 3784 // files},
            loader=IMAGENET["loader"] | {"batch_size": 1, "num_workers": 1, "shuffle": "file"},
        )
        for files in (8, 473)
    )
    few_rows, many_rows = simulated(few).all_rows, simulated(many).all_rows
    assert (opens(few_rows), opens(many_rows)) == (8, 472), "59 files for each of 8 ranks, and one is left over"
    assert abs(bytes_read(few_rows) / bytes_read(many_rows) - 473 / 472) < 1e-3


def shared(**loader: Any) -> Scenario:
    """Give a shared HDF5 file of which every rank reads the same offsets in order, as cosmic_tagger does."""
    return profiled(
        dataset={
            "path": "model://cosmic", "format": "hdf5", "num_files": 1, "samples_per_file": 256,
            "sample_bytes": "48 KiB", "chunk": "6 KiB",
        },
        loader={"num_workers": 1, "batch_size": 32, "shuffle": "none", "partition": "replicated", **loader},
    )  # fmt: skip


def test_cosmic_tagger_has_requests_of_its_chunks_and_every_rank_reads_the_same() -> None:
    """As published: requests of the chunk (2 and 6 KB), sequential and consecutive, the same offsets on every rank."""
    rows = reads(shared(keep_open=1))
    assert np.mean([row["bytes"] == 6 << 10 for row in rows]) > 0.99
    assert consecutive([row for row in rows if row["offset"]]) == 1.0
    of_rank = {rank: [(row["offset"], row["bytes"]) for row in rows if row["rank"] == rank] for rank in range(8)}
    assert all(of_rank[rank] == of_rank[0] for rank in range(8))


def test_one_aggregator_reads_an_eighth_of_what_all_read() -> None:
    alone, one = simulated(shared()).all_rows, simulated(shared(file_access="collective", aggregators=1)).all_rows
    assert bytes_read(alone) == 8 * bytes_read(one)


def test_a_chunk_of_several_samples_costs_more_where_samples_are_shuffled_and_less_in_order() -> None:
    """Chunk as the sample beats smaller (more requests) and larger (more bytes, if samples are shuffled)."""

    def made(chunk: str, shuffle: str) -> tuple[int, int]:
        wanted = shared(shuffle=shuffle, keep_open=1)
        dataset = wanted.dataset.model_copy(
            update={"options": type(wanted.dataset.options)(chunk=chunk)}  # type: ignore[call-arg]
        )
        rows = reads(wanted.model_copy(update={"dataset": dataset}))
        return len(rows), sum(row["bytes"] for row in rows)

    smaller, equal, larger = (made(chunk, "global") for chunk in ("6 KiB", "48 KiB", "480 KiB"))
    assert smaller[0] > 7 * equal[0]
    assert larger[1] > 7 * equal[1]
    in_order = made("480 KiB", "none")
    assert in_order[0] < equal[0] / 7
    assert in_order[1] < 1.1 * equal[1]
