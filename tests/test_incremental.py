"""Incremental checkpoints: sizes by arithmetic, times by theory, and restores of chains that were broken on purpose."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st

from rayio.errors import DataError, ScenarioError
from rayio.model import completing
from rayio.model.completing import Completion
from rayio.model.manifest import NAME, Link, Manifest, chain, parse, read, remove, search
from rayio.model.marks import Mark
from rayio.model.planning import plan_of
from rayio.place import Where, checkpoint_folder
from rayio.predict.shown import Shown
from rayio.report.explain import explain
from rayio.reporter import Reporter
from rayio.scenario import checks
from rayio.scenario.incremental import Incremental
from rayio.scenario.model import Scenario
from rayio.scenario.saved_bytes import all_checkpoints_bytes
from rayio.session.execute import run, simulate
from rayio.session.result import Run
from rayio.session.resume import _usable
from rayio.storage import open as open_store
from rayio.storage.stores.opening import Store
from rayio.trace.run_directory import RunDirectory
from scenarios import Outcome, run_locally, scenario, simulated

FULL, EVERY = 10_001, 3
CHANGED = {"fraction": 0.1, "full_every": EVERY}
#: What a tenth of each half of the state is, rounded up.
HALVES = {True: (5001, 5000), False: (501, 500)}


def saving(data: str = "data", steps: int = 8, **checkpoint: Any) -> Scenario:
    """Give 8 steps of 2 ranks with a checkpoint after each: full ones are numbers 0, 3 and 6."""
    section: dict[str, Any] = {
        "every": {"steps": 1}, "path": "kept", "model": {"bytes": FULL}, "writers": "sharded", "incremental": CHANGED,
        "request_bytes": "3 kB", "fsync": False,
    }  # fmt: skip
    return scenario(
        dataset={"path": data, "num_files": 4 * steps, "sample_bytes": 1000}, train={"compute": "1 ms"},
        loader={"batch_size": 2, "num_workers": 1}, checkpoint=section | checkpoint,
    )  # fmt: skip


def folder(number: int) -> str:
    return checkpoint_folder(0, number)


class Heard(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    warn = say


def ran(root: Path, out: str, reporter: Reporter | None = None, **checkpoint: Any) -> Run:
    return run(saving(**checkpoint), engine="local", root=root, out=out, reporter=reporter or Heard())


def loaded(spans: Any) -> dict[tuple[int, int], int]:
    """Give the bytes that each rank read back of each checkpoint."""
    load = spans[spans.name == "load"]
    return {(row["rank"], row.step): row.bytes for _, row in load.iterrows()}


def states(result: Outcome) -> dict[int, list[int]]:
    """Give the bytes of the files of each checkpoint."""
    found: dict[int, list[int]] = {}
    for row in result.rows("write"):
        found.setdefault(row["step"], []).append(row["bytes"])
    return {step: sorted(sizes, reverse=True) for step, sizes in found.items()}


@given(st.integers(1, 1 << 50), st.integers(1, 999), st.integers(2, 9), st.integers(0, 60))
def test_an_increment_is_the_changed_share_rounded_up(num_bytes: int, mille: int, every: int, number: int) -> None:
    kind = Incremental(fraction=mille / 1000, full_every=every)
    assert kind.changed(num_bytes) == -(-num_bytes * mille // 1000)
    read = [*kind.chain(number)]
    assert kind.is_full(read[0])
    assert not any(map(kind.is_full, read[1:]))
    assert read == [*range(read[0], number + 1)]
    assert kind.number_full(number) == sum(map(kind.is_full, range(number)))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(2, 6))
def test_the_most_space_is_what_the_kept_need(checkpoints: int, keep: int, every: int) -> None:
    kind, full, increment = Incremental(fraction=0.1, full_every=every), 1000, 100
    most, there = 0, set[int]()
    for newest in range(checkpoints):
        there.add(newest)
        most = max(most, sum(full if kind.is_full(number) else increment for number in there))
        there = {one for kept in range(max(0, newest - keep + 1), newest + 1) for one in kind.chain(kept)}
    assert kind.most_kept(checkpoints, keep, full, increment) == most


@pytest.mark.parametrize(
    "checkpoint",
    [
        {}, {"writers": "all_ranks"}, {"writers": {"dedicated": 3}}, {"writers": "per_node"}, {"asynchronous": True},
        {"writers": "parallel", "model": {"kind": "transformer", "layers": 2, "hidden": 8, "ffn": 6, "vocabulary": 7,
                                          "heads": 4}},
        {"model": {"files": {"graph": 3, "weights": 10_007}}}, {"every": {"steps": 2}},
    ],
    ids=str,
)  # fmt: skip
def test_sizes_on_disk_are_those_shown_and_those_simulated(checkpoint: dict[str, Any], tmp_path: Path) -> None:
    wanted = on_disk(saving(**checkpoint), tmp_path)
    here, there = simulated(wanted), run_locally(wanted, tmp_path)
    assert states(here) == states(there)
    numbers = checks.table(wanted)
    for number, step in enumerate(sorted(states(there))):
        path = tmp_path / "kept" / folder(step)
        sizes = [file.stat().st_size for file in path.iterdir() if file.name != NAME]
        assert sorted(sizes, reverse=True) == states(there)[step]
        shown = numbers["checkpoint_bytes" if number % EVERY == 0 else "checkpoint_increment_bytes"]
        assert sum(sizes) == shown
        manifest = parse((path / NAME).read_bytes())
        assert manifest.base == ("" if number % EVERY == 0 else folder(sorted(states(there))[number - 1]))
    assert sum(map(sum, states(there).values())) == all_checkpoints_bytes(wanted)


def test_a_checkpoint_takes_the_time_of_its_bytes() -> None:
    rate = 1e6
    model = {"first_byte": 0, "connection_bandwidth": rate, "bandwidth": "1 GB/s"}
    run = simulated(saving("model://x", writers="rank_zero").model_copy(
        update={"storage": scenario(storage__model=model).storage}
    ))  # fmt: skip
    taken = {row["step"]: row["duration_ns"] for row in run.rows("checkpoint", rank=0) if row["bytes"]}
    for number, nanoseconds in taken.items():
        nbytes = FULL if number % EVERY == 0 else math.ceil(FULL * Fraction("0.1"))
        assert nanoseconds == pytest.approx(nbytes / rate * 1e9, rel=1e-6)
    assert len(taken) == 8


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    ran(root, "run")
    return root


@pytest.fixture
def root(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")


@pytest.mark.parametrize(
    ("broken", "read", "passed"),
    [
        ((), (6, 7), ()),
        ((f"{folder(7)}/shard-00001.bin",), (6,), (7,)),
        ((f"{folder(6)}/shard-00000.bin",), (3, 4, 5), (6, 7)),
        ((f"{folder(6)}/{NAME}", f"{folder(4)}/{NAME}"), (3,), (4, 5, 6, 7)),
        ((f"{folder(7)}", f"{folder(6)}", f"{folder(3)}/shard-00001.bin"), (0, 1, 2), (3, 4, 5)),
    ],
)
def test_the_newest_complete_chain_is_read_back(
    broken: tuple[str, ...], read: tuple[int, ...], passed: tuple[int, ...], root: Path
) -> None:
    for name in broken:
        path = root / "kept" / name
        for file in [*path.iterdir(), path] if path.is_dir() else [path]:
            file.rmdir() if file.is_dir() else file.unlink()
    heard = Heard()
    again = ran(root, "again", heard, restore="newest", every={"steps": 8})
    assert loaded(again.spans()) == {
        (rank, number): HALVES[number % EVERY == 0][rank] for number in read for rank in (0, 1)
    }
    assert again.result.ledger is not None
    assert again.result.ledger.even
    notes = " ".join(heard.said)
    named = {number for number in range(8) if f"{folder(number)} (" in notes}
    assert named <= {*passed}
    assert len(named) == min(3, len(passed)), "a note names the first three that were passed over"


@pytest.mark.parametrize("wanted", ["newest", folder(4), folder(6)])
@pytest.mark.parametrize("writers", ["sharded", "rank_zero"])
def test_modelled_storage_reads_the_chain_that_files_have(wanted: str, writers: str, tmp_path: Path) -> None:
    ran(tmp_path, "run", writers=writers)
    real = loaded(ran(tmp_path, "again", restore=wanted, writers=writers).spans())
    virtual = simulated(saving("model://x", restore=wanted, writers=writers))
    assert {(row["rank"], row["step"]): row["bytes"] for row in virtual.rows("load")} == real
    assert len({step for _, step in real}) == {"newest": 2, folder(4): 2, folder(6): 1}[wanted]


def test_modelled_storage_reads_a_full_checkpoint_where_none_is_due() -> None:
    """Such a run has no checkpoint with that name."""
    other = simulated(saving("model://x", restore=folder(77), every={"steps": 3}))
    assert sum(row["bytes"] for row in other.rows("load")) == FULL


def test_an_increment_whose_base_was_replaced_is_not_used(root: Path) -> None:
    path = root / "kept" / folder(6) / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attempt": 1}))
    found = search(open_store(str(root / "kept")))
    assert found.complete[0].folder == folder(6)
    assert "was replaced" in found.passed[folder(7)]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": "another", "attempt": 0}))
    increment = parse((root / "kept" / folder(7) / NAME).read_bytes())
    with pytest.raises(DataError, match=f"it needs {folder(6)}, which was replaced since"):
        chain(open_store(str(root / "kept")), increment)


@pytest.mark.parametrize("base", ["../../etc", "epoch-0000-step-00000007", "epoch-0000-step-00000009", "x", 3])
def test_a_manifest_with_an_impossible_base_is_damaged(base: Any, root: Path) -> None:
    path = root / "kept" / folder(7) / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base": base}))
    found = search(open_store(str(root / "kept")))
    assert "is damaged" in found.passed[folder(7)]
    assert found.complete[0].folder == folder(6)


def test_a_named_increment_is_read_with_what_it_needs(root: Path) -> None:
    again = ran(root, "again", restore=folder(5), every={"steps": 8}, incremental="none")
    assert {number for _, number in loaded(again.spans())} == {3, 4, 5}
    path = root / "kept" / folder(4)
    (path / "shard-00001.bin").unlink()
    with pytest.raises(DataError, match=f"{folder(5)}: it needs {folder(4)}: shard-00001.bin is missing; choose"):
        ran(root, "more", restore=folder(5), every={"steps": 8})


@pytest.mark.parametrize(
    ("keep", "left"), [(1, (6, 7)), (2, (6, 7)), (3, (3, 4, 5, 6, 7)), (6, (0, 1, 2, 3, 4, 5, 6, 7))]
)
def test_what_the_kept_ones_need_stays(
    keep: int, left: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removing(store: Store, manifest: Manifest) -> None:
        others = [read(store, name) for name in store.entries() if store.size(f"{name}/{NAME}") is not None]
        assert manifest.folder not in {other.base for other in others}, "an increment would lose its base"
        remove(store, manifest)

    monkeypatch.setattr(completing, "remove", removing)
    ran(tmp_path, "run", keep=keep)
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {folder(number) for number in left}
    store = open_store(str(tmp_path / "kept"))
    assert [manifest.step for manifest in chain(store, search(store).complete[0])] == [6, 7]


@pytest.mark.parametrize("newest", [1, 2, 3])
def test_a_run_that_lost_a_rank_reads_its_chain(newest: int, tmp_path: Path) -> None:
    at_step = 2 * newest + 3  # a step after that checkpoint, which all ranks have passed when they met
    failing = {"events": [{"kind": "rank", "number": 1, "at_step": at_step}], "detect": 0, "restart": 0}
    wanted = saving(steps=12, every={"steps": 2}).model_copy(update={"failures": scenario(failures=failing).failures})
    read = [*Incremental(**CHANGED).chain(newest)]
    for result in (simulated(wanted), run_locally(on_disk(wanted, tmp_path), tmp_path)):
        assert result.ledger.even
        loads = [(row["rank"], row["step"] // 2, row["bytes"]) for row in result.rows("load")]
        assert sorted(loads) == sorted((rank, n, HALVES[n % EVERY == 0][rank]) for n in read for rank in (0, 1))
        for rank in (0, 1):
            assert len(result.rows("restore", rank=rank)) == len(read), "one after the other, the full one first"
        again = {row["step"] // 2: row["bytes"] for row in result.rows("write", attempt=1, rank=0)}
        assert again == {n: HALVES[n % EVERY == 0][0] for n in range(newest + 1, 6)}


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_manifest_that_died_with_its_writer_is_written_after_the_restart(
    is_behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, no increment until the next full checkpoint could be restored."""
    report = Completion.report

    async def lost(completion: Completion, durable: Any, at: Where, in_burst: bool = False) -> list[Link]:
        if not at.attempt:
            durable = {link: names for link, names in durable.items() if link.step != 4}
        return await report(completion, durable, at, in_burst)

    monkeypatch.setattr(Completion, "report", lost)
    failing = {"events": [{"kind": "rank", "number": 1, "at_step": 6}], "detect": 0, "restart": 0}
    wanted = saving(asynchronous=is_behind).model_copy(update={"failures": scenario(failures=failing).failures})
    done = run(on_disk(wanted, tmp_path), engine="local", root=tmp_path, out="run", reporter=Heard())
    assert done.result.failures is not None
    there = search(open_store(str(tmp_path / "kept")))
    assert (len(there.complete), there.passed) == (8, {})


def clocked(data: str = "data", steps: int = 60, **sections: Any) -> Scenario:
    """Give steps of 10 ms, and a checkpoint after the first one in each interval of 45 ms."""
    wanted = saving(data, steps, every={"seconds": "45 ms"})
    return wanted.model_copy(update={
        "train": scenario(train={"compute": "10 ms", "warmup_steps": 0}).train,
        **{name: getattr(scenario(**{name: section}), name) for name, section in sections.items()},
    })  # fmt: skip


def test_by_the_clock_every_third_checkpoint_is_full() -> None:
    done = simulated(clocked("model://x"))
    saved = states(done)
    assert len(saved) > 2 * EVERY
    assert [saved[step] for step in sorted(saved)] == [[*HALVES[n % EVERY == 0]] for n in range(len(saved))]


@pytest.mark.parametrize("newest", [1, 2, 3])
def test_by_the_clock_a_run_that_lost_a_rank_reads_its_chain(newest: int, tmp_path: Path) -> None:
    undisturbed = sorted(states(simulated(clocked("model://x"))))
    failing = {"events": [{"kind": "rank", "number": 1, "at_step": undisturbed[newest] + 2}], "detect": 0, "restart": 0}
    wanted = clocked("model://x", failures=failing)
    here, there = simulated(wanted), run_locally(on_disk(clocked(failures=failing), tmp_path), tmp_path)
    for result in (here, there):
        assert result.ledger.even
        before = sorted({row["step"] for row in result.rows("write", attempt=0, rank=0)})
        loads = [(row["step"], row["bytes"]) for row in result.rows("load", rank=0)]
        read = [*Incremental(**CHANGED).chain(before.index(loads[-1][0]))]
        assert loads == [(before[n], HALVES[n % EVERY == 0][0]) for n in read]
        again = result.rows("write", attempt=1, rank=0)
        steps = sorted({row["step"] for row in again})
        sizes = {row["step"]: row["bytes"] for row in again}
        assert [sizes[step] for step in steps] == [
            HALVES[n % EVERY == 0][0] for n in range(read[-1] + 1, read[-1] + 1 + len(steps))
        ]
    assert [step for step, _ in [(row["step"], 0) for row in here.rows("load", rank=0)]][-1] == undisturbed[newest]
    store = open_store(str(tmp_path / "kept"))
    for manifest in search(store).complete:
        assert chain(store, manifest)[0].fraction == 1, "each chain is whole, with those of the second attempt too"


def test_by_the_clock_full_and_increments_are_told_apart_by_their_bytes(tmp_path: Path) -> None:
    wanted = on_disk(clocked(), tmp_path)
    done = run(wanted, engine="local", root=tmp_path, out="run", reporter=Heard())
    spans = done.spans()
    number = len(spans[spans.name == "manifest"])
    shown = Shown(RunDirectory(str(tmp_path / "run")).slices(), plan_of(wanted, modelled=False))
    assert len(shown.checkpoints) == 2 * -(-number // EVERY)


def test_pytorch_alone_loads_an_increment_of_dcp(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    first = ran(tmp_path, "run", engine="dcp")
    assert first.result.ledger is not None
    for number in (3, 4):
        sizes = dict(zip(("shard-00000.bin", "shard-00001.bin"), HALVES[number % EVERY == 0], strict=True))
        parts = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sizes.items()}
        with pytest.warns(UserWarning, match="single process"):
            checkpoint.load(parts, checkpoint_id=tmp_path / "kept" / folder(number))
        assert all(part.any() for part in parts.values())
    again = ran(tmp_path, "again", engine="dcp", restore=folder(5), every={"steps": 8})
    assert {number for _, number in loaded(again.spans())} == {3, 4, 5}


def test_phases_write_and_read_chains(tmp_path: Path) -> None:
    wanted = saving(phases={"writes": 5, "reads": 5}, every="none")
    for result in (simulated(wanted), run_locally(on_disk(wanted, tmp_path), tmp_path)):
        assert states(result) == {n: [*HALVES[n % EVERY == 0]] for n in range(5)}
        loads = [row["step"] for row in result.rows("load", rank=0)]
        assert loads == [0, 0, 1, 0, 1, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ({"incremental": {"fraction": 1, "full_every": 2}}, "checkpoint.incremental.fraction=1: must be a number"),
        ({"incremental": {"fraction": 0.5, "full_every": 1}}, "full_every=1: must be a whole number of at least 2"),
        ({"incremental": {"fraction": 0.5}}, "checkpoint.incremental.full_every: is required and missing"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(checkpoint: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        saving(**checkpoint)
    assert len(str(refused.value).splitlines()) == 1


def test_increments_that_are_never_written_are_said() -> None:
    note = "checkpoint.incremental: the run has 1 checkpoints, and the first checkpoint is full"
    assert note in checks.idle(saving(every={"steps": 8}))
    assert not [note for note in checks.idle(saving()) if "incremental" in note]


def test_calibration_takes_the_full_ones(root: Path) -> None:
    wanted = saving()
    shown = Shown(RunDirectory(str(root / "run")).slices(), plan_of(wanted, modelled=False))
    assert len(shown.checkpoints) == 2 * 3, "numbers 0, 3 and 6 of two ranks"
    costs = wanted.charges.model_copy(update={"checkpoint": 2.0, "checkpoint_bytes": float(FULL)})
    plain = simulated(saving("model://x"))
    slower = simulated(saving("model://x").model_copy(update={"costs": costs}))
    for number in range(8):
        before, after = (
            {row["rank"]: row["duration_ns"] for row in each.rows("checkpoint", step=number)}
            for each in (plain, slower)
        )
        assert after[0] - before[0] == pytest.approx(2e9 * (1.0 if number % EVERY == 0 else 0.1), rel=1e-6)


@pytest.mark.parametrize(("broken", "usable"), [(7, 6), (6, 5), (5, 7)])
def test_a_run_that_is_resumed_passes_a_broken_chain_over(broken: int, usable: int, root: Path) -> None:
    (root / "kept" / folder(broken) / "shard-00000.bin").unlink()
    plan, heard = plan_of(saving(), modelled=False), Heard()
    run_id = json.loads((root / "run" / "run.json").read_text())["run_id"]
    chains = {number: Incremental(**CHANGED).chain(number) for number in (7, 6, 5)}
    marks = [Mark(number, tuple(replace(t, chain=chains[number]) for t in plan.tallies())) for number in chains]
    found, durable = _usable(plan, marks, str(root), True, heard, run_id)
    assert found is not None
    assert found == durable
    assert found.number == usable
    assert len(heard.said) == 7 - usable


def test_a_replay_draws_an_increment_s_time_from_those_of_increments(tmp_path: Path) -> None:
    model = {"first_byte": 0, "connection_bandwidth": "100 kB/s", "bandwidth": "1 GB/s"}
    plain = saving("model://x", writers="rank_zero", every={"steps": 2})
    wanted = plain.model_copy(update={"storage": scenario(storage__model=model).storage})
    # 200 ms of compute hide the reads, and a full checkpoint takes 100 ms
    wanted = wanted.model_copy(update={"train": scenario(train={"compute": "200 ms", "warmup_steps": 0}).train})
    answer = explain(simulate(wanted, out=tmp_path / "run").path)
    assert answer.simulated is not None
    (unread,) = (row for row in answer.simulated.changes if row.change == "read = 0")
    assert unread.au == pytest.approx(answer.simulated.au, rel=0.03), "four checkpoints, of which 0 and 3 are full"
    assert unread.au is not None
    assert unread.au < 0.95
