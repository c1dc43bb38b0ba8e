"""Memory to read batches into: lent, given back by who is done, never lent to two."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rayio.engines.ray.transport.lent import LentBatches
from rayio.machine import timers
from rayio.model.buffers import MAX_BUFFER_BYTES, MAX_BUFFERS, Buffers
from rayio.model.inline_queue import InlineQueue
from rayio.model.kernel import WallKernel
from rayio.model.planning import plan_of
from rayio.model.queue import Delivery
from rayio.model.wiring import Wiring
from rayio.place import Where
from rayio.scenario.model import Scenario
from rayio.trace.recorder import Recorder
from scenarios import scenario


def address(buffer: NDArray[np.uint8]) -> int:
    return int(buffer.ctypes.data)


def inline(wanted: Scenario, root: Path) -> InlineQueue:
    """A rank that reads its own batches from real files."""
    plan = plan_of(wanted, modelled=False)
    wiring = Wiring(plan, WallKernel(), Recorder(), root, SimpleNamespace(), num_ranks=1)
    env = wiring.reader(0, 0)
    return InlineQueue(env, wiring.loading)


def test_a_buffer_is_lent_again_once_it_was_given_back_and_not_before() -> None:
    buffers = Buffers()
    first = buffers.lend(1000)
    where = address(first)
    second = buffers.lend(1000)
    assert address(second) != where, "the first is out, whether or not anybody looks at it"
    buffers.give_back(first)
    again = buffers.lend(900)
    assert (address(again), len(again)) == (where, 900)
    assert address(buffers.lend(900)) != where


def test_a_small_batch_does_not_take_a_large_ones_buffer() -> None:
    buffers = Buffers()
    large = buffers.lend(100_000)
    buffers.give_back(large)
    assert address(buffers.lend(100)) != address(large)
    assert address(buffers.lend(100_000)) == address(large)


def test_only_so_many_free_buffers_and_bytes_are_kept() -> None:
    buffers = Buffers()
    for one in [buffers.lend(100) for _ in range(MAX_BUFFERS + 5)]:
        buffers.give_back(one)
    assert len(buffers._free) == MAX_BUFFERS
    buffers.give_back(buffers.lend(MAX_BUFFER_BYTES + 1))
    assert not buffers._free


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=60))
def test_no_two_buffers_that_are_out_share_a_byte(events: list[tuple[bool, int]]) -> None:
    buffers, out = Buffers(), list[NDArray[np.uint8]]()
    for comes_back, number in events:
        if comes_back and out:
            buffers.give_back(out.pop(number % len(out)))
        else:
            out.append(buffers.lend(number))
        assert not any(np.shares_memory(a, b) for place, a in enumerate(out) for b in out[:place])


class SlowBuffers(Buffers):
    """Memory that takes CPU time to get, as PyTorch's shared memory does."""

    def lend(self, nbytes: int) -> NDArray[np.uint8]:
        timers.burn(0.1)
        return super().lend(nbytes)


def test_getting_a_batchs_memory_is_work_of_its_read(tmp_path: Path) -> None:
    wanted = on_disk(scenario(dataset__path="data", dataset__sample_bytes="2 kB", loader__num_workers=0), tmp_path)
    queue = inline(wanted, tmp_path)
    queue.loading.buffers = SlowBuffers()
    asyncio.run(queue.get(Where(0, 0, 0)))
    assert queue.loading.read_cpu.seconds >= 0.1


def test_a_batch_keeps_its_bytes_until_its_rank_is_done_with_it(tmp_path: Path) -> None:
    wanted = on_disk(scenario(dataset__path="data", dataset__sample_bytes="2 kB", loader__num_workers=0), tmp_path)

    async def main() -> None:
        queue = inline(wanted, tmp_path)
        held = [await queue.get(Where(0, 0, step)) for step in range(4)]
        assert not any(np.shares_memory(a.payload, b.payload) for a in held for b in held if a is not b)
        copies = [batch.payload.copy() for batch in held]
        first = address(held[0].payload)
        held[0].done()
        assert held[0].payload is None, "who is done has nothing more to look at"
        held[0].done()  # and may say so twice
        reused, fresh = [await queue.get(Where(0, 0, step)) for step in (4, 5)]
        assert address(reused.payload) == first
        assert address(fresh.payload) != first
        for batch, copy in zip(held[1:], copies[1:], strict=True):
            assert np.array_equal(batch.payload, copy)

    asyncio.run(main())


def test_where_no_bytes_travel_one_buffer_serves_all_batches(tmp_path: Path) -> None:
    wanted = on_disk(
        scenario(dataset__path="data", dataset__sample_bytes="2 kB", loader__num_workers=0, loader__payload="none"),
        tmp_path,
    )

    async def main() -> None:
        queue = inline(wanted, tmp_path)
        for step in range(4):
            assert (await queue.get(Where(0, 0, step))).payload is None
        assert queue.loading.buffers.num_free == 1

    asyncio.run(main())


def test_batches_that_were_returned_are_done_when_the_caller_has_the_answer() -> None:
    lent, done = LentBatches(), list[str]()

    def batch(name: str) -> Delivery:
        return Delivery(0, 0, 0, 1, 1, 0, name, give_back=lambda: done.append(name))

    caller, another = 10, 20
    lent.stored(caller, ())
    lent.keep(caller, 0, [batch("a"), batch("b")])
    lent.stored(caller, ())
    lent.keep(caller, 1, [batch("c")])
    assert done == [], "the answers may still be on their way"
    lent.stored(caller, (1,))
    assert done == ["c"]
    lent.stored(caller, (0, 1, 7))
    assert done == ["c", "a", "b"]
    lent.keep(caller, 3, [batch("d")])
    (forgotten,) = lent.stored(another, ())  # a queue that was started again
    assert forgotten.payload == "d"
    lent.stored(another, (3,))
    assert done == ["c", "a", "b"], "it does not know of the call that another queue made"
