"""What a shuffle costs storage: each leaves another pattern of opens, reads and jumps."""

from __future__ import annotations

from typing import Any, NamedTuple

from handmade import access_of

from scenarios import simulated

#: 24 files of 32 samples, read two batches a file by one reader.
OF_ONE_RANK: dict[str, Any] = {
    "cluster__ranks_per_node": 1,
    "dataset__format": "tfrecord",
    "dataset__num_files": 24,
    "dataset__samples_per_file": 32,
    "loader__batch_size": 16,
    "loader__num_workers": 1,
    "train__epochs": 1,
    "trace__level": "io",
}


class Pattern(NamedTuple):
    """How the files of a run were read."""

    opens: int
    reads: int
    consecutive: float
    files: list[str]


def pattern(shuffle: str, **settings: Any) -> Pattern:
    run = simulated(**OF_ONE_RANK | {"loader__shuffle": shuffle} | settings)
    found = access_of(run.spans)
    operations = found["operations"]
    return Pattern(
        operations["open"]["requests"],
        operations["read"]["requests"],
        found["consecutive_share"],
        [row["file"] for row in run.rows("io.open")],
    )


def test_every_shuffle_leaves_its_own_pattern() -> None:
    none, file = pattern("none"), pattern("file")
    block, buffer = pattern("block", loader__shuffle_block=8), pattern("buffer", loader__shuffle_buffer=64)
    everywhere = pattern("global")
    # A file is read in two batches, each one run; permuting files changes nothing but their order.
    assert (none.opens, none.reads, none.consecutive) == (file.opens, file.reads, file.consecutive) == (48, 48, 1.0)
    assert none.files == sorted(none.files)
    assert sorted(file.files) == none.files != file.files
    # A batch of 16 is two blocks of 8, in runs of 8, nearly always of two files.
    assert block.reads == 96
    assert 48 < block.opens <= 96
    assert 0.2 < block.consecutive < 0.5
    # A buffer of 64 samples holds two files: few opens, but reads of single samples.
    assert block.opens <= buffer.opens <= 100
    assert buffer.reads > 600
    assert buffer.consecutive < 0.1
    # All over the dataset: about 12 of 24 files in every batch of 16, sample by sample.
    assert everywhere.opens > 400
    assert everywhere.reads > 600
    assert everywhere.consecutive < 0.1


def test_a_larger_block_costs_fewer_reads_and_a_smaller_buffer_fewer_opens() -> None:
    blocks = [pattern("block", loader__shuffle_block=size).reads for size in (2, 8, 16)]
    assert blocks == sorted(blocks, reverse=True)
    assert len(set(blocks)) == 3
    buffers = [pattern("buffer", loader__shuffle_buffer=size).opens for size in (32, 128, 512)]
    assert buffers == sorted(buffers)
    assert len(set(buffers)) == 3
