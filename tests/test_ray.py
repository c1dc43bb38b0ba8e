"""The same runs on a real Ray: the order, the books, and what happens when a process is killed in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pages_of_files import came_from_the_device

from rayio import storage
from rayio.data.formats.sample import Place, check
from rayio.data.sampler import sample_digest
from rayio.engines.ray.actors import group, servers, shells
from rayio.engines.ray.cluster.local_ray import PRIORITY
from rayio.engines.ray.placement import actors
from rayio.errors import ClusterError, DataError, RunError, StorageError
from rayio.model.manifest import search
from rayio.model.planning import plan_of
from rayio.place import Where, batch_id
from rayio.records.running import Live
from rayio.report.explain import explain
from rayio.reporter import Reporter
from rayio.scenario import derive
from rayio.scenario.write import to_yaml
from rayio.session import Run, generate, run
from scenarios import Outcome, scenario, simulated

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.filterwarnings("default")]


def delivered(done: Run, rank: int) -> list[int]:
    spans = done.spans()
    waits = spans[(spans["name"] == "data_wait") & (spans["rank"] == rank)].sort_values("start_ns")
    return [int(link) for link in waits["link"]]


class Killer(Reporter):
    """Kills an actor's process, once, when the run is under way.

    What it sees of a run is about a second old, on a busy machine more: runs last so long that much is left to do.
    """

    def __init__(self, kind: str, after_steps: int = 4) -> None:
        self.kind = kind
        self.after_steps = after_steps
        self.said: list[str] = []
        self.pids: dict[str, int] = {}
        self.killed: str | None = None
        self.lives: list[Live] = []

    def progress(self, live: Live) -> None:
        self.lives.append(live)

    def say(self, text: str) -> None:
        self.said.append(text)

    def live(self, text: str, share: float | None = None) -> None:
        self.pids = self.pids or _pids()
        if self.killed is None and int(text.split("/")[0]) >= self.after_steps:
            name, pid = next((n, p) for n, p in self.pids.items() if n.startswith(self.kind))
            os.kill(pid, signal.SIGKILL)
            self.killed = name


def _pids() -> dict[str, int]:
    import ray

    named = [n for n in ray.util.list_named_actors(all_namespaces=True) if n["namespace"].startswith("rayio-")]
    hosts = [n for n in named if n["name"].startswith(("reader", "queue", "rank", "checkpoint", "barrier"))]
    asked = [ray.get_actor(n["name"], namespace=n["namespace"]).ready.remote() for n in hosts]
    return {told["name"]: told["pid"] for told in ray.get(asked)}


def real(**overrides: Any) -> Any:
    return scenario(dataset__path="data", dataset__sample_bytes="20 kB", **overrides)


#: One rank, one worker and no barrier, in few processes: each takes Ray a second or two of a processor to start.
SINGLE: dict[str, Any] = {
    "cluster__ranks_per_node": 1, "loader__num_workers": 1, "dataset__num_files": 24, "train__sync": "none",
}  # fmt: skip


def reads_in_order(done: Run) -> int:
    """Hold every worker to reading its batches in their order; say how many it were."""
    reads = done.spans().query("name == 'read'").sort_values("start_ns")
    for (worker, epoch), steps in reads.groupby(["index", "epoch"])["step"]:
        assert steps.is_monotonic_increasing, f"reader {worker}, epoch {epoch}"
    return len(reads)


@pytest.mark.slow
def test_every_worker_reads_its_batches_in_order(tmp_path: Path) -> None:
    # Ray starts calls of an async actor in whatever order they come through: of these, two in a hundred too early.
    many = real(**SINGLE | {
        "loader__num_workers": 2, "loader__prefetch_factor": 8, "loader__decode": "10 ms", "train__epochs": 3,
        "train__compute": "2 ms", "dataset__num_files": 256,
    })  # fmt: skip
    assert reads_in_order(run(many, root=tmp_path)) == 3 * 128


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"loader__num_workers": 1}, id="static", marks=pytest.mark.slow),
        pytest.param({"cluster__transport": "ray"}, id="calls of Ray's", marks=pytest.mark.slow),
        pytest.param(
            {"cluster__transport": "ray", "loader__queue": "in_rank", "loader__num_workers": 1},
            id="calls of Ray's, a queue in its rank",
            marks=pytest.mark.slow,
        ),
        pytest.param({"loader__num_workers": 0}, id="no workers", marks=pytest.mark.slow),
        pytest.param(
            {"loader__in_order": False, "loader__num_workers": 3, "cluster__roles_per_actor": 6},
            id="packed, out of order",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "loader__assignment": "dynamic",
                "loader__partition": "strided",
                "loader__shuffle": "none",
                "loader__worker": "thread",
                "loader__decode": {"kind": "decompress", "ratio": 3, "rate": "50 MB/s"},
                "train__evaluate": {"compute": "3 ms", "every": {"steps": 5}},
                "dataset__eval": {"num_files": 13},
                "cluster__roles_per_actor": 4,
            },
            id="packed, dynamic, threads that inflate, evaluations",
        ),
    ],
)
def test_ray_delivers_what_the_virtual_clock_delivers(tmp_path: Path, overrides: dict[str, Any]) -> None:
    wanted = real(**overrides)
    deliver_the_same(run(wanted, root=tmp_path), simulated(wanted))


def deliver_the_same(there: Run, here: Outcome) -> None:
    """Hold a run on Ray to the batches, the books and the readers of its simulation."""
    loader = here.scenario.loader
    for rank in range(here.plan.world_size):
        ours, theirs = here.delivered(rank), delivered(there, rank)
        if loader.in_order:
            assert theirs == ours
        assert sorted(theirs) == sorted(ours)
    if loader.assignment == "static" and loader.in_order:
        assert reads_in_order(there) > 0
    books = here.ledger.as_dict()
    assert there.result["ledger"] == books
    assert there.exit_code == 0
    readers = {actor["name"] for actor in there.directory.info["actors"] if actor["name"].startswith("reader")}
    assert readers == {actor.name for actor in actors(here.plan, "reader")}


class Looking(Reporter):
    """Looks at what the queue of rank 0 has ready, until it saw some and its reader has used memory again."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, int, int, bytes]] = []
        self.reused = False

    def live(self, text: str, share: float | None = None) -> None:
        import ray

        if (self.reused and self.ready) or int(text.split("/")[0]) < 8:
            return
        named = ray.util.list_named_actors(all_namespaces=True)
        (space,) = {n["namespace"] for n in named if n["name"] == "queue-0" and n["namespace"].startswith("rayio-")}

        def ask(name: str, function: Any) -> Any:
            return ray.get(ray.get_actor(name, namespace=space).__ray_call__.remote(function))

        def ready(queue: Any) -> list[tuple[int, int, int, Any]]:
            found = [(b.epoch, b.step, b.digest, b.payload) for b in queue._queues[0, False].state.ready.values()]
            look = queue.arenas.look
            return [
                (*at, look(bytes_.piece).tobytes() if hasattr(bytes_, "piece") else bytes_) for *at, bytes_ in found
            ]

        found = ask("queue-0", ready)  # in one call: memory that is shared may be used again after it
        self.ready += [
            (epoch, step, digest, payload if isinstance(payload, bytes) else ray.get(payload[0])[payload[1]].tobytes())
            for epoch, step, digest, payload in found
        ]

        def reused(reader: Any) -> bool:
            """With Ray's calls memory comes back before the next batch; what is shared, as that is asked for."""
            buffers = reader.wiring.loading.buffers
            cut = (
                buffers.arena._cut // len(next(iter(buffers._lent.values())).memory) if hasattr(buffers, "arena") else 0
            )
            return bool(buffers.num_free or 0 < cut <= reader.wiring.loading.read_cpu.batches // 2)

        self.reused = self.reused or ask("reader-0-0", reused)


@pytest.mark.parametrize("transport", ["auto", pytest.param("ray", marks=pytest.mark.slow)])
def test_readers_use_memory_again_and_what_waits_in_the_queue_keeps_the_planned_bytes(
    tmp_path: Path, transport: str
) -> None:
    wanted = real(
        train__compute="40 ms", train__epochs=6, cluster__ranks_per_node=1, train__sync="none",
        cluster__transport=transport,
    )  # fmt: skip
    looking = Looking()
    done = run(wanted, root=tmp_path, reporter=looking)
    assert done.exit_code == 0
    assert looking.reused, "nothing was given back"
    loading = plan_of(wanted, modelled=False).loading()
    assert looking.ready
    for epoch, step, digest, payload in looking.ready:
        batch, ids, start = loading.of(Where(0, epoch, step)).batch, [], 0
        for sample, nbytes in zip(batch.samples.tolist(), batch.nbytes.tolist(), strict=True):
            here = memoryview(payload)[start : start + nbytes]
            ids.append(check(here, wanted.seed, Place("object store", sample, 0)))
            start += nbytes
        assert start == len(payload)
        assert sample_digest(epoch, 0, step, np.array(ids)) == digest


#: Of a run in which somebody is killed: 120 steps of 60 ms. On a busy machine half are over before it is known that the
#: first are.
EPOCHS = 10


def killed_run(tmp_path: Path, kind: str, **overrides: Any) -> tuple[Run, Killer]:
    killer = Killer(kind)
    wanted = real(train__compute="60 ms", train__epochs=EPOCHS, loader__decode="10 ms", **overrides)
    return run(wanted, root=tmp_path, reporter=killer), killer


@pytest.mark.parametrize(
    ("kind", "ranks", "overrides"),
    [
        ("reader-0-1", 1, {"loader__queue": "in_rank", "train__sync": "none"}),
        *(  # by default tests/test_failures_ray.py kills one of each kind
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("barrier", 2, {"loader__num_workers": 0}),  # ranks that read for themselves are fewer actors
                ("reader-0-1", 2, {}),
                ("reader-0-1", 2, {"cluster__transport": "ray"}),
                ("reader-0-1", 2, {"cluster__transport": "ray", "loader__queue": "in_rank"}),
                ("queue-1", 2, {}),
                ("queue-1", 2, {"cluster__transport": "ray"}),
            )
        ),
    ],
)
def test_a_killed_process_is_started_again_and_the_books_are_even(
    tmp_path: Path, kind: str, ranks: int, overrides: dict[str, Any]
) -> None:
    done, killer = killed_run(tmp_path, kind, cluster__ranks_per_node=ranks, dataset__num_files=24 * ranks, **overrides)
    assert killer.killed == kind
    assert done.result["ledger"]["even"]
    for rank in range(ranks):
        assert delivered(done, rank) == [batch_id(rank, e, s) for e in range(EPOCHS) for s in range(12)]
    assert [r["actor"] for r in done.directory.info["restarts"]] == [kind]
    assert any(text.startswith(f"{kind} died and was started again") for text in killer.said)
    spans = done.spans()
    assert spans[spans["name"] == "lost"]["role"].tolist() == [kind.split("-")[0]]
    explained = explain(done.path, simulate=False)
    assert any(note.startswith(f"{kind} died and was started again") for note in explained["notes"])
    outage = next(row["seconds"] for row in explained["verdict"]["table"] if row["cause"] == "outage")
    assert (outage > 0) == (kind == "barrier")
    told, books = killer.lives, done.result["ledger"]
    assert [live.restarts for live in (told[0], told[-1])] == [0, 1]
    counted = [live.samples for live in told if live.samples is not None]
    assert 0 < counted[-1] <= books["delivered_samples"]
    assert counted == sorted(counted)
    readers = [live.queues.readers for live in told if live.queues is not None]  # of those who have told so far
    assert max(readers, default=0) == (0 if "loader__num_workers" in overrides else 2 * ranks)


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("queue-0", 1), *(pytest.param(kind, 2, marks=pytest.mark.slow) for kind in ("reader-0-0..0-1", "queue-1"))],
)
def test_killed_threads_and_queues_do_no_harm_to_evaluations_and_last_batches(
    tmp_path: Path, kind: str, ranks: int
) -> None:
    files, eval_files = {1: (25, 5), 2: (51, 11)}[ranks]
    done, killer = killed_run(
        tmp_path, kind, loader__worker="thread", loader__drop_last=False, dataset__num_files=files,
        train__evaluate={"compute": "30 ms", "every": {"steps": 4}}, dataset__eval={"num_files": eval_files},
        cluster__ranks_per_node=ranks, train__sync="none" if ranks == 1 else "barrier",
    )  # fmt: skip
    assert killer.killed == kind
    ledger = done.result["ledger"]
    assert ledger["even"]
    # 25 and 26 samples are 13 steps each; an evaluation of 5 and 6 samples, 3 steps each, after every 4
    rounds = 13 * EPOCHS // 4
    delivered = ranks * (EPOCHS * 13 + rounds * 3), EPOCHS * files + rounds * eval_files
    assert (ledger["delivered_steps"], ledger["delivered_samples"]) == delivered
    assert done.result["evaluation"]["rounds"] == rounds
    assert [r["actor"] for r in done.directory.info["restarts"]] == [kind]


@pytest.mark.slow  # by default tests/test_checkpointing_behind.py has a writer come for one
@pytest.mark.parametrize(
    ("how", "number"),
    [({}, 1), ({"writers": "sharded", "asynchronous": True}, 2)],
    ids=str,
)
def test_a_killed_checkpoint_writer_writes_its_shard_again(how: dict[str, Any], number: int, tmp_path: Path) -> None:
    saved = {"every": {"steps": 2}, "path": "ck", "model": {"bytes": "4 MB"}, "request_bytes": "64 KiB", **how}
    done, killer = killed_run(tmp_path, "checkpoint_writer", checkpoint=saved, loader__num_workers=0)
    assert killer.killed is not None
    assert killer.killed.startswith("checkpoint_writer-")  # whichever of them Ray started first
    assert done.result["ledger"]["even"]
    files = [p for p in (tmp_path / "ck").rglob("*") if p.is_file()]
    assert len([p for p in files if p.suffix == ".bin"]) == 6 * EPOCHS * number
    assert {p.stat().st_size for p in files if p.suffix == ".bin"} == {4_000_000 // number}
    there = search(storage.open(tmp_path / "ck"))
    assert (len(there.complete), there.passed) == (6 * EPOCHS, {}), (
        "the writer that came lacks reports to its predecessor"
    )


def test_parquet_is_read_and_checkpoints_are_written_behind_by_actors(tmp_path: Path) -> None:
    shape = {"kind": "transformer", "layers": 3, "hidden": 64, "ffn": 128, "vocabulary": 999, "heads": 8}
    saved = {"every": {"steps": 4}, "path": "ck", "model": shape, "writers": "parallel", "asynchronous": True}
    wanted = real(
        train__parallelism={"pipeline": 2},
        dataset__format="parquet", dataset__samples_per_file=6, dataset__row_group=3, dataset__columns=4,
        dataset__read_columns=3, dataset__compression="zstd", loader__shuffle="file", checkpoint=saved,
        storage__page_cache="drop", cluster__roles_per_actor=4,
    )  # fmt: skip
    done = run(wanted, root=tmp_path)
    assert done.result["ledger"]["even"]
    came_from_the_device(done)
    here = simulated(wanted)
    spans = done.spans()
    for name in ("read", "write"):
        found = spans[spans["name"] == name]
        asked = sorted(zip(found["batch"], found["index"], found["bytes"], found["requests"], strict=True))
        assert asked == sorted((r["batch"], r["index"], r["bytes"], r["requests"]) for r in here.rows(name))
    snapshots = spans[spans["name"] == "snapshot"]
    assert sorted(snapshots["bytes"]) == sorted(row["bytes"] for row in here.rows("snapshot"))
    lives, writes = (spans[spans["name"] == name] for name in ("life", "write"))
    ranks = lives[lives["role"] == "rank"]
    assert (ranks["start_ns"] + ranks["duration_ns"]).max() >= (writes["start_ns"] + writes["duration_ns"]).max()
    sizes = [path.stat().st_size for path in (tmp_path / "ck").rglob("*.bin")]
    saves = derive.num_checkpoints(wanted)
    assert len(sizes) == saves * derive.checkpoint_files(wanted) == saves * 2 * 2, "a model and an optimizer each"
    assert sum(sizes) == saves * derive.checkpoint_bytes(wanted)


@pytest.mark.slow  # by default a damaged checkpoint ends a run on Ray
def test_what_cannot_be_written_behind_ends_the_run_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ck" / "epoch-0000-step-00000003" / "shard-00001.bin").mkdir(parents=True)
    saved = {"every": {"steps": 4}, "path": "ck", "model": {"bytes": 900}, "writers": "sharded", "asynchronous": True}
    with pytest.raises(StorageError, match=r"shard-00001\.bin: a folder is in the place of this file") as caught:
        run(real(checkpoint=saved, loader__num_workers=0, cluster__roles_per_actor=2), root=tmp_path, out="broken")
    assert "\n" not in str(caught.value)
    assert Run.open(tmp_path / "broken").exit_code == 2


def test_a_run_on_ray_restores_what_a_run_in_this_process_saved_and_finds_a_damaged_byte(tmp_path: Path) -> None:
    saved = {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": "4 MB"}, "writers": "sharded", "fsync": False}
    how: dict[str, Any] = {"loader__num_workers": 0, "cluster__roles_per_actor": 2, "train__sync": "none"}
    run(real(checkpoint=saved, **how), engine="local", root=tmp_path, out="saved")
    again = saved | {"restore": "newest", "every": {"epochs": 9}}
    done = run(real(checkpoint=again, **how), root=tmp_path, out="restored")
    spans = done.spans()
    for name, role in (("restore", "rank"), ("load", "checkpoint_writer"), ("verify", "checkpoint_writer")):
        rows = spans[spans["name"] == name]
        assert {*rows["role"]} == {role}
        assert sorted(rows["bytes"]) == [2_000_000, 2_000_000]
    assert done.result["ledger"]["even"]
    shard = max((tmp_path / "ck").iterdir()) / "shard-00001.bin"
    content = bytearray(shard.read_bytes())
    content[1_500_000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=r"shard-00001\.bin: byte 1500000 is not what was written there"):
        run(real(checkpoint=again, **how), root=tmp_path, out="damaged")


@pytest.mark.slow  # by default in one process, tests/test_checkpoint_clock.py
def test_on_ray_pytorch_saves_by_the_clock_after_the_same_steps_on_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    saved = {
        "every": {"seconds": "40 ms"}, "path": "ck", "model": {"bytes": 4001}, "writers": "sharded", "engine": "dcp"
    }  # fmt: skip
    how: dict[str, Any] = {
        "loader__num_workers": 0, "cluster__roles_per_actor": 2,
        "train__compute": {"kind": "uniform", "low": "2 ms", "high": "20 ms"},
    }  # fmt: skip
    done = run(real(checkpoint=saved, **how), root=tmp_path, out="saved")
    spans = done.spans()
    steps = spans[spans["name"] == "checkpoint"].groupby("rank")[["epoch", "step"]].apply(lambda at: at.values.tolist())
    assert len(steps) == 2
    assert steps[0] == steps[1] != []
    there = search(storage.open(tmp_path / "ck"))
    assert (len(there.complete), there.passed) == (len(steps[0]), {})
    again = run(real(checkpoint=saved | {"restore": "newest"}, **how), engine="local", root=tmp_path, out="restored")
    restored = again.spans()
    assert sorted(restored[restored["name"] == "verify"]["bytes"]) == [2000, 2001]


def test_a_killed_rank_ends_the_run_in_one_line_and_leaves_it_readable(tmp_path: Path) -> None:
    killer = Killer("rank-1", 30)  # it has sent spans by then
    wanted = real(train__compute="60 ms", train__epochs=EPOCHS, loader__num_workers=0)
    with pytest.raises(RunError, match="rank-1 died") as caught:
        run(wanted, root=tmp_path, out="broken", reporter=killer)
    assert "\n" not in str(caught.value)
    left = Run.open(tmp_path / "broken")
    assert left.exit_code == 2
    assert left.result["error"] == str(caught.value)
    assert left.result["ledger"]["even"] is None
    books, spans = left.result["ledger"], left.spans()
    assert 0 < books["delivered_steps"] < books["planned_steps"]
    there = spans[spans["name"] == "data_wait"].groupby("rank").size()
    assert there[1] > 0
    assert there.sum() <= books["delivered_steps"] <= there.sum() + 1, "rank-1 counts too, as far as its spans tell"
    assert books["delivered_samples"] == 2 * books["delivered_steps"]
    assert "1 of 2 ranks did not answer at the end: their samples are counted from their spans" in left.result["notes"]


@pytest.mark.parametrize("format", ["npz", *(pytest.param(f, marks=pytest.mark.slow) for f in ("hdf5", "tfrecord"))])
def test_a_corrupted_file_ends_the_run_with_file_and_sample(format: str, tmp_path: Path) -> None:
    wanted = real(**SINGLE, dataset__format=format)
    generate(wanted, root=tmp_path)
    victim = sorted((tmp_path / "data").rglob(f"*.{format}"))[5]
    bytes_ = bytearray(victim.read_bytes())
    bytes_[len(bytes_) // 2] ^= 0xFF
    victim.write_bytes(bytes_)
    with pytest.raises(DataError, match=victim.name) as caught:
        run(wanted, root=tmp_path, out="bad")
    assert "\n" not in str(caught.value)
    assert "sample" in str(caught.value)
    assert Run.open(tmp_path / "bad").result["exit_code"] == 2


def test_ctrl_c_leaves_a_readable_run(tmp_path: Path) -> None:
    class Interrupter(Reporter):
        def live(self, text: str, share: float | None = None) -> None:
            if int(text.split("/")[0]) >= 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            real(**SINGLE | {"loader__num_workers": 0}, train__compute="60 ms"),
            root=tmp_path, out="cut", reporter=Interrupter(),
        )  # fmt: skip
    left = Run.open(tmp_path / "cut")
    assert left.exit_code == 130
    assert left.result["ledger"]["delivered_steps"] > 0
    assert left.result["au"] is None or 0 < left.result["au"] <= 1


@pytest.mark.slow
def test_ray_and_the_virtual_clock_agree_on_utilisation(tmp_path: Path) -> None:
    wanted = scenario(
        train__compute={"kind": "normal", "mean": "50 ms", "stdev": "2 ms"},
        loader__decode="20 ms",
        loader__num_workers=1,
        dataset__num_files=96,
        storage__model="nvme",
    )
    here = run(wanted, engine="virtual", root=tmp_path)
    assert here.au is not None
    off = 1.0
    for _ in range(3):  # a machine that is busy with other work is no fault of the engine
        there = run(wanted, root=tmp_path).au
        assert there is not None
        off = abs(there - here.au)
        if off <= 0.05:
            break
    assert off <= 0.05
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"], "modelled storage needs no files"


LATE = r"of 3 actors have not started within 0\.001 s \(cluster\.start_deadline\): ((collector|rank-0|storage-0),? ?)+$"


def test_actors_that_do_not_start_in_time_are_named(tmp_path: Path) -> None:
    wanted = scenario(**SINGLE | {"loader__num_workers": 0}, cluster__start_deadline="1 ms")
    with pytest.raises(ClusterError, match=LATE):
        run(wanted, root=tmp_path)


def on_two_nodes(root: Path, *more: str) -> dict[str, Any]:
    """Run tests/two_nodes.py; give what it prints."""
    environment = {"PYTHONPATH": "", **os.environ, "HOME": str(root), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, str(Path(__file__).with_name("two_nodes.py")), str(root), *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.slow  # by default tests/test_placement.py and test_trace_clocks.py check parts of it
def test_emulated_nodes_are_spread_over_the_nodes_of_the_cluster(tmp_path: Path) -> None:
    told = on_two_nodes(tmp_path)
    where = told["where"]
    assert told["nodes"] == 2
    assert where["rank-0"] != where["rank-1"]
    assert where["queue-0"] == where["rank-0"]
    assert [where[f"reader-0-{w}"] == where["rank-0"] for w in (0, 1)] == [True, False]
    assert told["ledger"]["even"] is True
    assert (told["exit"], "error" in told) == (0, False)
    assert told["trace"]["recorded"] == told["trace"]["stored"]
    # The other node's clock is months away and two percent fast: ranks begin together, and the drift is reported.
    (number, elsewhere), (_, here) = sorted(told["clocks"].items(), key=lambda node: node[1]["boot_id"] != "elsewhere")
    assert (elsewhere["boot_id"], here["offset_ns"], "drift_ns" in here) == ("elsewhere", 0, False)
    assert elsewhere["error_ns"] < 50e6
    assert elsewhere["drift_ns"] < -elsewhere["drift_error_ns"]
    assert abs(told["began"]["0"] - told["began"]["1"]) < 1e9
    assert [note for note in told["notes"] if note.startswith(f"the clock of node {number} drifted ")]


@pytest.mark.slow
def test_a_lost_ray_node_ends_the_run_in_one_line(tmp_path: Path) -> None:
    told = on_two_nodes(tmp_path, "lose")
    lost = r"its Ray node on \S+ was lost|Ray's raylet on \S+ \(node \w+\) has ended"  # what is known first
    said = rf"rank-[01] died \(.*({lost})\); a rank is not restarted: .*"
    assert re.fullmatch(said, told["error"])
    assert told["exit"] == 2
    assert 0 < told["ledger"]["delivered_steps"] < told["ledger"]["planned_steps"]
    assert told["trace"]["stored"] > 50


def _niceness_of_workers(pid: int) -> set[int]:
    found = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if " ".join(process.cmdline()).startswith("ray::"):
                found.add(process.nice())
    return found


def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    wanted = scenario(**SINGLE | {"loader__num_workers": 0}, train__compute="50 ms", train__epochs=500)
    (tmp_path / "long.yaml").write_text(to_yaml(wanted))
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled"}
    environment.pop(PRIORITY, None)
    command = [sys.executable, "-m", "rayio", "run", "long.yaml", "--out", "cut"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said, niceness = [], set()
        for line in process.stderr:
            said.append(line)
            if "rank-steps" in line and not line.split("s  ")[1].startswith("0/"):
                niceness = _niceness_of_workers(process.pid)
                process.send_signal(signal.SIGTERM)
                break
        said += process.stderr.readlines()
        assert process.wait(timeout=60) == 130, said
    assert "Traceback" not in "".join(said)
    assert niceness == {os.nice(0)}, "what else runs on the machine would come first"
    left = Run.open(tmp_path / "cut")
    assert left.exit_code == 130
    assert left.result["ledger"]["delivered_steps"] > 0
    assert len(left.spans()) > 0


def failing(actor: type, method: str) -> type:
    """Derive an actor whose background work fails when a method is called; not by name, which its process lacks."""

    async def fails() -> None:
        raise ZeroDivisionError("behind")

    async def called(self: Any, *arguments: Any) -> Any:
        asyncio.get_running_loop().create_task(fails())
        return await getattr(actor, method)(self, *arguments)

    return type("Failing", (actor,), {method: called})


@pytest.mark.parametrize(
    ("method", "ranks", "epochs"),
    [
        ("run", 1, 100), pytest.param("flush", 1, 1, marks=pytest.mark.slow),
        pytest.param("announce", 2, 100, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_error_of_background_work_fails_the_run(
    method: str, ranks: int, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ranks == 1:
        monkeypatch.setitem(group.CLASSES, "rank", failing(shells.TrainerRank, method))
    else:
        monkeypatch.setattr(group, "BarrierActor", failing(servers.BarrierActor, method))
    wanted = scenario(
        cluster__ranks_per_node=ranks, loader__num_workers=0, dataset__num_files=24, train__compute="50 ms",
        train__epochs=epochs,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError, match="behind") as error:
        run(wanted, root=tmp_path, out=tmp_path / "broken")
    assert any("raise ZeroDivisionError" in note for note in error.value.__notes__)
    assert f"in {'rank-0' if ranks == 1 else 'barrier'}" in error.value.__notes__
    left = Run.open(tmp_path / "broken")
    assert left.exit_code == 1
    books = left.result["ledger"]
    assert (books["delivered_steps"] < books["planned_steps"]) == (epochs > 1)
