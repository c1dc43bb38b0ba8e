"""Hot files (``loader.shuffle: zipf``): draws with replacement, held against theory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from walks import DATASET, requests, walking

from rayio.data.hot import ZipfOptions
from rayio.data.sampler import Sampler
from rayio.data.shuffle import SHUFFLES, Sizes
from rayio.errors import RayioError
from rayio.model.ledger import close
from scenarios import run_locally, scenario, simulated

FILES, PER_FILE = 200, 5
GZIP = {**DATASET, "format": "tfrecord", "compression": "gzip"}


def weights(exponent: float, files: int = FILES) -> Any:
    """Give Zipf's probability of each file."""
    each = np.arange(1, files + 1) ** -exponent
    return each / each.sum()


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.1, 2.0])
def test_files_are_drawn_as_often_as_zipf_says_and_their_samples_evenly(exponent: float) -> None:
    draws, sizes = 400_000, Sizes(PER_FILE, ZipfOptions(zipf_exponent=exponent))
    samples = SHUFFLES["zipf"](FILES * PER_FILE, 7, np.arange(draws), sizes)
    expected = np.repeat(weights(exponent), PER_FILE) / PER_FILE * draws
    drawn = np.bincount(samples, minlength=FILES * PER_FILE)
    often = expected > 5
    chi_squared = float(((drawn - expected) ** 2 / expected)[often].sum())
    freedom = int(often.sum())
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)  # five standard deviations


def test_draws_depend_on_position_and_epoch_alone_and_the_hot_files_stay() -> None:
    wanted = scenario(
        loader__shuffle="zipf", loader__zipf_exponent=1.5, dataset__samples_per_file=4, dataset__num_files=100
    )
    sampler = Sampler.from_scenario(wanted)
    epochs = [np.concatenate([sampler.batch(epoch, rank, step).samples for rank in range(2) for step in range(100)])
              for epoch in (0, 1, 0)]  # fmt: skip
    assert epochs[0].tolist() == epochs[2].tolist() != epochs[1].tolist()
    for samples in epochs:
        files = Counter((samples // 4).tolist())
        assert files.most_common(1)[0][0] == 0
        assert len(set(samples.tolist())) < len(samples)


def test_a_sample_that_comes_twice_in_a_batch_is_read_from_a_gzip_stream(tmp_path: Path) -> None:
    again = walking("per_sample", dataset={**GZIP, "num_files": 3}, loader__shuffle="zipf", loader__batch_size=6)
    assert run_locally(on_disk(again, tmp_path), tmp_path).ledger.even


@pytest.mark.parametrize("form", ["npz", "hdf5", "tfrecord", "parquet", "raw", "jsonl"])
@pytest.mark.parametrize("access", ["per_sample", "whole_file", "in_memory"])
def test_a_real_run_and_its_simulation_draw_the_same_and_deliver_every_draw(
    access: str, form: str, tmp_path: Path
) -> None:
    dataset = {"path": "data", "num_files": 6, "samples_per_file": 4, "sample_bytes": "2000 B", "format": form}
    wanted = walking(access, dataset=dataset, loader__shuffle="zipf", loader__zipf_exponent=2, loader__batch_size=4)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert close(real.plan.planned(), real.tallies).even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)
    batches = [real.plan.sampler().batch(0, 0, step).samples.tolist() for step in range(3)]
    assert any(len(set(batch)) < len(batch) for batch in batches)  # a batch may have a sample twice


@pytest.mark.parametrize("exponent", [0.6, 1.1])
@pytest.mark.parametrize("part", [0.1, 0.3])
def test_a_cache_hits_as_often_as_ches_approximation_says(part: float, exponent: float) -> None:
    """Che, Tung, Wang (2002): a file with rate p is in an LRU cache with probability 1 - exp(-p T).

    T is the time in which draws of so many different files as the cache holds arrive.
    """
    files, epochs, size = 400, 30, 100_000
    held = part * files
    outcome = simulated(
        scenario(
            cluster={"ranks_per_node": 1}, loader={"shuffle": "zipf", "zipf_exponent": exponent, "num_workers": 1},
            dataset={"path": "model://hot", "num_files": files, "sample_bytes": size, "format": "raw"},
            train={"epochs": epochs, "compute": "1 ms"},
            storage={"model": "memory", "cache": [{"tier": "ram", "bytes": int(held * size)}]},
        )
    )  # fmt: skip
    moved = [tally.moved for tally in outcome.tallies]
    asked, fetched = sum(each.requested for each in moved if each), sum(each.fetched or 0 for each in moved if each)
    chances = weights(exponent, files)
    low, high = 1.0, 1e9
    while high - low > 1e-6 * low:
        time = (low + high) / 2
        low, high = (time, high) if (1 - np.exp(-chances * time)).sum() < held else (low, time)
    hits = float((chances * (1 - np.exp(-chances * time))).sum())
    cold = held / (epochs * files)  # what fills the cache
    assert 1 - fetched / asked == pytest.approx(hits, abs=0.01 + cold)
    assert hits > part + 0.05  # more than without hot files


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"loader__zipf_exponent": -1}, "must be a number from 0 to 10"),
        ({"loader__zipf_exponent": "much"}, "must be a number from 0 to 10"),
        ({"dataset__num_files": 1 << 23}, "not yet: loader.shuffle=zipf with 8388608 files; at most 4194304 are"),
        (
            {"loader__file_access": "streamed", "dataset__format": "raw", "dataset__samples_per_file": 2},
            "loader.shuffle=zipf needs samples in no file's order",
        ),
        ({"loader__assignment": "by_file"}, "loader.shuffle=zipf mixes samples of all files"),
    ],
)
def test_what_does_not_go_with_draws_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(RayioError, match=problem):
        scenario(loader__shuffle="zipf", **keys)
