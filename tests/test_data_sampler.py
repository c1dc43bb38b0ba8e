from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shuffles import Together

from rayio import seeds
from rayio.data.layout import Layout
from rayio.data.partition import PARTITIONS
from rayio.data.permuted import repeats
from rayio.data.planned import planned
from rayio.data.sampler import Sampler, sample_digest
from rayio.data.shuffle import SHUFFLES
from rayio.errors import DataError, ScenarioError
from rayio.model.planning import plan_of
from rayio.scenario import checks, derive
from rayio.scenario.model import Scenario
from rayio.schema.distribution import Constant, Normal

SIZES = Normal(mean=1000, stdev=400)
partitions = st.sampled_from(sorted(PARTITIONS))
shuffles = st.sampled_from(sorted(shuffle for shuffle in SHUFFLES if not repeats(shuffle)))
any_seed = st.integers(0, 2**64)


def layout_of(num_samples: int, samples_per_file: int = 1, seed: int = 10) -> Layout:
    return Layout(num_samples // samples_per_file, samples_per_file, SIZES, seed)


@st.composite
def samplers(draw: st.DrawFn) -> Sampler:
    world_size, batch_size = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    per_file = draw(st.integers(1, 4))
    drop_last = draw(st.booleans())
    least = world_size * (batch_size if drop_last else 1)
    files = draw(st.integers(math.ceil(least / per_file), 60))
    shuffle = draw(shuffles)
    return Sampler(
        Layout(files, per_file, SIZES, 10),
        batch_size=batch_size,
        world_size=world_size,
        partition=draw(partitions),
        shuffle=shuffle,
        shuffle_options=Together(block=draw(st.integers(1, 30)), buffer=draw(st.integers(1, 30))).options(shuffle),
        seed=draw(any_seed),
        max_steps=draw(st.none() | st.integers(1, 8)),
        drop_last=drop_last,
        block_samples=draw(st.integers(1, 40)),
        max_blocks=draw(st.integers(1, 3)),
    )


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
@given(num_samples=st.integers(0, 300), world_size=st.integers(1, 20))
def test_every_position_goes_to_exactly_one_rank_or_to_each_of_them(partition, num_samples, world_size):  # type: ignore[no-untyped-def]
    shares = [partition.share(num_samples, world_size, rank) for rank in range(world_size)]
    given_out = [
        position
        for rank, share in enumerate(shares)
        for position in partition.positions(num_samples, world_size, rank, np.arange(share)).tolist()
    ]
    assert sorted(given_out) == sorted(list(range(num_samples)) * (world_size if partition.shared else 1))
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
@given(num_samples=st.integers(1, 10**15), world_size=st.integers(1, 1000), data=st.data())
def test_a_place_in_a_share_is_found_without_the_others(partition, num_samples, world_size, data):  # type: ignore[no-untyped-def]
    rank = data.draw(st.integers(0, world_size - 1))
    share = partition.share(num_samples, world_size, rank)
    local = np.array([0, share // 2, max(0, share - 1)])
    found = partition.positions(num_samples, world_size, rank, local)
    assert found.tolist() == [int(partition.positions(num_samples, world_size, rank, np.array([n]))[0]) for n in local]
    assert share == 0 or (found.min() >= 0 and found.max() < num_samples)


def test_a_replicated_dataset_is_read_by_every_rank_in_one_order() -> None:
    sampler = Sampler(
        layout_of(10), batch_size=4, world_size=3, partition="replicated", shuffle="global", seed=1, max_steps=2
    )
    ranks = [[sampler.batch(0, rank, step).samples.tolist() for step in range(2)] for rank in range(3)]
    assert ranks[0] == ranks[1] == ranks[2]
    assert len(set(ranks[0][0] + ranks[0][1])) == 8
    assert sampler.dropped == 3 * 2
    assert len({sampler.digest(0, rank, 0) for rank in range(3)}) == 3, "the books still tell ranks apart"


@given(samplers(), st.integers(0, 3))
def test_an_epoch_visits_every_sample_once_but_for_those_dropped_and_capped(sampler: Sampler, epoch: int) -> None:
    ranks = [
        [sample for step in range(sampler.steps(epoch, rank)) for sample in sampler.batch(epoch, rank, step).samples]
        for rank in range(sampler.world_size)
    ]
    visited = [sample for rank in ranks for sample in rank]
    replicas = sampler.world_size if PARTITIONS[sampler.partition].shared else 1
    assert len(set(visited)) * replicas == len(visited)
    assert replicas == 1 or all(rank == ranks[0] for rank in ranks)
    assert set(visited) <= set(range(sampler.layout.num_samples))
    if sampler.drop_last:
        capped = (sampler.whole_steps - sampler.num_steps) * sampler.batch_size * sampler.world_size
    else:
        most = sampler.num_steps * sampler.batch_size if sampler.max_steps else sampler.layout.num_samples
        share = PARTITIONS[sampler.partition].share
        shares = [share(sampler.layout.num_samples, sampler.world_size, rank) for rank in range(sampler.world_size)]
        capped = sum(max(0, number - most) for number in shares)
    assert len(visited) + sampler.dropped + capped == sampler.layout.num_samples * replicas
    assert sampler.dropped < (sampler.batch_size + 1) * sampler.world_size


@given(samplers(), st.integers(0, 3), st.data())
def test_a_batch_depends_on_its_address_alone(sampler: Sampler, epoch: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, sampler.world_size - 1))
    fresh = pickle.loads(pickle.dumps(sampler))
    other = sampler.cached_for(3)
    for step in data.draw(st.permutations(range(sampler.steps(epoch, rank)))):
        ours, theirs = sampler.batch(epoch, rank, step), fresh.batch(epoch, rank, step)
        for name in ("samples", "files", "index", "nbytes"):
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
        assert (ours.epoch, ours.rank, ours.step) == (epoch, rank, step)
        assert (ours.files * sampler.layout.samples_per_file + ours.index).tolist() == ours.samples.tolist()
        assert ours.nbytes.tolist() == sampler.layout.sample_bytes_of(ours.files).tolist()
        assert ours.total_bytes == sampler.step_bytes(epoch, rank, step) == other.step_bytes(epoch, rank, step)
        assert other.digest(epoch, rank, step) == sample_digest(epoch, rank, step, ours.samples)


@given(samplers(), st.integers(0, 2), st.data())
def test_blocks_of_ranks_that_advance_side_by_side_are_those_of_each_alone(
    sampler: Sampler, epoch: int, data: st.DataObject
) -> None:
    together = sampler.cached_for(sampler.world_size)
    ranks = range(sampler.world_size)
    addresses = [(epoch, rank, step) for rank in ranks for step in range(sampler.steps(epoch, rank))]
    for address in data.draw(st.permutations(addresses)):
        ours, alone = together.batch(*address), sampler.batch(*address)
        for name in ("samples", "files", "index", "nbytes"):
            assert getattr(ours, name).tolist() == getattr(alone, name).tolist()
        assert together.step_bytes(*address) == sampler.step_bytes(*address)
        assert together.digest(*address) == sampler.digest(*address)


def test_ranks_that_advance_side_by_side_are_computed_together() -> None:
    computed: list[int] = []

    class Counted(Sampler):
        def _shuffled(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
            computed.append(positions.size)
            return super()._shuffled(epoch, positions)

    alone = Counted(layout_of(4096), batch_size=4, world_size=64, seed=1)
    for sampler, calls in ((alone.cached_for(64), [4096]), (alone.cached_for(8), [64] * 64)):
        computed.clear()
        together = Counted.__new__(Counted)
        together.__dict__.update(sampler.__dict__)
        for rank in range(64):
            together.batch(0, rank, 0)
        assert computed == calls


@given(samplers(), st.data())
def test_steps_asked_for_in_any_order_of_epochs_and_ranks_are_the_same(sampler: Sampler, data: st.DataObject) -> None:
    addresses = [(epoch, rank, 0) for epoch in range(2) for rank in range(sampler.world_size)]
    for address in data.draw(st.permutations(addresses * 2)):
        alone = pickle.loads(pickle.dumps(sampler))
        assert sampler.batch(*address).samples.tolist() == alone.batch(*address).samples.tolist()
        assert sampler.digest(*address) == alone.digest(*address)


@given(samplers(), st.integers(0, 3))
def test_what_is_planned_is_the_sum_of_the_steps(sampler: Sampler, epoch: int) -> None:
    for rank in range(sampler.world_size):
        digests = [sampler.digest(epoch, rank, step) for step in range(sampler.steps(epoch, rank))]
        sizes = [len(sampler.batch(epoch, rank, step).samples) for step in range(sampler.steps(epoch, rank))]
        assert all(0 <= digest < 2**64 for digest in digests)
        assert sampler.samples(epoch, rank) == sum(sizes)
        assert planned(sampler, epoch, rank) == (len(digests), sum(sizes), sum(digests) % 2**64)
        assert set(sizes[:-1]) <= {sampler.batch_size}, "only the last batch may be smaller"
        assert sizes[-1] == sampler.batch_size or (not sampler.drop_last and 0 < sizes[-1] < sampler.batch_size)
        with pytest.raises(IndexError):
            sampler.batch(epoch, rank, sampler.steps(epoch, rank))


def test_an_epoch_longer_than_a_planning_block_is_counted_whole() -> None:
    sampler = Sampler(layout_of(200_000), batch_size=3, world_size=2, seed=1)
    digests = sum(sampler.digest(0, 1, step) for step in range(sampler.num_steps))
    assert planned(sampler, 0, 1) == (33_333, 99_999, digests % 2**64)


def test_epochs_differ_when_shuffled_and_only_then() -> None:
    def order(shuffle: str, epoch: int, seed: int = 1) -> list[int]:
        sampler = Sampler(
            layout_of(100, 4),
            batch_size=100,
            world_size=1,
            shuffle=shuffle,
            shuffle_options=Together(block=7, buffer=9).options(shuffle),
            seed=seed,
        )
        return [int(sample) for sample in sampler.batch(epoch, 0, 0).samples]

    for shuffle in SHUFFLES:
        orders = [order(shuffle, 0), order(shuffle, 1), order(shuffle, 0, seed=2)]
        assert len({tuple(each) for each in orders}) == (1 if shuffle == "none" else 3), shuffle
        assert order(shuffle, 1) == orders[1]
    assert order("none", 0) == list(range(100))


def test_partitions_give_runs_or_strides() -> None:
    def ranks(partition: str) -> list[list[int]]:
        sampler = Sampler(layout_of(8), batch_size=4, world_size=2, shuffle="none", partition=partition, seed=1)
        return [sampler.batch(0, rank, 0).samples.tolist() for rank in range(2)]

    assert ranks("contiguous") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ranks("strided") == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_digest_shows_a_lost_a_doubled_and_a_misplaced_sample_but_no_order() -> None:
    ids = np.array([3, 1, 4, 15])
    digest = sample_digest(0, 1, 2, ids)
    assert digest == sample_digest(0, 1, 2, ids[::-1])
    assert digest == (sample_digest(0, 1, 2, ids[:2]) + sample_digest(0, 1, 2, ids[2:])) % 2**64
    others = [
        sample_digest(0, 1, 2, ids[:3]),
        sample_digest(0, 1, 2, np.array([3, 3, 4, 15])),
        sample_digest(1, 1, 2, ids),
        sample_digest(0, 2, 2, ids),
        sample_digest(0, 1, 3, ids),
        sample_digest(0, 1, 2, np.array([3, 1, 4, 16])),
    ]
    assert len({digest, *others}) == 7


def test_a_digest_is_the_same_in_every_version() -> None:
    assert sample_digest(0, 1, 2, np.array([3, 1, 4, 15])) == 18154600275348892115


def test_sizes_are_drawn_per_file_at_the_seed() -> None:
    layout = layout_of(4000, samples_per_file=4)
    files = np.arange(1000)
    sizes = layout.sample_bytes_of(files)
    assert sizes.tolist() == [int(layout.sample_bytes_of(files[n : n + 1])[0]) for n in range(1000)]
    assert sizes.tolist() != layout_of(4000, 4, seed=11).sample_bytes_of(files).tolist()
    assert abs(sizes.mean() / SIZES.expected - 1) < 0.05


def test_a_size_too_small_for_id_and_checksum_becomes_their_size() -> None:
    layout = Layout(500, 1, Normal(mean=16, stdev=8), 1)
    sizes = layout.sample_bytes_of(np.arange(500))
    assert sizes.min() == derive.MIN_SAMPLE_BYTES
    assert sizes.max() > derive.MIN_SAMPLE_BYTES


def test_a_size_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(DataError, match="draws a sample of 1e\\+30 bytes"):
        Layout(1, 1, Constant(value=1e30), 1).sample_bytes_of(np.array([0]))


def test_paths_of_different_files_differ_and_sort_in_order() -> None:
    layout = layout_of(30_000)
    paths = [layout.path(file) for file in range(0, 30_000, 7)]
    assert len(set(paths)) == len(paths)
    assert paths == sorted(paths)
    assert layout.path(1234) == "000001/000001234.npz"


def test_a_sampler_pickles_small_whatever_the_dataset_and_its_cache() -> None:
    sampler = Sampler(Layout(10**9, 10, SIZES, 1), batch_size=4, world_size=8, seed=1)
    sampler.batch(0, 0, 0)
    assert len(pickle.dumps(sampler)) < 2000


def test_the_cache_never_holds_more_blocks_than_allowed() -> None:
    sampler = Sampler(layout_of(1000), batch_size=1, world_size=1, seed=1, block_samples=10, max_blocks=2)
    for step in (0, 500, 10, 990, 0):
        sampler.batch(0, 0, step)
    assert len(sampler._blocks) == 2
    assert sampler.cached_for(50).max_blocks == 100


@pytest.mark.parametrize(("rank", "step"), [(-1, 0), (2, 0), (0, -1), (0, 5), (0, 4)])
def test_a_step_that_is_not_planned_is_an_error(rank: int, step: int) -> None:
    sampler = Sampler(layout_of(10), batch_size=1, world_size=2, seed=1, max_steps=4)
    sampler.batch(0, 0, 3)
    with pytest.raises(IndexError, match=f"no step {step} for rank {rank}"):
        sampler.batch(0, rank, step)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"batch_size": 6}, "10 samples are fewer than batch_size 6 on each of 2 ranks"),
        ({"world_size": 11, "batch_size": 1}, "fewer than batch_size 1 on each of 11 ranks"),
    ],
)
def test_a_plan_without_a_step_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Sampler(layout_of(10), seed=1, **{"batch_size": 1, "world_size": 2, **arguments})  # type: ignore[arg-type]


def test_a_dataset_without_files_is_refused() -> None:
    with pytest.raises(DataError, match=r"dataset.num_files must be at least 1, not 0"):
        Layout(0, 1, SIZES, 1)


def test_unknown_names_are_refused_with_those_there_are() -> None:
    with pytest.raises(ScenarioError, match="no partition named 'random'; there are contiguous, replicated, strided"):
        Sampler(layout_of(10), batch_size=1, world_size=1, partition="random", seed=1)
    with pytest.raises(ScenarioError, match="no shuffle named 'riffle'"):
        Sampler(layout_of(10), batch_size=1, world_size=1, shuffle="riffle", seed=1)


def test_a_scenario_says_it_all() -> None:
    scenario = Scenario.model_validate(
        {
            "name": "t",
            "seed": 3,
            "cluster": {"nodes": 2, "ranks_per_node": 3},
            "dataset": {"path": "data/t", "num_files": 50, "samples_per_file": 2, "sample_bytes": "1 KiB"},
            "loader": {"batch_size": 4, "shuffle": "none", "partition": "strided"},
            "train": {"compute": "1 ms", "steps": 3},
        }
    )
    sampler = Sampler.from_scenario(scenario)
    assert sampler.num_steps == derive.steps_per_epoch(scenario) == 3
    assert sampler.whole_steps == derive.whole_steps_per_epoch(scenario)
    assert sampler.dropped == derive.dropped_samples(scenario)
    assert sampler.layout == Layout(50, 2, Constant(value=1024), 3)
    assert sampler.batch(0, 5, 1).samples.tolist() == [29, 35, 41, 47]
    assert sampler.batch(0, 5, 1).nbytes.tolist() == [1024] * 4


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("scaling", ["strong", "weak"])
@given(
    files=st.integers(1, 40),
    nodes=st.integers(1, 3),
    batch=st.integers(1, 5),
    per_file=st.integers(1, 4),
    cap=st.none() | st.integers(1, 9),
    drop_last=st.booleans(),
)
def test_sampler_and_formulas_agree_whatever_ranks_share(  # type: ignore[no-untyped-def]
    partition, scaling, files, nodes, batch, per_file, cap, drop_last
):
    data = {
        "name": "t",
        "cluster": {"nodes": nodes, "ranks_per_node": 2},
        "dataset": {"path": "model://t", "num_files": files, "samples_per_file": per_file, "sample_bytes": 1000},
        "loader": {"batch_size": batch, "partition": partition, "scaling": scaling, "drop_last": drop_last},
        "train": {"compute": 1, "steps": cap},
    }
    scenario = Scenario.model_validate(data)
    assume([*checks.contradictions(scenario)] == [])
    sampler = Sampler.from_scenario(scenario)
    steps = [sampler.steps(0, rank) for rank in range(2 * nodes)]
    assert (min(steps), max(steps)) == derive.rank_steps(scenario)
    assert sum(steps) == derive.total_rank_steps(scenario)
    assert sum(sampler.samples(0, rank) for rank in range(2 * nodes)) == derive.samples_read(scenario)
    plan = plan_of(scenario, modelled=True)
    for step in range(max(steps) + 1):
        assert plan.meetings.parties(0, step) == sum(step < number for number in steps)
    assert sampler.num_steps == derive.steps_per_epoch(scenario)
    assert sampler.whole_steps == derive.whole_steps_per_epoch(scenario)
    assert sampler.dropped == derive.dropped_samples(scenario)
    assert sampler.shared_out == derive.samples_per_epoch(scenario)
    assert sampler.layout.num_samples == derive.num_samples(scenario)
    share = PARTITIONS[partition].share
    shares = [share(sampler.layout.num_samples, 2 * nodes, rank) for rank in range(2 * nodes)]
    assert (min(shares), max(shares)) == derive.samples_per_rank(scenario)
    if scaling == "weak":
        assert set(shares) == {files * per_file}, "every rank has the scenario's dataset for itself"


@pytest.mark.parametrize(
    ("shuffle", "sizes"), [("file", {}), ("block", {"shuffle_block": 10}), ("buffer", {"shuffle_buffer": 20})]
)
def test_a_scenarios_shuffle_and_its_size_reach_the_sampler(shuffle: str, sizes: dict[str, int]) -> None:
    loader = {"batch_size": 50, "shuffle": shuffle, **sizes}
    dataset = {"path": "data/t", "num_files": 20, "samples_per_file": 5, "sample_bytes": 1000}
    scenario = Scenario.model_validate({"name": "t", "dataset": dataset, "loader": loader, "train": {"compute": 1}})
    sampler = Sampler.from_scenario(scenario)
    samples = np.concatenate([sampler.batch(0, 0, step).samples for step in range(2)])
    together = Together(5, sizes.get("shuffle_block", 1), sizes.get("shuffle_buffer", 1)).of(shuffle)
    key = seeds.key(scenario.seed, "shuffle", 0)
    assert samples.tolist() == SHUFFLES[shuffle](100, key, np.arange(100), together).tolist()
    assert samples.tolist() != list(range(100))
