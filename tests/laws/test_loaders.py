"""Laws of every loader: on real files, batches are those that the model says, in its order, and nothing stays."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from left import children, running
from registered import every
from test_engines import computed, deliver_the_same, roles_do_one_thing_at_a_time

from rayio.kinds import LOADERS
from scenarios import run_locally, scenario, simulated

#: Options that have a loader begin sooner than by default; every value of each is a test of its own (test_torch.py).
SOONER: dict[str, dict[str, Any]] = {"torch": {"loader__multiprocessing_context": "fork"}}
#: Scenarios that between them touch all that a batch goes through.
WORK: dict[str, dict[str, Any]] = {
    "two workers": {"loader__prefetch_factor": 3},
    "no workers": {"loader__num_workers": 0},
    "out of order": {"loader__in_order": False},
    "evaluations between steps": {
        "train__evaluate": {"every": {"steps": 3}, "compute": "100 us", "batch_size": 1},
        "dataset__eval": {"num_files": 4},
        "loader__decode": {"kind": "checksum", "passes": 2, "rate": "100 MB/s"},
    },
    "evaluations, no workers": {
        "train__evaluate": {"compute": "100 us"},
        "dataset__eval": {"num_files": 4},
        "loader__num_workers": 0,
    },
    "hdf5, every request": {"dataset__format": "hdf5", "dataset__samples_per_file": 4, "trace__level": "io"},
    "tfrecord, a rest": {
        "dataset__format": "tfrecord", "dataset__samples_per_file": 7, "dataset__num_files": 7,
        "loader__drop_last": False, "loader__batch_size": 5, "trace__level": "sample",
    },
}  # fmt: skip


@every(LOADERS, "loader")
@pytest.mark.parametrize("overrides", WORK.values(), ids=WORK)
def test_batches_are_those_of_the_model_in_its_order(loader: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    before = children()
    keys = {"dataset__path": "data", "train__compute": "100 us", "loader__kind": loader, **SOONER.get(loader, {})}
    wanted = on_disk(scenario(**keys, **overrides), tmp_path)
    here, there = simulated(wanted), run_locally(wanted, tmp_path)
    deliver_the_same(here, there)
    assert there.ledger.even
    got = [(tally.steps, tally.samples, tally.digest) for tally in there.tallies]
    wants = [(tally.steps, tally.samples, tally.digest) for tally in there.plan.planned()]
    assert got == wants, "a sample that nobody got, or somebody got twice"
    assert computed(here) == computed(there)
    roles_do_one_thing_at_a_time(there)
    assert sum(row["bytes"] for row in there.rows("read")) >= sum(row["bytes"] for row in there.rows("data_wait"))
    for child in multiprocessing.active_children():
        child.join(5)
    assert not running(children() - before), "processes of the loader go on after the run"
