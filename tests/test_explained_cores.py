"""``explain`` on machines whose processors are busy: each change held against the change really made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planted import TRUTH, busy, recorded, seconds_per_step
from test_processors import BUSY

from rayio.analyze.stalls import attribute
from rayio.predict.counterfactual import counterfactuals, ready
from rayio.predict.processors import SeenCpu, Worked, learn_cpu
from rayio.records.explained import Explained
from rayio.report.explain import explain
from rayio.scenario.model import Scenario
from rayio.session import simulate
from rayio.trace.slices import Slices
from scenarios import scenario

#: What a run's own CPU times say is what its work took, on busy cores too.
AS_WORKED: dict[str, Any] = TRUTH | {"cpu": TRUTH["cpu"] | {"contention": 1.0}}
#: As many batches as tell something.
SHORT = {"dataset__num_files": 160, "train__epochs": 1}
DECODED = {
    "costs": {"cpu": {"queue": "1 ms"}}, "loader__decode": {"kind": "decompress", "rate": "200 MB/s"},
    "dataset__sample_bytes": "1 MB",
}  # fmt: skip


def explained(wanted: Scenario, root: Path) -> Explained:
    return explain(simulate(wanted, root=root).path)


def rows(found: Explained) -> dict[str, Any]:
    assert found.simulated is not None
    return {row.change: row for row in found.simulated.changes}


@pytest.mark.parametrize(("workers", "keys"), [(1, {}), (2, DECODED)], ids=["parsing", "decoding"])
def test_changes_of_a_run_whose_cores_are_full_are_as_they_are_made(
    workers: int, keys: dict[str, Any], tmp_path: Path
) -> None:
    base = BUSY | SHORT | keys | {"cluster__cores": 2, "loader__num_workers": workers}
    found = explained(scenario(**base), tmp_path / "before")
    assert found.simulated is not None
    assert found.simulated.au == pytest.approx(found.verdict.au, abs=1e-6), "as it was is as it was"
    for name, made in (("cores × 2", {"cluster__cores": 4}), ("workers × 2", {"loader__num_workers": 2 * workers})):
        au = explain(simulate(scenario(**base | made), root=tmp_path / name).path, simulate=False).verdict.au
        assert rows(found)[name].au == pytest.approx(au, abs=0.001), name
    assert rows(found)["cores × 2"].time_saved > 0.25
    assert found.verdict.is_processor_bound
    assert found.sentence.startswith("Processor-bound: ")
    assert "2 cores give" in found.sentence
    assert "With twice the cores (4 on each node)" in found.sentence


def test_what_the_cores_can_do_is_a_row_of_stages(tmp_path: Path) -> None:
    found = explained(scenario(**BUSY | SHORT, cluster__cores=2), tmp_path)
    row = next(row for row in found.capacity.stages if row.stage == "processors")
    assert row.service_seconds == pytest.approx(0.018)
    assert row.parallelism == 2
    assert row.capacity == pytest.approx(2 / 0.018)
    assert row.utilisation > 0.97
    assert rows(found)["workers × 2"].then == "processors"
    read = next(row for row in found.capacity.stages if row.stage == "read")
    assert read.service_seconds == pytest.approx(0.010, rel=0.01), "parsing is service, waiting for a core is not"


def test_where_cores_are_free_they_are_not_named(tmp_path: Path) -> None:
    found = explained(scenario(**BUSY | SHORT, cluster__cores=64), tmp_path)
    assert found.verdict.is_processor_bound is False
    assert not found.sentence.startswith("Processor-bound")
    unknown = explained(scenario(**BUSY | SHORT), tmp_path / "unknown")
    assert unknown.verdict.is_processor_bound is None
    assert "cores × 2" not in rows(unknown)


def on_ray(workers: int, ranks: int) -> dict[str, float]:
    """Time saved by each change of a run on Ray whose costs are known, as explain simulates it."""
    run = recorded(scenario(**busy("1 MB", workers, ranks), costs=AS_WORKED, cluster__cores=2))
    unknown = run.scenario.model_copy(
        update={
            "costs": "none", "cluster": run.scenario.cluster.model_copy(update={"cores": None}),
        }
    )  # fmt: skip
    worked = Worked.seen(unknown, run.info)
    assert worked is not None
    charged = attribute(run.spans)
    base = ready(unknown, run.info, charged, Slices.of(run.spans), batch_bytes=4e6, worked=worked)
    assert base is not None
    return {row.change: row.time_saved or 0.0 for row in counterfactuals(base).record.changes}


@pytest.mark.parametrize(("workers", "ranks"), [(1, 2), (1, 1)])
def test_more_workers_on_cores_that_are_busy_gain_what_they_gain(workers: int, ranks: int) -> None:
    """What processes said of their CPU time makes the difference: two ranks fill both cores, and one does not."""
    said = on_ray(workers, ranks)

    def seconds(**changed: Any) -> float:
        keys = {"cluster__cores": 2} | busy("1 MB", workers, ranks) | changed
        return seconds_per_step(scenario(**keys, costs=AS_WORKED))

    before = seconds()
    for name, made in (("workers × 2", {"loader__num_workers": 2 * workers}), ("cores × 2", {"cluster__cores": 4})):
        assert said[name] == pytest.approx(1 - seconds(**made) / before, abs=0.08), name
    assert ranks == 1 or said["workers × 2"] < 0.25, "of cores without limit it would be 0.43 and more"


def test_ranks_that_read_for_themselves_are_not_counted_twice() -> None:
    told = {
        "roles": {"rank": 5.0}, "nodes": 0.0,
        "reads": {
            "batches": 100, "samples": 400.0, "bytes": 4e8, "seconds": 4.0, "samples_samples": 1600.0,
            "samples_bytes": 1.6e9, "bytes_bytes": 1.6e15, "samples_seconds": 16.0, "bytes_seconds": 1.6e7,
        },
    }  # fmt: skip
    seen = SeenCpu.of({"cpu_seconds": told}, "run")
    assert seen is not None
    cpu, _ = learn_cpu([seen], "npz")
    assert (cpu.sample, seen.put, cpu.rank) == pytest.approx((0.01, 0.0, 0.01))


#: One rank whose decoding takes four of its steps, and readers that come.
SCALED: dict[str, Any] = {
    "cluster__ranks_per_node": 1, "dataset__num_files": 800, "train__epochs": 1, "loader__decode": "10 ms",
    "loader__num_workers": {"min": 1, "max": 3, "every": "200 ms", "calm": "1 s"},
}  # fmt: skip


def test_changes_of_workers_begin_from_those_there_were(tmp_path: Path) -> None:
    done = simulate(scenario(**SCALED), root=tmp_path)
    assert done.result.scaling is not None
    number = round(done.result.scaling.mean)
    assert 1 < number <= 3
    found = explain(done.path)
    said = rows(found)
    assert not any(name.startswith("workers") for name in said)
    scaled = SCALED["loader__num_workers"]
    made = {
        f"{number} workers throughout": number,
        "max × 2": scaled | {"max": 6},
        "min × 2": scaled | {"min": 2},
    }
    for name, workers in made.items():
        run = simulate(scenario(**SCALED | {"loader__num_workers": workers}), root=tmp_path)
        assert said[name].au == pytest.approx(explain(run.path, simulate=False).verdict.au, abs=0.002), name
    assert any("changes of workers begin from those" in note for note in found.notes)
