"""A layer of another package: it acts on every engine, is a cause of its own, and is simulated away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from packages import toy_installed

import rayio
from rayio.errors import ScenarioError
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.scenario.load import load
from rayio.scenario.write import to_yaml

USED = """\
name: gated
dataset: {path: "model://gated", num_files: 96, sample_bytes: 1 MB}
storage: {model: nvme, toll: 4 ms}
loader: {batch_size: 4, num_workers: 2}
train: {epochs: 2, compute: 1 ms}
cluster: {ranks_per_node: 2}
"""


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Path]:
    """A scenario with the toy package's layer, which is installed."""
    with toy_installed(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        (tmp_path / "gated.yaml").write_text(USED)
        yield tmp_path


def held_up(run: rayio.Run) -> list[int]:
    """Give how long each batch was held up (ns), each within its read."""
    spans = run.spans()
    reads, delays = (spans[spans.name == name].set_index(["rank", "epoch", "step"]) for name in ("read", "delay"))
    assert len(reads) == len(delays) == 2 * 2 * 12
    both = delays.join(reads.add_suffix("_of_read"))
    assert (both.start_ns >= both.start_ns_of_read).all()
    assert (both.start_ns + both.duration_ns <= both.start_ns_of_read + both.duration_ns_of_read).all()
    assert set(delays.attributes) == {'{"cause":"toll","why":""}'}
    lasted = (delays.start_ns + delays.duration_ns).max() - delays.start_ns.min()
    assert lasted >= len(delays) * 4_000_000, "one at a time"
    return delays.duration_ns.tolist()


def test_it_acts_on_the_virtual_clock_and_explain_names_it_and_does_without(gated: Path) -> None:
    run = rayio.simulate("gated.yaml", out="run")
    assert min(held_up(run)) >= 4_000_000
    found = explain(run.path)
    (row,) = [row for row in found.verdict.table if row.cause == "toll"]
    assert row.meaning == "held up at the gate"
    assert row.share is not None
    assert row.share > 0.5
    assert (found.verdict.bound, found.verdict.cause) == ("input", "toll")
    assert "`toll`" in found.sentence
    assert found.simulated is not None
    (without,) = [change for change in found.simulated.changes if change.change == "without toll"]
    really = explain(rayio.simulate("gated.yaml", ["storage.toll=none"], out="without").path)
    assert without.au == really.verdict.au
    (half,) = [change for change in found.simulated.changes if change.change == "toll ÷ 2"]
    assert half.au == explain(rayio.simulate("gated.yaml", ["storage.toll=2 ms"], out="half").path).verdict.au
    assert not [row for row in really.verdict.table if row.cause == "toll"]
    report(run.path)


def test_it_acts_in_real_time_on_real_files_too(gated: Path) -> None:
    run = rayio.run("gated.yaml", ["dataset.path=data", "dataset.sample_bytes=1 kB"], engine="local", out="run")
    assert run.result.ledger is not None
    assert run.result.ledger.even
    held_up(run)
    found = explain(run.path)
    assert found.simulated is not None
    (without,) = [change for change in found.simulated.changes if change.change == "without toll"]
    assert without.time_saved is not None
    assert without.time_saved > 0
    # The recorded reads have the whole toll in them: another one cannot be simulated.
    assert not [change for change in found.simulated.changes if change.change == "toll ÷ 2"]


def test_workers_of_another_library_cannot_share_a_gate(gated: Path) -> None:
    real = ["dataset.path=data", "dataset.sample_bytes=1 kB", "loader.kind=torch"]
    with pytest.raises(
        ScenarioError, match=r"storage\.toll: the workers of loader.kind=torch cannot share its state; use"
    ):
        rayio.run("gated.yaml", real, engine="local", out="torch")


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_readers_on_ray_pass_one_gate(gated: Path) -> None:
    few = ["loader.num_workers=1", "loader.queue=in_rank", "train.sync=none"]
    run = rayio.run("gated.yaml", few, engine="ray", out="run")
    assert "layer-toll" in [actor["name"] for actor in run.directory.info["actors"]]
    held_up(run)


def test_its_key_is_checked_written_and_refused_where_it_cannot_act(gated: Path) -> None:
    assert "toll: 4 ms" in to_yaml(load("gated.yaml"))
    for override, line in {
        "storage.toll=4 GB": "storage.toll=4 GB: ",
        "storage.tol=4 ms": "storage.tol=4 ms: no such key; did you mean toll?",
        "loader.num_workers=0": "storage.toll: there are no readers to pass the gate; raise loader.num_workers",
    }.items():
        with pytest.raises(ScenarioError) as refused:
            load("gated.yaml", [override])
        assert line in str(refused.value)
        assert "\n" not in str(refused.value)
