"""Lines between actors of one host, and the memory that they share; here both ends are in one process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayio.cluster import lines
from rayio.cluster.calls import ReaderCalls
from rayio.cluster.lent import LentBatches
from rayio.cluster.lines import Address, Exchange, Line, Pieces
from rayio.cluster.shared import CHUNK_BYTES, Arenas, SharedBuffers
from rayio.errors import DataError, RunError
from rayio.pipeline.kernel import WallKernel
from rayio.pipeline.loading import MAX_BUFFER_BYTES
from rayio.pipeline.planning import plan_of
from rayio.pipeline.queue import Delivery, Lease
from rayio.pipeline.wiring import Wiring
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


def test_other_users_are_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        actor = Actor(echo=echo)
        async with line_to(actor) as line:
            monkeypatch.setattr(os, "getuid", lambda: 424242)
            with pytest.raises(RunError, match="another user"):
                await line.ask("echo")
        assert not actor.exchange._wires

    asyncio.run(main())


def test_lent_memory_never_overlaps_and_others_see_what_is_in_it() -> None:
    buffers, there = SharedBuffers(), Arenas(1)
    there.add(buffers.arena.number, os.dup(buffers.arena.fd))
    draw = random.Random(3)
    lent: list[tuple[Any, int]] = []
    for number in range(3000):
        if lent and draw.random() < 0.5:
            buffer, marked = lent.pop(draw.randrange(len(lent)))
            assert (there.look(buffers.piece(buffer)) == marked).all()
            buffers.give_back(buffer)
        else:
            buffer = buffers.lend(draw.choice([1, 100, 5000, 70_000, draw.randrange(1, 300_000)]))
            buffer[:] = number % 251
            lent.append((buffer, number % 251))
    for buffer, marked in lent:
        seen = there.look(buffers.piece(buffer))
        assert len(seen) == len(buffer)
        assert (seen == marked).all()
        assert not seen.flags.writeable


def test_memory_that_is_free_beyond_what_is_kept_goes_back_to_the_system() -> None:
    def held() -> int:
        return os.fstat(buffers.arena.fd).st_blocks * 512

    buffers = SharedBuffers()
    size = CHUNK_BYTES * 3 // 2
    many = [buffers.lend(size) for _ in range(40)]
    for buffer in many:
        buffer[:] = 1
    assert held() >= 40 * size
    for buffer in many:
        buffers.give_back(buffer)
    assert held() <= MAX_BUFFER_BYTES
    length = os.fstat(buffers.arena.fd).st_size
    again = [buffers.lend(size) for _ in range(40)]
    assert os.fstat(buffers.arena.fd).st_size == length, "what is free was not lent again"
    assert len({buffer.ctypes.data for buffer in again}) == 40


def test_what_a_queue_that_was_killed_had_is_not_used_again_and_ends_with_those_who_look_at_it() -> None:
    buffers, there = SharedBuffers(), Arenas(1)
    old = buffers.arena.number
    there.add(old, os.dup(buffers.arena.fd))
    buffer = buffers.lend(1000)
    buffer[:] = 7
    piece = buffers.piece(buffer)
    other = buffers.lend(1000)  # of another rank, whose queue lives
    buffers.forget([buffer])
    del buffer
    new = buffers.lend(1000)
    new[:] = 9
    assert buffers.piece(new).arena != old
    assert (there.look(piece) == 7).all()
    assert buffers.fd(old) is not None, "what the other rank was lent cannot be handed over"
    buffers.give_back(other)
    del other
    gc.collect()
    assert buffers.fd(old) is None
    assert buffers.num_free == 0, "memory that others may look at was taken back"
    with pytest.raises(RunError, match="nobody has handed over"):
        there.look(buffers.piece(new))


def test_old_arenas_are_closed() -> None:
    there = Arenas(1)
    made = [SharedBuffers() for _ in range(6)]
    for buffers in made:
        there.add(buffers.arena.number, os.dup(buffers.arena.fd))
    assert [there.fd(buffers.arena.number) is None for buffers in made] == [True, True] + [False] * 4


def test_a_batch_stays_as_it_is_until_its_rank_is_done_with_it(tmp_path: Path) -> None:
    wanted = scenario(dataset__path="data", loader__num_workers=2, loader__prefetch_factor=4, loader__queue="in_rank")
    plan = plan_of(wanted, modelled=False)
    buffers, lent = SharedBuffers(), {(0, worker): LentBatches() for worker in range(2)}

    async def read(lease: Lease, turn: int, stored: tuple[int, ...]) -> Any:
        assert not lent[lease.rank, lease.worker].stored(turn, stored)
        batches = []
        for step in lease.steps:
            buffer = buffers.lend(5000)
            buffer[:] = step % 251
            done = Delivery(0, step, lease.worker, 1, 5000, 0, buffer)
            done.give_back = lambda buffer=buffer: buffers.give_back(buffer)
            batches.append(done)
        lent[lease.rank, lease.worker].keep(turn, batches)
        there = [Delivery(0, b.step, b.worker, 1, 5000, 0, buffers.piece(b.payload)) for b in batches]
        return Pieces((1e-4, there), {buffers.arena.number})

    async def main() -> None:
        actor = Actor(buffers.fd, read=read)
        async with line_to(actor, Arenas(2)) as line:
            calls = ReaderCalls(plan, {(0, 0): line, (0, 1): line}, in_rank=True)
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
