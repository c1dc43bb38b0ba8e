"""``train.compute_cores``: compute that is work on a processor, on every engine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from planted import busy, made, recorded, seconds_per_step

from rayio import session
from rayio.predict.calibrate import learn
from rayio.scenario import checks
from scenarios import scenario, simulated

#: Two ranks that compute for 20 ms, without anything else that takes time.
PLAIN: dict[str, Any] = {
    "cluster__ranks_per_node": 2, "dataset__num_files": 160, "loader__batch_size": 2, "train__epochs": 1,
    "train__compute": "20 ms", "storage__model": "memory", "costs": "none",
}  # fmt: skip


@pytest.mark.parametrize(("cores", "milliseconds"), [(None, 20), (4, 20), (2, 20), (1, 40)])
def test_compute_on_cores_takes_longer_where_ranks_share_them(cores: int | None, milliseconds: int) -> None:
    wanted = scenario(**PLAIN, cluster__cores=cores, train__compute_cores=1)
    assert seconds_per_step(wanted) == pytest.approx(milliseconds / 1000, rel=0.01)
    assert seconds_per_step(scenario(**PLAIN, cluster__cores=cores)) == pytest.approx(20e-3, rel=0.01), "a sleep"


def test_workers_and_compute_share_the_cores() -> None:
    """A batch of 18 ms of work and 20 ms of compute: one rank on one core needs both one after the other."""
    work = {"costs": {"put": "8 ms", "cpu": {"sample": "5 ms"}}, "cluster__ranks_per_node": 1}
    keys = PLAIN | work | {"loader__num_workers": 2}
    assert seconds_per_step(scenario(**keys, cluster__cores=1, train__compute_cores=1)) == pytest.approx(
        38e-3, rel=0.03
    )
    assert seconds_per_step(scenario(**keys, cluster__cores=1)) == pytest.approx(20e-3, rel=0.03)


def test_the_compute_of_an_evaluation_takes_a_core_too() -> None:
    evaluated = {"every": {"epochs": 1}, "compute": "10 ms"}
    keys = PLAIN | {"train__evaluate": evaluated, "dataset__eval__num_files": 32, "train__compute_cores": 1}
    taken = [row["duration_ns"] for row in simulated(scenario(**keys, cluster__cores=1)).rows("eval_compute")]
    assert max(taken) == pytest.approx(20e6, rel=0.01), "two ranks on one core"


def test_a_real_run_uses_the_cpu_and_no_longer_than_it_must(tmp_path: Path) -> None:
    wanted = scenario(
        dataset__path="data", dataset__num_files=16, dataset__sample_bytes="1 kB", loader__batch_size=4,
        cluster__ranks_per_node=1, train__compute="5 ms", train__compute_cores=1, train__epochs=1,
    )  # fmt: skip
    before = time.process_time()
    run = session.run(wanted, engine="local", root=tmp_path)
    assert time.process_time() - before >= 4 * 0.005
    spans = run.spans()
    assert (spans[spans["name"] == "compute"]["duration_ns"] >= 5_000_000).all()
    assert run.result.ledger is not None
    assert run.result.ledger.even


def test_cores_that_only_compute_uses_are_not_idle() -> None:
    assert any("costs.cpu is empty" in note for note in checks.idle(scenario(**PLAIN, cluster__cores=2)))
    both = checks.idle(scenario(**PLAIN, cluster__cores=2, train__compute_cores=1))
    assert not any("costs.cpu is empty" in note for note in both)


def test_a_calibration_of_compute_on_cores_predicts_more_workers() -> None:
    keys = {"train__compute_cores": 1}
    runs = [recorded(made(busy(size, 1, 1, "8 ms") | keys)) for size in ("1 MB", "100 kB")]
    found = learn(runs[0].spans, runs[0].scenario, runs[0].info, more=runs[1:], is_cached=True).scenario
    for size, workers, compute in (("1 MB", 2, "8 ms"), ("100 kB", 1, "30 ms")):
        true = made(busy(size, workers, 2, compute) | keys)
        said = found.model_copy(
            update={"dataset": true.dataset, "train": true.train, "loader": true.loader, "cluster": true.cluster}
        )
        assert seconds_per_step(said) == pytest.approx(seconds_per_step(true), rel=0.05)


@pytest.mark.slow  # a run on Ray for one number
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_compute_on_ray_is_no_cost_of_the_loader(home: Path) -> None:
    wanted = scenario(
        dataset__path="data", dataset__num_files=40, dataset__sample_bytes="20 kB", cluster__ranks_per_node=1,
        loader__batch_size=2, loader__num_workers=1, train__compute="30 ms", train__compute_cores=1, train__epochs=1,
    )  # fmt: skip
    run = session.run(wanted, root=home)
    cpu = json.loads((run.path / "run.json").read_text())["cpu_seconds"]
    assert cpu["roles"]["rank"] < 20 * 0.030, "compute is not in it"
