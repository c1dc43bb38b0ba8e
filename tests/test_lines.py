"""Lines between actors of one host, and the memory that they share; here both ends are in one process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from left import open_files

from rayio.engines.ray.actors.shells import TrainerRank
from rayio.engines.ray.transport import lines
from rayio.engines.ray.transport.calls import ReaderCalls
from rayio.engines.ray.transport.lent import LentBatches
from rayio.engines.ray.transport.lines import PART_BYTES, Address, Exchange, Line, Pieces, Wire
from rayio.engines.ray.transport.remote import RemoteWriter
from rayio.engines.ray.transport.shared import CHUNK_BYTES, Arenas, SharedBuffers
from rayio.errors import DataError, RunError
from rayio.model.kernel import WallKernel
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.model.queue import Delivery, Lease
from rayio.model.wiring import Wiring
from rayio.trace.recorder import Recorder
from scenarios import scenario


class Method:
    """What ``handle.method`` is: its ``remote`` gives something to await."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = function

    def options(self, **_: Any) -> Method:
        return self


class Actor:
    """An actor's handle, and the exchange of its process; ``start_again`` is a process in its place."""

    def __init__(self, file: Callable[[int], int | None] | None = None, node: str = "here", **serve: Any) -> None:
        self.file, self.node, self.serve = file, node, serve
        self.exchange = Exchange(serve, file)
        self.listen = Method(self._listen)
        for name, function in serve.items():
            setattr(self, name, Method(function))

    async def _listen(self) -> Address:
        return Address(self.node, self.exchange.open())

    def die(self) -> None:
        for wire in list(self.exchange._wires):
            wire.close()
        if self.exchange._listening is not None:
            asyncio.get_running_loop().remove_reader(self.exchange._listening.fileno())
            self.exchange._listening.close()
            self.exchange._listening = None

    def start_again(self, **serve: Any) -> None:
        self.die()
        self.exchange = Exchange(self.serve | serve, self.file)


@contextlib.asynccontextmanager
async def line_to(actor: Actor, arenas: Arenas | None = None) -> AsyncIterator[Line]:
    line = Line(actor, "here", arenas or Arenas(1))
    try:
        yield line
    finally:
        if line._wire is not None:
            line._wire.close()
        actor.die()


async def echo(*arguments: Any) -> Any:
    return arguments


def test_calls_are_answered_whatever_their_size_and_in_whatever_order_they_end() -> None:
    async def main() -> None:
        first = asyncio.Event()

        async def wait(which: int) -> int:
            await first.wait()
            return which

        async def go(which: int) -> int:
            first.set()
            return which

        actor = Actor(echo=echo, wait=wait, go=go)
        async with line_to(actor) as line:
            large = os.urandom(3 << 20)
            assert await line.ask("echo", large, 7) == (large, 7)
            answers = await asyncio.wait_for(asyncio.gather(line.ask("wait", 1), line.ask("go", 2)), 20)
            assert [*answers] == [1, 2]
            many = await asyncio.gather(*(line.ask("echo", n, bytes(9000)) for n in range(500)))
            assert [answer[0] for answer in many] == list(range(500))

    asyncio.run(main())


def test_errors_of_the_other_side_are_raised_here() -> None:
    async def damaged() -> None:
        raise DataError("file 3 is damaged")

    async def wrong() -> None:
        raise KeyError("no such thing")

    class LocalError(Exception):
        pass

    async def unknown() -> None:
        raise LocalError("of a class that nobody else has")

    async def main() -> None:
        async with line_to(Actor(damaged=damaged, wrong=wrong, unknown=unknown)) as line:
            with pytest.raises(DataError, match="file 3 is damaged") as raised:
                await line.ask("damaged")
            assert not hasattr(raised.value, "__notes__")
            with pytest.raises(KeyError) as raised_here:
                await line.ask("wrong")
            assert "in wrong" in raised_here.value.__notes__[0], "where it was raised is lost"
            with pytest.raises(RunError, match="LocalError: of a class that nobody else has"):
                await line.ask("unknown")

    asyncio.run(main())


def test_calls_under_way_are_made_again_when_the_other_process_was_started_again() -> None:
    async def never(_: str) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        asked: list[str] = []

        async def at_last(name: str = "") -> str:
            asked.append(name)
            return "at last"

        actor = Actor(never=never, echo=echo)
        async with line_to(actor) as line:
            assert await line.ask("echo", 1) == (1,)
            waiting = [asyncio.ensure_future(line.ask("never", n)) for n in ("a", "b")]
            await line.ask("echo")
            actor.start_again(never=at_last)
            assert await asyncio.wait_for(asyncio.gather(*waiting), 20) == ["at last", "at last"]
            assert asked == ["a", "b"], "in another order"
            assert await line.ask("echo", 2) == (2,)

    asyncio.run(main())


def test_one_that_is_gone_for_good_fails_the_calls_that_wait_for_it() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def gone() -> Address:
        raise RunError("the actor died")

    async def main() -> None:
        actor = Actor(never=never, echo=echo)
        async with line_to(actor) as line:
            waiting = asyncio.ensure_future(line.ask("never"))
            await line.ask("echo")
            actor.listen = Method(gone)
            actor.die()
            with pytest.raises(RunError, match="the actor died"):
                await asyncio.wait_for(waiting, 20)

    asyncio.run(main())


@pytest.mark.parametrize("why", ["another Ray node", "it takes no calls"])
def test_where_there_is_no_line_calls_are_rays(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        actor = Actor(echo=echo, node="there" if why == "another Ray node" else "here")
        if why == "it takes no calls":
            monkeypatch.setattr(lines, "is_possible", lambda: False)
        async with line_to(actor) as line:
            assert await line.ask("echo", 5) == (5,)
            assert line.is_near is False
            assert not actor.exchange._wires

    asyncio.run(main())


def test_where_one_reader_is_on_another_ray_node_a_queue_reads_from_all_with_rays_calls(tmp_path: Path) -> None:
    wanted = scenario(dataset__path="data", loader__num_workers=2)
    plan = plan_of(wanted, modelled=False)

    def rays(lease: Lease, *_: Any) -> list[Any]:
        batches = [Delivery(0, step, lease.worker, 1, 5000, 0) for step in lease.steps]
        headers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        headers.set_result((1e-4, batches))
        return [headers, f"parcel of worker {lease.worker}"]

    async def main() -> None:
        near, far = Actor(read=echo), Actor(node="there", read=echo)
        near.read = far.read = Method(rays)  # type: ignore[attr-defined,arg-type]
        async with line_to(near) as line, line_to(far) as none:
            calls = ReaderCalls(plan, {(0, 0): line, (0, 1): none}, lambda rank, workers: None, in_rank=False)
            wiring = Wiring(plan, WallKernel(), Recorder(), tmp_path, None, num_ranks=1)  # type: ignore[arg-type]
            calls.queue(wiring, plan.queue(0), evaluating=False)
            got = [await calls._submit(Lease(0, worker, 0, (worker,))) for worker in (0, 1)]
            assert [batch.payload for (batch,) in got] == [(f"parcel of worker {n}", 0) for n in (0, 1)]
            assert not await calls.are_near()

    asyncio.run(main())


def test_a_file_that_waits_to_be_sent_is_the_one_that_was_meant() -> None:
    async def main() -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arrived: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        wire = Wire(here, lambda *_: None, lambda: None)
        wire.send(bytes(3 << 20))  # more than the socket holds
        fd = os.memfd_create("meant")
        meant = os.fstat(fd).st_ino
        wire.send(b"a file", fd)
        os.close(fd)
        other = os.memfd_create("not meant")
        assert other == fd

        def receive(_: bytes, fd: int | None) -> None:
            if fd is not None:
                arrived.set_result(fd)

        end = Wire(there, receive, lambda: None)
        got = await asyncio.wait_for(arrived, 20)
        assert os.fstat(got).st_ino == meant
        assert not os.get_inheritable(got), "what this process starts would keep the memory"
        before = open_files()
        end.close()
        wire.send(bytes(3 << 20))
        wire.send(b"a file", got)
        wire.close()
        assert open_files() == before - 2
        os.close(other)
        os.close(got)

    asyncio.run(main())


def test_a_message_that_cannot_be_sent_ends_the_connection_on_both_sides() -> None:
    async def main() -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as little as the kernel permits
        ends = [asyncio.Event(), asyncio.Event()]
        wire = Wire(here, lambda *_: None, ends[0].set)
        Wire(there, lambda *_: None, ends[1].set)
        wire.send(bytes(PART_BYTES))
        for ended in ends:
            await asyncio.wait_for(ended.wait(), 20)

    asyncio.run(main())


def test_a_scenario_may_keep_to_rays_calls() -> None:
    from rayio.engines.ray.actors.birth import has_lines

    asked = {key: plan_of(scenario(cluster__transport=key), modelled=False) for key in ("auto", "ray")}
    assert has_lines(asked["auto"])
    assert not has_lines(asked["ray"])


def test_an_actor_that_lives_and_cannot_be_reached_is_called_by_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "AGAIN_SECONDS", 0)

    async def elsewhere() -> Address:
        return Address("here", b"\0rayio-nobody-listens-at-this")

    async def main() -> None:
        actor = Actor(echo=echo)
        actor.listen = Method(elsewhere)
        async with line_to(actor) as line:
            assert await asyncio.wait_for(line.ask("echo", 5), 20) == (5,)
            assert line.is_near is False

    asyncio.run(main())


def test_other_users_are_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        actor = Actor(echo=echo)
        async with line_to(actor) as line:
            monkeypatch.setattr(os, "getuid", lambda: 424242)
            with pytest.raises(RunError, match="another user"):
                await line.ask("echo")
        assert not actor.exchange._wires

    asyncio.run(main())


def test_a_batch_stays_as_it_is_until_its_rank_is_done_with_it(tmp_path: Path) -> None:
    wanted = scenario(dataset__path="data", loader__num_workers=2, loader__prefetch_factor=4, loader__queue="in_rank")
    plan = plan_of(wanted, modelled=False)
    buffers, lent = SharedBuffers(), {(0, worker): LentBatches() for worker in range(2)}

    async def read(lease: Lease, caller: int, turn: int, stored: tuple[int, ...]) -> Any:
        assert not lent[lease.rank, lease.worker].stored(caller, stored)
        batches = []
        for step in lease.steps:
            buffer = buffers.lend(5000)
            buffer[:] = step % 251
            done = Delivery(0, step, lease.worker, 1, 5000, 0, buffer)
            done.give_back = lambda buffer=buffer: buffers.give_back(buffer)
            batches.append(done)
        assert lent[lease.rank, lease.worker].keep(caller, turn, batches)
        there = [Delivery(0, b.step, b.worker, 1, 5000, 0, buffers.piece(b.payload)) for b in batches]
        return Pieces((1e-4, there), {buffers.arena.number})

    async def main() -> None:
        actor = Actor(buffers.fd, read=read)
        async with line_to(actor, Arenas(2)) as line:
            calls = ReaderCalls(plan, {(0, 0): line, (0, 1): line}, lambda rank, workers: None, in_rank=True)
            wiring = Wiring(plan, WallKernel(), Recorder(), tmp_path, None, num_ranks=1)  # type: ignore[arg-type]
            calls.queue(wiring, plan.queue(0), evaluating=False)
            draw, held = random.Random(5), list[Delivery]()
            for turn in range(400):
                steps = tuple(range(2 * turn, 2 * turn + draw.choice([1, 2])))
                held += await calls._submit(Lease(0, draw.randrange(2), 0, steps))
                while len(held) > draw.randrange(1, 12):
                    batch = held.pop(draw.randrange(len(held)))
                    assert np.array_equal(batch.payload, np.full(5000, batch.step % 251, np.uint8))
                    batch.done()
            assert os.fstat(buffers.arena.fd).st_size == CHUNK_BYTES, "memory was not lent again"

    asyncio.run(main())


def test_ranks_reach_their_writers_before_the_first_step() -> None:
    """The first call to an actor asks Ray for its address: the ranks' first files would begin milliseconds apart."""
    done: list[str] = []

    class Reached:
        async def reach(self) -> bool:
            done.append("writer")
            return True

    async def nothing(*_: Any) -> None:
        done.append("step")

    rank: Any = object.__new__(TrainerRank)
    rank.kernel, rank.tallies, rank.begin = WallKernel(), {0: Tally(0), 1: Tally(1)}, lambda: None
    line: Any = Reached()
    rank._writers = {0: RemoteWriter(line, 0), 1: RemoteWriter(line, 1)}
    rank._train, rank.wiring = nothing, SimpleNamespace(close=nothing)
    asyncio.run(rank.run())
    assert done[:3] == ["writer", "step", "step"]
