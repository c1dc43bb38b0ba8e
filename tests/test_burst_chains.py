"""A burst tier with increments and with phases: what survives, where it is read, and the bytes on both tiers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_burst import Heard, about, attempts_of, bursting, durations, files, real

from rayio.errors import RunError
from rayio.kinds import STORAGE_MODELS
from rayio.model.ledger import Tally
from rayio.model.manifest import search, spread
from rayio.model.marks import Mark, Saved
from rayio.model.planning import plan_of
from rayio.model.resuming import Keeper, read
from rayio.predict.replay import _writes
from rayio.predict.saving import learned
from rayio.predict.shown import Shown
from rayio.records.calibrated import Note
from rayio.report.text.calibration import worded
from rayio.scenario.model import Scenario
from rayio.session.execute import run
from rayio.session.resume import resume
from rayio.storage import open as open_store
from rayio.trace.run_directory import RunDirectory
from rayio.trace.slices import Slices
from scenarios import Outcome, scenario, simulated

MS = 1_000_000
EVERY = 3
CHANGED = {"fraction": 0.1, "full_every": EVERY}
#: Milliseconds in which 100 MB and an increment are drained at 1 GB/s; the tier takes a tenth.
DRAINS = [100 if number % EVERY == 0 else 10 for number in range(9)]


def chain(number: int) -> list[int]:
    return [*range(number - number % EVERY, number + 1)] if number >= 0 else []


def changing(**more: Any) -> Scenario:
    """Nine checkpoints of which every third is full, each after 20 ms of training."""
    checkpoint = {"incremental": CHANGED} | more.pop("checkpoint", {})
    return bursting(period=2, steps=18, checkpoint=checkpoint, **more)


def by_number(run: Outcome, name: str, **where: int) -> dict[int, tuple[int, int]]:
    """Return begin and end of the spans of each checkpoint, by its number; all ranks and files together."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for row in run.rows(name, **where):
        spans.setdefault(row["step"] // 2, []).append((row["start_ns"], row["start_ns"] + row["duration_ns"]))
    return {number: (min(begin for begin, _ in each), max(end for _, end in each)) for number, each in spans.items()}


def test_an_increment_takes_the_tier_and_the_drain_the_time_of_its_bytes() -> None:
    run = simulated(changing(rooms=3))
    assert durations(run, "checkpoint") == about([taken * MS // 10 for taken in DRAINS])
    assert durations(run, "drain") == about([taken * MS for taken in DRAINS])
    assert sum(row["bytes"] for row in run.rows("drain")) == 3 * 100_000_000 + 6 * 10_000_000
    assert run.ledger.even


DEATH = {"detect": "0 s", "restart": "0 s"}


@given(
    at=st.integers(1, 600), rooms=st.sampled_from([1, 1.15, 1.5, 2, 3]), kind=st.sampled_from(["rank", "node"]),
    writers=st.sampled_from(["sharded", "rank_zero"]), rate=st.sampled_from([200, 500, 2000]),
)  # fmt: skip
def test_the_newest_complete_chain_survives(at: int, rooms: float, kind: str, writers: str, rate: int) -> None:
    """A rank's death loses what is not in the tier; a node's, with its tier, what is not in storage."""
    wanted = {
        "ranks": 2, "rooms": rooms, "burst": {"drain_bandwidth": f"{rate} MB/s"}, "checkpoint": {"writers": writers},
    }  # fmt: skip
    undisturbed = simulated(changing(**wanted))
    ends = by_number(undisturbed, "write" if kind == "rank" else "drain")
    if any(abs(end - at * MS) <= MS // 2 for _, end in ends.values()):
        return  # it dies while the manifest is written, or the last rank meets the others
    failing = changing(**wanted, failures={"events": [{"kind": kind, "at": f"{at} ms"}]} | DEATH)
    if not (restarts := attempts_of(failing)):
        assert at * MS > max(end for _, end in by_number(undisturbed, "drain").values())
        return
    newest = max((number for number, (_, end) in ends.items() if end < at * MS), default=-1)
    assert restarts[0].step == 2 * (newest + 1)
    again = simulated(failing)
    parts = 1 if writers == "rank_zero" else 2
    wanted_bytes = [(number, (10_000_000 if number % EVERY else 100_000_000) // parts) for number in chain(newest)]
    loads = again.rows("load", rank=0)
    assert [(row["step"] // 2, row["bytes"]) for row in loads] == wanted_bytes
    rates = [round(row["bytes"] / row["duration_ns"]) for row in loads]  # bytes per ns: 10 of the tier, 1 of storage
    assert rates == sorted(rates), "the tier has the newest of them"
    assert {*rates} <= ({1, 10} if kind == "rank" else {1})
    waits = undisturbed.rows("drain_wait", rank=0)
    if kind == "rank" and not any(row["start_ns"] <= at * MS <= row["start_ns"] + row["duration_ns"] for row in waits):
        held, share = list[int](), int(rooms * 100_000_000) // parts
        for number, (begin, _) in by_number(undisturbed, "write", rank=0).items():
            if begin < at * MS:
                held.append(number)
                while sum(10_000_000 if each % EVERY else 100_000_000 for each in held) > share * parts:
                    del held[0]
        assert [number for number, rate in zip(chain(newest), rates, strict=False) if rate == 10] == [
            number for number in chain(newest) if number in held
        ]
    assert bool(restarts[0].is_from_burst) == (10 in rates)
    assert again.ledger.even
    needed = {*chain(newest), *range(newest + 1, 9)}
    assert needed <= {*by_number(again, "drain")}, "in the end all are in storage, but older chains"


@pytest.mark.parametrize(("at", "step"), [(320, 0), (345, 2), (365, 4)])
def test_what_of_a_chain_was_drained_after_a_restart_is_safe(at: int, step: int) -> None:
    """A full checkpoint and an increment are in the tier when a rank dies at 70 ms; then a node dies.

    They take 250 and 25 ms to drain, from the end of the restore at 81 ms on: until 331 and 356 ms.
    """
    events = [{"kind": "rank", "at": "70 ms"}, {"kind": "node", "at": f"{at} ms"}]
    wanted = changing(rooms=9, burst={"drain_bandwidth": "400 MB/s"}, failures={"events": events} | DEATH)
    first, second = attempts_of(wanted)
    assert (first.step, first.is_from_burst) == (4, True)
    assert (second.step, second.is_from_checkpoint, second.is_from_burst) == (step, step > 0, False)


def test_a_chain_of_which_a_rank_has_a_part_in_neither_tier_is_not_used() -> None:
    """Rank 0 has drained the full checkpoint, which then left its tier; rank 1 has not, so it is complete nowhere."""
    saved = Saved(2)
    for number, numbers in enumerate([(0,), (0, 1)]):
        for rank in (0, 1):
            saved.add(number, Tally(rank, chain=numbers), True)
    held = saved.survivor(is_tier_lost=False)
    assert held is not None
    assert (held.number, held.chain) == (1, (0, 1))
    assert held.in_burst == held.undrained == {0, 1}
    saved.add(0, Tally(0, chain=(0,)))
    saved.add(0, None, True)
    assert saved.survivor(is_tier_lost=False) is None


def test_rank_zero_alone_drains_again_what_all_ranks_go_on_from() -> None:
    events = [{"kind": "rank", "at": "500 ms"}, {"kind": "node", "at": "1200 ms"}]
    failures = {"events": events} | DEATH
    burst = {"drain_bandwidth": "200 MB/s"}
    wanted = bursting(rooms=3, ranks=2, burst=burst, checkpoint={"writers": "rank_zero"}, failures=failures)
    first, second = attempts_of(wanted)
    assert (first.step, first.is_from_burst) == (30, True)
    assert (second.step, second.is_from_burst) == (30, False)


@pytest.mark.parametrize(("rooms", "in_tier"), [(2, {2, 3}), (1, {3}), (4, {0, 1, 2, 3})])
def test_phases_read_from_the_tier_what_it_holds(rooms: int, in_tier: set[int]) -> None:
    run = simulated(bursting(rooms=rooms, ranks=2, checkpoint={"every": None, "phases": {"writes": 4, "reads": 4}}))
    taken = {row["step"]: row["duration_ns"] for row in run.rows("load", rank=0)}
    assert taken == about({number: (5 if number in in_tier else 50) * MS for number in range(4)})
    assert durations(run, "drain", rank=0) == about([50 * MS] * 4)
    begun = min(row["start_ns"] for row in run.rows("load"))
    assert max(row["start_ns"] + row["duration_ns"] for row in run.rows("drain")) <= begun
    assert sum(row["bytes"] for row in run.rows("restore")) == 4 * 100_000_000


def test_phases_of_other_ranks_files_read_from_storage() -> None:
    phases = {"writes": 2, "reads": 2, "shift": 1}
    run = simulated(bursting(rooms=4, ranks=2, checkpoint={"every": None, "phases": phases}))
    assert durations(run, "load", rank=0) == about([50 * MS] * 2)


def test_on_files_phases_and_increments_have_their_bytes_on_both_tiers(tmp_path: Path) -> None:
    checkpoint = {"every": None, "phases": {"writes": 5, "reads": 5}, "incremental": CHANGED}
    done = run(real(checkpoint=checkpoint), engine="local", root=tmp_path, out="run")
    assert done.result.exit_code == 0
    kept, fast = files(tmp_path / "kept"), files(tmp_path / "fast")
    assert fast.items() <= kept.items()
    assert {Path(name).parent.name[-1] for name in fast} == {"1", "2", "3", "4"}, (
        "80 kB hold two increments and a full one"
    )
    sizes = [20_000 if number % EVERY == 0 else 2_000 for number in range(5)]
    assert {name: len(content) for name, content in kept.items()} == {
        f"epoch-0000-step-0000000{number}/shard-0000{rank}.bin": sizes[number] for number in range(5) for rank in (0, 1)
    }
    loads = done.spans().query("name == 'load' and rank == 0").sort_values("start_ns")
    assert [*loads.step] == [0, 0, 1, 0, 1, 2, 3, 3, 4]
    for tier, number in (("kept", 5), ("fast", 4)):
        assert len(search(open_store(tmp_path / tier), open_store(tmp_path / "kept")).complete) == number


def test_on_files_a_killed_rank_reads_a_chain_from_both_tiers(tmp_path: Path) -> None:
    """The tier holds a full checkpoint or some increments: the full one leaves it when an increment comes."""
    wanted = real(
        burst={"capacity": "43 kB"}, checkpoint={"incremental": CHANGED | {"full_every": 4}},
        failures={"events": [{"kind": "rank", "number": 1, "at_step": 5}]} | DEATH,
    )  # fmt: skip
    done = run(wanted, engine="local", root=tmp_path, out="run")
    assert done.result.ledger is not None
    assert done.result.ledger.even
    assert done.result.failures is not None
    (restart,) = done.result.failures.attempts
    assert (restart.step, restart.is_from_burst) == (4, True)
    loads = done.spans().query("name == 'load' and rank == 1").sort_values("start_ns")
    assert [*loads.step] == [1, 3]
    kept, fast = files(tmp_path / "kept"), files(tmp_path / "fast")
    assert fast.items() <= kept.items()
    tier, storage = open_store(tmp_path / "fast"), open_store(tmp_path / "kept")
    assert len(search(storage).complete) == 4
    heard = Heard()
    saved = wanted.checkpoint
    assert saved is not None
    last = {"restore": "epoch-0000-step-00000005"}
    (links,) = [spread((tier, storage), each) for each in search(tier, storage).complete if each.step == 5]
    assert [link.step for link, _ in links] == [1, 3, 5]
    again = run(
        wanted.model_copy(update={"checkpoint": saved.model_copy(update=last), "failures": None}),
        engine="local", root=tmp_path, out="again", reporter=heard,
    )  # fmt: skip
    assert "restoring epoch-0000-step-00000005 from the burst tier" in heard.said
    assert again.result.restored is not None
    assert again.result.restored.bytes == 40_000 + 2 * 4_000
    assert {place is tier for _, place in links} == {True, False}


def broken_off(root: Path, engine: str = "local", **changed: Any) -> Path:
    """A run on files that a rank's death ended in its step 7: checkpoints follow 2, 4 and 6, and drain for 1 s each."""
    ends = {"events": [{"kind": "rank", "number": 1, "at_step": 7}], "policy": "fail", "detect": 0, "restart": 0}
    burst = {"drain_bandwidth": "20 kB/s", "capacity": "400 kB"} | changed.pop("burst", {})
    with pytest.raises(RunError, match=r"rank.1 died"):
        run(real(burst=burst, failures=ends, **changed), engine=engine, root=root, out=root / "run")
    return root / "run"


def resumed(root: Path) -> tuple[Any, dict[str, bytes], list[str]]:
    """Go on with that run; return its restart, the files in storage, and what it said."""
    heard = Heard()
    done = resume(str(root / "run"), reporter=heard)
    assert done.result.exit_code == 0
    assert done.result.ledger is not None
    assert done.result.ledger.even
    kept, fast = files(root / "kept"), files(root / "fast")
    assert fast.items() <= kept.items()
    assert len(search(open_store(root / "kept")).complete) == len({Path(name).parent for name in kept})
    assert done.result.failures is not None
    return done.result.failures.attempts[0], kept, heard.said


@pytest.mark.parametrize("incremental", [None, CHANGED])
def test_a_run_that_broke_off_goes_on_from_the_tier(incremental: dict[str, Any] | None, tmp_path: Path) -> None:
    broken_off(tmp_path, checkpoint={"incremental": incremental})
    assert not search(open_store(tmp_path / "kept")).complete, "nothing was drained"
    restart, kept, said = resumed(tmp_path)
    assert (restart.step, restart.is_from_checkpoint, restart.is_from_burst) == (6, True, True)
    assert not [line for line in said if "passed over" in line]
    (tier,) = [line for line in said if line.startswith("burst tier ")]
    assert tier.endswith("free" if incremental else "free; 2 checkpoints of this run's earlier part removed")
    steps = "1357" if incremental else "57"
    assert "".join(sorted({Path(name).parent.name[-1] for name in kept})) == steps


@pytest.mark.slow  # test_burst.py has a tier on Ray, and test_resume.py a run on Ray that goes on
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_on_ray_too_a_run_that_broke_off_goes_on_from_the_tier(tmp_path: Path) -> None:
    """Which of three is the newest complete one depends on how far rank 0 was."""
    broken_off(tmp_path, engine="ray", checkpoint={"incremental": CHANGED})
    restart, kept, _ = resumed(tmp_path)
    assert (restart.is_from_checkpoint, restart.is_from_burst) == (True, True)
    assert "".join(sorted({Path(name).parent.name[-1] for name in kept})) == "1357"


def test_checkpoints_without_training_that_broke_off_begin_again(tmp_path: Path) -> None:
    """Phases have no place to go on from: a measurement is made whole."""
    section = {"every": None, "phases": {"writes": 4, "reads": 4, "pause": "100 ms"}}
    ends = {"events": [{"kind": "rank", "number": 1, "at": 0.3}], "policy": "fail", "detect": 0, "restart": 0}
    with pytest.raises(RunError, match=r"rank.1 died"):
        run(real(checkpoint=section, failures=ends), engine="local", root=tmp_path, out=tmp_path / "run")
    heard = Heard()
    done = resume(str(tmp_path / "run"), reporter=heard)
    assert [line for line in heard.said if "the run had no complete checkpoint, so it begins again" in line]
    assert done.result.saved is not None
    assert done.result.restored is not None
    assert done.result.saved.checkpoints > done.result.restored.checkpoints == 4, "and those of the first part"


def test_without_the_newest_file_of_the_tier_it_goes_on_from_the_one_before(tmp_path: Path) -> None:
    broken_off(tmp_path)
    (tmp_path / "fast" / "epoch-0000-step-00000005" / "shard-00001.bin").unlink()
    restart, _, said = resumed(tmp_path)
    assert (restart.step, restart.is_from_burst) == (4, True)
    assert [
        line
        for line in said
        if "checkpoint epoch-0000-step-00000005 is passed over: shard-00001.bin is missing" in line
    ]


def test_without_the_tier_it_goes_on_from_storage_if_that_has_one(tmp_path: Path) -> None:
    broken_off(tmp_path, burst={"drain_bandwidth": "none", "capacity": "80 kB"})
    assert search(open_store(tmp_path / "kept")).complete
    shutil.rmtree(tmp_path / "fast")
    restart, _, _ = resumed(tmp_path)
    assert restart.is_from_checkpoint
    assert not restart.is_from_burst


def test_the_books_name_what_is_in_the_tier_alone_until_it_is_drained(tmp_path: Path) -> None:
    keeper = Keeper(RunDirectory(str(tmp_path)), 1)

    def named() -> list[tuple[int, bool]]:
        keeper.write()
        return [(mark.number, bool(mark.undrained)) for mark in read(keeper.directory, 1)[0]]

    for number in range(5):
        keeper.keep(Mark(number, (Tally(0),), frozenset({number}), frozenset({number})))
    assert named() == [(4, True), (3, True), (2, True)]
    assert not keeper.named
    keeper.keep(Mark(3, (Tally(0),)))
    assert named() == [(4, True), (3, False)]
    keeper.keep(Mark(2, (Tally(0),), frozenset({2}), frozenset({2})))
    assert named()[0] == (2, True), "after a restart from an older one, later ones are gone"


@pytest.mark.parametrize("has_tier", [True, False])
def test_a_calibration_says_that_the_tier_is_as_given(has_tier: bool) -> None:
    checkpoint = {"every": {"steps": 2}, "path": "kept", "model": {"bytes": "1 kB"}}
    wanted = bursting() if has_tier else scenario(checkpoint=checkpoint)
    shown, notes = Shown(Slices.of(simulated(wanted).spans), plan_of(wanted, modelled=True)), list[Note]()
    learned(wanted.charges, [shown], STORAGE_MODELS["nvme"], notes, is_varied=False)
    told = [note for note in map(worded, notes) if note.startswith("checkpoint.burst.model: not fitted")]
    assert len(told) == has_tier


def test_a_replay_has_the_drains_of_increments_apart() -> None:
    wanted = changing(rooms=3)
    spans = Slices.of(simulated(wanted).spans).named("write", "fsync", "serialise", "drain")
    written, increments, drains, increment_drains = _writes(spans, wanted)
    assert [*written] == pytest.approx([0.01] * 3)
    assert [*increments] == pytest.approx([0.001] * 6)
    assert [*drains] == pytest.approx([0.1] * 3, abs=1e-4)
    assert [*increment_drains] == pytest.approx([0.01] * 6, abs=1e-4)
