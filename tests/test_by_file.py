"""Workers that own files (``loader.assignment: by_file``): whose batch a step is, uneven ends, interleaved files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from hypothesis import assume, given
from hypothesis import strategies as st
from walks import DATASET, bytes_read, opens, requests, walking

import rayio
from rayio.data.formats import layout_of
from rayio.data.planned import planned
from rayio.data.sampler import Sampler
from rayio.errors import ScenarioError
from rayio.place import Start
from rayio.scenario import checks, derive
from rayio.scenario.model import Scenario
from rayio.scenario.turns import Turns
from scenarios import run_locally, scenario, simulated


def owning(**overrides: Any) -> Scenario:
    """Give a scenario whose workers own TFRecord files and stream them."""
    base = {"dataset": DATASET | {"format": "tfrecord"}, "loader__assignment": "by_file",
            "loader__buffer_bytes": "3000 B"}  # fmt: skip
    return walking("streamed", **{**base, **overrides})


def dealt(files: int, workers: int, per_file: int, batch: int, drop_last: bool) -> list[tuple[int, int, int]]:
    """Deal a rank's batches to its workers as PyTorch does: in turn, and a worker without batches is skipped."""
    left = {}
    for worker in range(workers):
        samples = len(range(worker, files, workers)) * per_file
        sizes = [min(batch, samples - begin) for begin in range(0, samples, batch)]
        left[worker] = [(worker, n, size) for n, size in enumerate(sizes) if size == batch or not drop_last]
    order = []
    while any(left.values()):
        order += [left[worker].pop(0) for worker in range(workers) if left[worker]]
    return order


@given(st.integers(0, 20), st.integers(1, 6), st.integers(1, 7), st.integers(1, 9), st.booleans())
def test_steps_are_the_batches_of_workers_in_turn_and_empty_ones_are_skipped(
    files: int, workers: int, per_file: int, batch: int, drop_last: bool
) -> None:
    turns = Turns.of(files, workers, per_file, batch, drop_last=drop_last)
    wanted = dealt(files, workers, per_file, batch, drop_last)
    assert [(turns.worker(n), turns.batch(n), turns.size(n)) for n in range(turns.steps)] == wanted
    assert turns.short == [n for n, (_, _, size) in enumerate(wanted) if size < batch]
    sizes = [size for _, _, size in wanted]
    assert [turns.samples(n) for n in range(len(wanted) + 1)] == [sum(sizes[:n]) for n in range(len(wanted) + 1)]
    assert turns.idle == max(0, workers - files)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("files", "workers", "per_file", "batch"), [(5, 3, 4, 2), (2, 3, 5, 2), (7, 2, 3, 4)])
def test_pytorch_takes_batches_of_sharded_workers_in_the_same_order(
    files: int, workers: int, per_file: int, batch: int, drop_last: bool
) -> None:
    """An iterable dataset whose workers read every n-th file, as webdataset's do."""
    data = pytest.importorskip("torch.utils.data")

    class Sharded(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            worker = data.get_worker_info()
            for file in range(worker.id, files, worker.num_workers):
                yield from range(file * per_file, (file + 1) * per_file)

    loader = data.DataLoader(
        Sharded(), batch_size=batch, num_workers=workers, drop_last=drop_last, multiprocessing_context="fork"
    )
    wanted = owning(
        loader__drop_last=drop_last,
        loader__num_workers=workers, loader__batch_size=batch, loader__shuffle="none", cluster__ranks_per_node=1,
        dataset=DATASET | {"format": "tfrecord", "num_files": files, "samples_per_file": per_file},
    )  # fmt: skip
    sampler = Sampler.from_scenario(wanted)
    ours = [sampler.batch(0, 0, step).samples.tolist() for step in range(sampler.steps(0, 0))]
    assert ours == [each.tolist() for each in loader]


@given(st.data())
def test_every_sample_is_visited_at_most_once_and_a_worker_reads_its_own_files_alone(data: st.DataObject) -> None:
    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    files, per_file = draw(1, 12), draw(1, 6)
    loader = {
        "batch_size": draw(1, 4), "num_workers": draw(0, 4), "assignment": "by_file", "file_access": "streamed",
        "shuffle": data.draw(st.sampled_from(["none", "file"])), "num_parallel_reads": draw(1, 3),
        "partition": data.draw(st.sampled_from(["contiguous", "strided"])), "drop_last": data.draw(st.booleans()),
    }  # fmt: skip
    dataset = {
        "path": "model://x", "num_files": files, "samples_per_file": per_file, "sample_bytes": 100,
        "format": "tfrecord",
    }  # fmt: skip
    try:
        wanted = scenario(loader=loader, dataset=dataset, cluster={"ranks_per_node": draw(1, 3)})
    except ScenarioError:  # no worker has a whole batch
        assume(False)
    sampler = Sampler.from_scenario(wanted)
    assert sampler.streams is not None
    seen: Counter[int] = Counter()
    owners: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for rank in range(sampler.world_size):
        turns = sampler.streams.turns(rank)
        for step in range(sampler.steps(0, rank)):
            batch = sampler.batch(0, rank, step)
            seen.update(batch.samples.tolist())
            for file in batch.files.tolist():
                owners[file].add((rank, turns.worker(step)))
        assert sampler.samples(0, rank) == sum(
            len(sampler.batch(0, rank, step).samples) for step in range(sampler.steps(0, rank))
        )
        cut = draw(0, sampler.steps(0, rank))
        digests = [sampler.digest(0, rank, step) for step in range(cut, sampler.steps(0, rank))]
        assert planned(sampler, 0, rank, cut).digest == sum(digests) & ((1 << 64) - 1)
    assert set(seen.values()) == {1}
    assert all(len(owner) == 1 for owner in owners.values())
    assert derive.num_samples(wanted) - seen.total() == derive.dropped_samples(wanted) == sampler.dropped
    assert derive.samples_read(wanted) == seen.total()
    steps = [sampler.steps(0, rank) for rank in range(sampler.world_size)]
    assert (min(steps), max(steps)) == derive.rank_steps(wanted)
    assert sum(steps) * derive.epochs(wanted) == derive.total_rank_steps(wanted)


@pytest.mark.parametrize("files", [12, 13, 4])
@pytest.mark.parametrize("steps", [None, 5])
def test_short_last_batches_of_workers_are_read_and_every_sample_is_delivered(
    files: int, steps: int | None, tmp_path: Path
) -> None:
    """Ranks have other numbers of files, and so of steps."""
    dataset = DATASET | {"format": "tfrecord", "num_files": files, "samples_per_file": 5}
    wanted = owning(dataset=dataset, loader__drop_last=False, loader__batch_size=4, train__steps=steps)
    real, model = run_locally(on_disk(wanted, tmp_path), tmp_path), simulated(wanted)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(model.all_rows)
    assert real.tallies == model.tallies
    tail = simulated(wanted, Start(1, 3, attempt=1))
    assert tail.ledger.even
    for rank in (0, 1):
        assert model.delivered(rank)[-len(tail.delivered(rank)) :] == tail.delivered(rank)
    if steps is None:
        assert sum(tally.samples for tally in real.tallies) == 2 * files * 5
        assert derive.dropped_samples(wanted) == 0


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("shuffle", ["none", "file"])
def test_a_real_run_and_its_simulation_make_the_same_list_of_requests(
    shuffle: str, num_workers: int, parallel: int, tmp_path: Path
) -> None:
    wanted = owning(loader__num_workers=num_workers, loader__shuffle=shuffle, loader__num_parallel_reads=parallel)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_several_workers_stream_every_byte_once_which_those_that_take_turns_do_not() -> None:
    layout = layout_of(owning())
    size = int(rayio.data.formats.FORMATS["tfrecord"].file_bytes(layout, np.arange(12)).sum())
    rows = simulated(owning(train__epochs=1)).all_rows
    assert (bytes_read(rows), opens(rows)) == (size, 12)
    turns = simulated(owning(train__epochs=1, loader__assignment="static")).all_rows
    assert opens(turns) == 24


def test_interleaved_files_come_a_sample_of_each_in_turn() -> None:
    wanted = owning(
        loader__num_parallel_reads=3, loader__num_workers=1, loader__shuffle="none", loader__batch_size=4,
        cluster__ranks_per_node=1, dataset=DATASET | {"format": "tfrecord", "num_files": 4, "samples_per_file": 2},
    )  # fmt: skip
    sampler = Sampler.from_scenario(wanted)
    assert np.concatenate([sampler.batch(0, 0, step).samples for step in range(2)]).tolist() == [0, 2, 4, 1, 3, 5, 6, 7]


def test_who_ends_when_is_said() -> None:
    uneven = owning(dataset=DATASET | {"format": "tfrecord", "num_files": 7}, loader__num_workers=2)
    assert derive.dropped_samples(uneven) == 4
    assert any(
        "4 samples of an epoch are left out, because ranks have 3 or 4 files, their workers 1 or 2, and" in note
        for note in checks.idle(uneven)
    )
    even = owning(dataset=DATASET | {"format": "tfrecord", "num_files": 12, "samples_per_file": 7})
    assert any("because ranks have 6 files, their workers 3, and" in note for note in checks.idle(even))
    empty = owning(dataset=DATASET | {"format": "tfrecord", "num_files": 4}, loader__num_workers=3)
    assert any(
        "1 of the 3 workers of a rank have no file, for it has 2; use more files, or loader.num_workers=2" in note
        for note in checks.idle(empty)
    )
    assert not any("by_file" in note for note in checks.idle(owning()))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"loader__shuffle": "global", "loader__file_access": "per_sample", "loader__buffer_bytes": None},
         "loader.assignment=by_file: loader.shuffle=global mixes samples of all files; use loader.shuffle=none, file"),
        ({"loader__drop_last": False, "cluster__ranks_per_node": 13}, "loader.assignment=by_file: 12 files are fewer "
         "than 13 ranks, and a rank without a file has no step; use at most 12 ranks"),
        ({"loader__num_workers": {"min": 1, "max": 2}}, "not yet: loader.assignment=by_file with workers that come"),
        ({"loader__batch_size": 8, "loader__num_workers": 6}, "a rank has 6 files of 4 samples for 6 workers, and none "
         "has a whole batch of 8; use more files, fewer workers or ranks, or loader.assignment=static"),
        ({"loader__num_parallel_reads": 2, "loader__assignment": "static"},
         "loader.num_parallel_reads=2: only workers that own files read several at once; use loader.assignment=by"),
        ({"loader__kind": "torch"}, "loader.assignment=by_file: PyTorch deals batches to its workers in turn"),
    ],
)  # fmt: skip
def test_what_workers_that_own_files_cannot_do_is_refused_in_one_line(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        owning(**overrides)
    assert "\n" not in str(refused.value)


def test_evaluations_take_batches_in_turn(tmp_path: Path) -> None:
    evaluate = {"every": {"steps": 4}, "compute": "100 us"}
    wanted = owning(dataset=DATASET | {"format": "tfrecord", "eval": {"num_files": 3}}, train__evaluate=evaluate)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)
