"""``loader.kind: torch``: PyTorch's own DataLoader behind the rank, and the same law as for our readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from datasets import on_disk
from pages_of_files import came_from_the_device
from test_engines import asked_for, deliver_the_same

import rayio
from rayio.engines.loaders import pytorch
from rayio.engines.loaders.reading import Reading
from rayio.engines.ray.placement import actors
from rayio.errors import DataError, RunError, ScenarioError
from rayio.machine import timers
from rayio.model.cpu_account import CpuAccount, ProcessCpu, StageCpu, Stopwatch
from rayio.model.kernel import WallKernel
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.predict.calibrate import calibrate
from rayio.report.explain import explain
from rayio.reporter import Reporter
from rayio.scenario.checks import contradictions, idle
from rayio.scenario.decode import Work
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session import Run
from rayio.trace.recorder import Recorder
from scenarios import run_locally, scenario, simulated

if TYPE_CHECKING:  # loading PyTorch takes seconds: only where it is used
    from rayio.engines.loaders.dataloader import DataLoaderQueue


def with_torch(**overrides: Any) -> Scenario:
    """Give a small scenario on files whose loader is PyTorch's."""
    base = {"dataset__path": "data", "loader__kind": "torch", "loader__multiprocessing_context": "fork"}
    return scenario(**{**base, "train__compute": "100 us", **overrides})


def workers() -> list[int]:
    """Give the process ids of the DataLoader workers of this process that live."""
    return [process.pid for process in multiprocessing.active_children() if process.pid is not None]


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    """Hold every test to leaving no worker behind; PyTorch waits for none that it ends."""
    yield
    for _ in range(500):
        if not workers():
            break
        time.sleep(0.01)
    assert workers() == []


def test_workers_that_stay_deliver_what_the_model_says(tmp_path: Path) -> None:
    wanted = on_disk(with_torch(loader__persistent_workers=True, loader__in_order=False), tmp_path)
    deliver_the_same(simulated(wanted), run_locally(wanted, tmp_path))


@pytest.mark.parametrize("level", ["batch", "io"])
def test_its_workers_ask_storage_for_what_our_readers_ask(tmp_path: Path, level: str) -> None:
    wanted = on_disk(with_torch(trace__level=level, loader__decode="50 us"), tmp_path)
    loader = wanted.loader.model_copy(update={"kind": "actors"})
    ours = run_locally(wanted.model_copy(update={"loader": loader}), tmp_path)
    theirs = run_locally(wanted, tmp_path)
    assert asked_for(ours) == asked_for(theirs)

    def requests(run: Any) -> list[tuple[Any, ...]]:
        return sorted((row["file"], row["offset"], row["bytes"], row["batch"]) for row in run.rows("io.read"))

    assert requests(ours) == requests(theirs)
    assert bool(requests(ours)) == (level == "io")
    slept = [row["duration_ns"] for row in theirs.rows("decode")]
    assert slept == [2 * 50_000] * 2 * 24


def test_spans_of_workers_have_their_own_processes(tmp_path: Path) -> None:
    wanted = on_disk(with_torch(train__epochs=3), tmp_path)
    pids: dict[bool, dict[int, set[int]]] = {}
    for stay in (False, True):
        keys = {"options": wanted.loader.options.model_copy(update={"persistent_workers": stay})}
        run = run_locally(wanted.model_copy(update={"loader": wanted.loader.model_copy(update=keys)}), tmp_path)
        rows = run.rows("read")
        assert {(row["role"], row["index"]) for row in rows} == {("reader", f"{r}-{w}") for r in (0, 1) for w in (0, 1)}
        assert os.getpid() not in {row["pid"] for row in rows}
        assert {row["pid"] for row in run.rows("data_wait")} == {os.getpid()}
        pids[stay] = defaultdict(set)
        for row in rows:
            pids[stay][row["epoch"]].add(row["pid"])
    assert len({pid for epoch in pids[True].values() for pid in epoch}) == 4, "persistent workers stay"
    assert len({pid for epoch in pids[False].values() for pid in epoch}) == 12, "others are new in every epoch"


def test_a_batch_is_handed_out_only_when_pytorchs_window_has_room(tmp_path: Path) -> None:
    """Step n goes to a worker when step n - prefetch_factor x num_workers was taken, and not before."""
    wanted = on_disk(with_torch(train__compute="5 ms", cluster__ranks_per_node=1, loader__prefetch_factor=2), tmp_path)
    run = run_locally(wanted, tmp_path)
    for epoch in range(2):
        handed_out = [row["start_ns"] for row in run.rows("lease", epoch=epoch)]
        waits = run.rows("data_wait", epoch=epoch)
        taken = [row["start_ns"] + row["duration_ns"] for row in waits]
        assert len(handed_out) == len(taken) == 24
        for step in range(4, 24):
            assert waits[step - 4]["start_ns"] < handed_out[step] < taken[step - 4]


def opened(root: Path, name: str, *, alone: bool = False, **overrides: Any) -> tuple[DataLoaderQueue, Plan]:
    """Make a rank's end of a DataLoader by itself."""
    from rayio.engines.loaders.dataloader import DataLoaderQueue, Settings

    plan = plan_of(on_disk(with_torch(cluster__ranks_per_node=1, **overrides), root), modelled=False)
    kernel, recorder = WallKernel(), Recorder()
    wiring = Wiring(plan, kernel, recorder, root, None, num_ranks=1)  # type: ignore[arg-type]
    stay = plan.loader.options.persistent_workers  # type: ignore[attr-defined]
    settings = Settings(plan.loader.num_workers, 2, stay, False, True, name)
    reading = Reading(plan, 0, root, kernel.anchor, is_inline=plan.loader.num_workers == 0)
    return DataLoaderQueue(
        reading, plan.steps_of(0), settings, recorder, "0", wiring.queue_env(0, evaluating=False), alone=alone
    ), plan


@pytest.mark.parametrize("name", ["fork", "forkserver", "spawn"])
def test_batches_come_as_shared_tensors_however_workers_start(tmp_path: Path, name: str) -> None:
    import torch

    queue, plan = opened(tmp_path, name, train__epochs=1, dataset__num_files=6, loader__num_workers=1)

    async def first_batches() -> list[Any]:
        try:
            return [await queue.get(Where(0, 0, step)) for step in range(3)]
        finally:
            await queue.close()

    began = threading.active_count()
    for step, delivery in enumerate(asyncio.run(first_batches())):
        assert isinstance(delivery.payload, torch.Tensor)
        assert delivery.payload.is_shared()
        assert delivery.payload.nbytes == delivery.nbytes == plan.sampler().step_bytes(0, 0, step)
        assert delivery.payload.any()
    deadline = time.monotonic() + 60
    while threading.active_count() > began + 1:  # closing waits for no thread
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


@pytest.mark.parametrize("alone", [True, False])
def test_only_a_rank_that_is_alone_takes_batches_in_place_and_only_such_as_are_ready(
    tmp_path: Path, alone: bool
) -> None:
    """Two changes of thread a step are what a bare loop does not pay; waiting must not stop the others of a process."""
    queue, plan = opened(tmp_path, "fork", alone=alone, train__epochs=2, dataset__num_files=30, loader__num_workers=2)
    steps = plan.steps_of(0)[0]
    in_place: set[tuple[int, int]] = set()
    take = queue._next

    def noted(at: Where) -> Any:
        if threading.current_thread() is threading.main_thread():
            in_place.add((at.epoch, at.step))
        return take(at)

    async def all_batches() -> list[int]:
        queue._next = noted  # type: ignore[method-assign]
        taken = []
        try:
            for epoch in range(2):
                assert not any(queue._batches.is_done(Where(0, epoch, step)) for step in range(steps))
                for step in range(steps):
                    for _ in range(2000 if step else 0):
                        if queue._batches.is_done(Where(0, epoch, step)):
                            break
                        await asyncio.sleep(0.01)
                    assert not queue._batches.is_done(Where(0, epoch, step + 4)), "beyond the window"
                    taken.append((await queue.get(Where(0, epoch, step))).step)
        finally:
            await queue.close()
        return taken

    assert asyncio.run(all_batches()) == [*range(steps)] * 2
    # an epoch's first take starts workers, its last ends them
    assert in_place == ({(epoch, step) for epoch in range(2) for step in range(1, steps - 1)} if alone else set())


class UnderWay(Reporter):
    """Does something once, beside the run, when some of its steps are done."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.acting = threading.Thread(target=act)

    def live(self, text: str, share: float | None = None) -> None:
        if self.acting.ident is None and int(text.split("/")[0]) >= 4:
            self.acting.start()


def have_gone(processes: list[psutil.Process]) -> bool:
    """Wait until processes are gone: PyTorch's workers look for theirs every five seconds."""
    return not psutil.wait_procs(processes, timeout=60)[1]


#: Workers that take so long that they are busy whenever something happens to them.
SLOW = {"loader__decode": "50 ms", "train__epochs": 50}


#: A program that starts workers, one after the other, and sends each some bytes of what it is to do, and then no more.
#: It says with which code each has ended, and on standard error that it has.
BEING_TOLD = {
    "forkserver": """
import os, sys
from multiprocessing import forkserver
forkserver.set_forkserver_preload(["rayio.engines.loaders.worker_start"])
for bytes_of_it in sys.argv[1:]:
    sentinel, told = forkserver.connect_to_new_process([])
    os.write(told, bytes.fromhex(bytes_of_it))
    os.close(told)
    os.read(sentinel, 8)  # the number of the process
    print(int.from_bytes(os.read(sentinel, 8), "little"))
    print("ended", file=sys.stderr, flush=True)
""",
    "spawn": """
import os, subprocess, sys
from multiprocessing import spawn
from rayio.engines.loaders.dataloader import _spawned_in_silence
for bytes_of_it in sys.argv[1:]:
    there, told = os.pipe()
    os.set_inheritable(there, True)
    with _spawned_in_silence():
        line = spawn.get_command_line(tracker_fd=os.dup(1), pipe_handle=there)
    worker = subprocess.Popen(line, close_fds=False)
    os.close(there)
    os.write(told, bytes.fromhex(bytes_of_it))
    os.close(told)
    print(worker.wait())
    print("ended", file=sys.stderr, flush=True)
""",
}
#: What a worker is sent of what it is to do, and what it says of that.
TOLD = {
    "nothing": (b"", ""),
    "half": (pickle.dumps({"dir": "/"}), ""),
    "a part of half": (pickle.dumps({"dir": "/", "name": "x" * 99})[:40], ""),
    "what it does not have": (b"cnobodys\nmodule\n.", "ModuleNotFoundError"),
}


@pytest.mark.parametrize("context", BEING_TOLD)
def test_a_worker_whose_rank_has_gone_before_it_began_says_nothing(context: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEING_TOLD[context], *(told.hex() for told, _ in TOLD.values())],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "1\n" * len(TOLD)
    *said, after = done.stderr.split("ended\n")
    assert after == ""
    for (name, (_, says)), words in zip(TOLD.items(), said, strict=True):
        assert (words != "") == (says != ""), f"{name}: {words}"
        assert says in words


def test_a_killed_worker_ends_the_run_in_one_line(home: Path) -> None:
    # Workers that stay: one that is killed when it has done its part of an epoch is missed in the next.
    wanted = on_disk(with_torch(**SLOW, loader__persistent_workers=True), home)
    killer = UnderWay(lambda: os.kill(workers()[0], signal.SIGKILL))
    with pytest.raises(RunError, match=r"DataLoader worker .* died \(killed by SIGKILL\)") as caught:
        rayio.run(wanted, engine="local", out="r", reporter=killer)
    killer.acting.join()
    assert "\n" not in str(caught.value)
    assert Run.open(home / "r").result["exit_code"] == 2
    assert Run.open(home / "r").result["ledger"]["delivered_steps"] > 0


def test_a_worker_that_dies_between_two_epochs_is_missed_in_the_next(tmp_path: Path) -> None:
    stay: dict[str, Any] = {"loader__persistent_workers": True, "dataset__num_files": 6, "loader__num_workers": 1}
    queue, plan = opened(tmp_path, "fork", **stay)

    async def killed_between() -> None:
        try:
            for step in range(plan.steps_of(0)[0]):
                await queue.get(Where(0, 0, step))
            os.kill(workers()[0], signal.SIGKILL)
            with pytest.raises(RunError, match=r"DataLoader worker 0 .* died \(killed by SIGKILL\)"):
                await queue.get(Where(0, 1, 0))
        finally:
            await queue.close()

    asyncio.run(killed_between())


def test_a_worker_whose_death_is_reported_late_is_named(tmp_path: Path) -> None:
    """The fork server reports deaths; while it is stopped, as on a busy machine, only the broken connection shows."""
    queue, _ = opened(tmp_path, "forkserver", dataset__num_files=24, loader__num_workers=1)

    async def killed_unnoticed() -> None:
        server = None
        try:
            await queue.get(Where(0, 0, 0))
            for _ in range(6000):
                if queue._batches.is_done(Where(0, 0, 1)):  # the batch's memory is still the worker's
                    break
                await asyncio.sleep(0.01)
            worker = psutil.Process(queue._processes[0].pid)
            server = worker.parent()
            assert server is not None
            server.suspend()
            worker.kill()
            report = threading.Timer(1.5, server.resume)
            report.start()
            with pytest.raises(RunError, match=r"DataLoader worker 0 \(pid \d+\) died \(killed by SIGKILL\)"):
                await queue.get(Where(0, 0, 1))
            report.join()
        finally:
            if server is not None:
                server.resume()
            await queue.close()

    asyncio.run(killed_unnoticed())


@pytest.mark.parametrize("size", [pytest.param("4k", marks=pytest.mark.slow), "400k", "none"])
def test_too_little_shared_memory_is_one_line_with_the_remedy(home: Path, size: str) -> None:
    """In a mount namespace of its own, /dev/shm is tiny, or cannot be written."""
    options = "ro" if size == "none" else f"size={size}"
    command = [sys.executable, "-m", "rayio", "run", "unet3d-small", "--engine", "local", "--out", "r"]
    keys = ["dataset.num_files=28", "dataset.sample_bytes=100 kB", "loader.kind=torch", "loader.num_workers=2",
            "train.epochs=1", "train.compute=1 ms", "checkpoint=none"]  # fmt: skip
    shell = f'mount -t tmpfs -o {options} none /dev/shm || exit 77; exec "$@"'
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell, "sh", *command, *keys]
    done = subprocess.run(inside, cwd=home, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode in (1, 77) and "rayio" not in done.stderr:
        pytest.skip("this machine has no mount namespaces for users")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert "shared memory, and /dev/shm " in last
    assert "docker run --shm-size" in last
    assert "Traceback" not in done.stderr


def test_a_rank_that_reads_itself_needs_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(*_: Any) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    deliver = on_disk(with_torch(loader__num_workers=0), tmp_path)
    assert run_locally(deliver, tmp_path).rows("compute")
    with pytest.raises(RunError, match=r"shared memory, and /dev/shm is too small .* loader\.num_workers=0"):
        run_locally(on_disk(with_torch(), tmp_path), tmp_path)


def test_workers_go_with_a_rank_that_is_killed(home: Path) -> None:
    keys = SLOW | {"loader__multiprocessing_context": "forkserver", "cluster__ranks_per_node": 1}
    (home / "s.yaml").write_text(to_yaml(on_disk(with_torch(**keys), home)))
    command = [sys.executable, "-m", "rayio", "run", "s.yaml", "--engine", "local"]
    with subprocess.Popen(command, cwd=home, stderr=subprocess.DEVNULL) as run:
        rank = psutil.Process(run.pid)
        while len(processes := rank.children(recursive=True)) < 4:  # the fork server, its workers, a tracker
            assert run.poll() is None
            time.sleep(0.1)
        rank.kill()
        assert have_gone(processes)


def test_ctrl_c_leaves_a_readable_run(home: Path) -> None:
    interrupter = UnderWay(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        rayio.run(with_torch(**SLOW), engine="local", out="cut", reporter=interrupter)
    interrupter.acting.join()
    left = Run.open(home / "cut")
    assert left.exit_code == 130
    assert left.result["ledger"]["delivered_steps"] > 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_file_is_named_with_its_sample(home: Path, num_workers: int) -> None:
    wanted = on_disk(with_torch(loader__num_workers=num_workers), home)
    victim = sorted((home / "data").rglob("*.npz"))[17]
    damaged = bytearray(victim.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    victim.write_bytes(damaged)
    with pytest.raises(DataError, match=f"{victim.name}: sample 17") as caught:
        rayio.run(wanted, engine="local", out="bad")
    assert "\n" not in str(caught.value)
    spans = Run.open(home / "bad").spans()
    assert (spans[spans["status"] == "error"]["name"] == "read").any()


def test_what_is_not_ours_to_word_keeps_its_traceback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rayio.data.formats import npz

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug in a worker")

    wanted = on_disk(with_torch(), home)
    monkeypatch.setattr(npz.Npz, "read", broken)  # which a fork inherits
    with pytest.raises(ZeroDivisionError, match="a bug in a worker"):
        rayio.run(wanted, engine="local", out="bad")
    assert "a bug in a worker" in (home / "bad/log.txt").read_text()


def test_simulate_keeps_to_the_model_and_says_so(home: Path) -> None:
    wanted = with_torch(dataset__path="model://small")
    done = rayio.simulate(wanted, out="theirs")
    assert any(note.startswith("loader.kind=torch: the virtual clock") for note in done.result["notes"])
    assert simulated(wanted).spans.equals(simulated(scenario(train__compute="100 us")).spans)


def test_modelled_storage_has_nothing_for_it_to_read(home: Path) -> None:
    with pytest.raises(ScenarioError, match=r"loader\.kind=torch: dataset\.path=model://small has no files"):
        rayio.run(with_torch(dataset__path="model://small"), engine="local", out="r")
    assert not (home / "r").exists()


def test_without_pytorch_a_run_names_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch, "find_spec", lambda name: None)
    with pytest.raises(ScenarioError, match=r"PyTorch is not installed here; run pip install 'rayio\[torch\]'"):
        rayio.run(with_torch(), engine="local", out="r")
    assert not (home / "r").exists()
    assert rayio.simulate(with_torch()).exit_code == 0


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("loader__assignment", "dynamic", "use static"),
        ("loader__worker", "thread", "use process"),
        ("loader__payload", "none", "use auto"),
        ("cluster", {"nodes": 2, "placement": "spread"}, "use colocated"),
    ],
)
def test_what_pytorch_cannot_do_is_refused_by_name(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ScenarioError, match=f"{allowed}, or loader.kind=actors"):
        with_torch(**{key: value})


def test_what_does_nothing_is_noted_by_name() -> None:
    said = idle(
        with_torch(loader__io_depth=4, loader__max_bytes_in_flight=10**6, train__epochs=1,
                   loader__queue="in_rank", loader__persistent_workers=True)
    )  # fmt: skip
    keys = (
        "loader.io_depth=4",
        "loader.queue=in_rank",
        "loader.max_bytes_in_flight",
        "loader.persistent_workers=true",
    )
    for key in keys:
        assert sum(line.startswith(key) for line in said) == 1, key
    assert any(
        line.startswith("loader.multiprocessing_context=fork") for line in idle(with_torch(loader__num_workers=0))
    )
    assert not [*contradictions(with_torch())]
    assert idle(with_torch()) == []


def test_its_keys_are_refused_for_our_readers() -> None:
    with pytest.raises(ScenarioError, match=r"loader\.persistent_workers"):
        scenario(loader__persistent_workers=True)


def test_no_reader_and_no_queue_is_an_actor() -> None:
    kinds = [spec.kind for spec in actors(plan_of(with_torch(), modelled=False))]
    assert kinds == ["rank", "rank"]


def test_explain_and_predict_read_its_runs(home: Path) -> None:
    slow = {"loader__decode": "120 ms", "train__steps": 12}  # far longer than a busy machine takes to hand a batch over
    wanted = with_torch(**slow, train__compute="2 ms", loader__num_workers=1, train__epochs=1)
    done = rayio.run(wanted, engine="local", out="slow")
    found = explain(done.path)
    assert found["verdict"]["cause"] == "decode"
    assert rayio.simulate(wanted).result["notes"]


class WorkerKiller(Reporter):
    """Kills one DataLoader worker of a run on Ray, once that is under way."""

    def __init__(self) -> None:
        self.workers: list[psutil.Process] = []

    def live(self, text: str, share: float | None = None) -> None:
        if self.workers or int(text.split("/")[0]) < 4:
            return
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "multiprocessing.forkserver" in " ".join(process.parent().cmdline()):  # type: ignore[union-attr]
                    self.workers.append(process)
        self.workers[0].kill()


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_on_ray_it_lives_in_the_ranks_actor(tmp_path: Path) -> None:
    wanted = with_torch(
        loader__multiprocessing_context="forkserver", train__evaluate={"compute": "1 ms"}, train__sync="none",
        dataset__eval={"num_files": 8}, train__compute="20 ms", storage__page_cache="drop", cluster__ranks_per_node=1,
    )  # fmt: skip
    done = rayio.run(wanted, root=tmp_path)
    assert done.exit_code == 0
    came_from_the_device(done)
    model = rayio.simulate(wanted, root=tmp_path)
    assert done.result["ledger"]["delivered_samples"] == model.result["ledger"]["delivered_samples"] > 0
    spans = done.spans()
    of_rank = {*spans[spans["role"] == "rank"]["pid"]}
    reads = spans[spans["name"] == "read"]
    assert {*reads["role"]} == {"reader"}
    assert {*reads["index"]} == {f"0{e}-{w}" for e in ("", "-eval") for w in (0, 1)}
    assert not {*reads["pid"]} & of_rank
    assert len(of_rank) == 1
    actors_there = {actor["name"] for actor in json.loads((done.path / "run.json").read_text())["actors"]}
    assert actors_there == {"rank-0", "collector"}
    assert done.result["trace"]["recorded"] == done.result["trace"]["stored"] == len(spans)
    assert not [pid for pid in {*reads["pid"]} if psutil.pid_exists(pid)]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_on_ray_a_killed_worker_ends_the_run_in_one_line(tmp_path: Path) -> None:
    killer = WorkerKiller()
    # Workers that stay: one that is killed when it has done its part of an epoch is missed in the next.
    wanted = with_torch(**SLOW, loader__multiprocessing_context="forkserver", loader__persistent_workers=True)
    with pytest.raises(RunError, match=r"rank \d: DataLoader worker \d \(pid \d+\) died") as caught:
        rayio.run(wanted, root=tmp_path, out="killed", reporter=killer)
    assert "\n" not in str(caught.value)
    assert Run.open(tmp_path / "killed").result["exit_code"] == 2
    assert have_gone(killer.workers)


class BurningStart:
    """A DataLoader whose start takes half a CPU second, as importing PyTorch does."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        timers.burn(0.5)
        return iter(self.loader)


def test_starting_workers_is_no_work_of_a_batch(tmp_path: Path) -> None:
    queue, _ = opened(tmp_path, "fork", train__epochs=1, dataset__num_files=6, loader__num_workers=1)
    queue._loader = BurningStart(queue._loader)
    stopwatch = Stopwatch("rank", aside=lambda: queue.starts.seconds)

    async def first_batch() -> None:
        try:
            await queue.get(Where(0, 0, 0))
        finally:
            await queue.close()

    stopwatch.begin()
    asyncio.run(first_batch())
    counted = stopwatch.read()
    assert counted is not None
    assert queue.starts.seconds >= 0.5
    assert counted.seconds < 0.4


def test_making_a_loader_is_no_work_of_a_batch(tmp_path: Path) -> None:
    """A loader may import a library: PyTorch took a rank two CPU seconds, in a run of a few hundred batches."""
    plan = plan_of(on_disk(with_torch(cluster__ranks_per_node=1), tmp_path), modelled=False)
    kind = SimpleNamespace(batches=lambda *_: timers.burn(0.3))
    wiring = Wiring(plan, WallKernel(), Recorder(), tmp_path, None, num_ranks=1, loader=kind)  # type: ignore[arg-type]
    ports = SimpleNamespace(writers=lambda rank: {}, saved=lambda: None, barrier=lambda: None)
    wiring.rank(0, ports, plan.tallies()[0]).close()
    assert wiring.starts.seconds >= 0.3


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_the_cpu_time_of_its_workers_is_counted_once(tmp_path: Path, num_workers: int) -> None:
    decode = {"kind": "checksum", "passes": 3}
    queue, plan = opened(
        tmp_path, "fork", train__epochs=1, dataset__num_files=12, loader__num_workers=num_workers,
        loader__decode=decode,
    )  # fmt: skip

    async def batches() -> int:
        try:
            return sum([(await queue.get(Where(0, 0, step))).nbytes for step in range(plan.steps_of(0)[0])])
        finally:
            await queue.close()

    nbytes, number = asyncio.run(batches()), plan.steps_of(0)[0]
    assert len(queue.worked) == max(1, num_workers)
    account = CpuAccount.of([ProcessCpu("rank", 5.0, 6.0, "", None, StageCpu(), StageCpu(), (*queue.worked.values(),))])
    assert (account.reads.batches, account.reads.bytes) == (number, nbytes)
    assert (account.decodes.batches, account.decodes.bytes) == (number, nbytes)
    if num_workers:
        assert account.by_role["reader"] >= account.reads.seconds + account.decodes.seconds > 0
        assert account.by_role["rank"] == 5.0
    else:
        assert account.by_role == {"rank": 5.0}, "its time is in that of its rank"


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")
def test_a_calibrated_run_on_ray_predicts_with_an_interval(home: Path) -> None:
    wanted = with_torch(
        loader__multiprocessing_context="forkserver", loader__persistent_workers=True, cluster__ranks_per_node=1,
        loader__decode={"kind": "checksum"}, train__compute="20 ms", train__sync="none",
    )  # fmt: skip
    done = rayio.run(wanted, root=home)
    found = calibrate(done.path).scenario
    assert isinstance(found.loader.decode, Work)
    assert found.loader.decode.rate is not None
    # However fast the machine is by now: a prediction for another speed has no interval.
    anywhere = found.model_copy(update={"costs": found.charges.model_copy(update={"fixed_work": 0.0})})
    assert rayio.simulate(anywhere, root=home).result.between is not None
