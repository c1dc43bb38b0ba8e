"""The memory that actors of one host share: lent, looked at, given back, left behind by who was killed."""

from __future__ import annotations

import gc
import os
import random
from functools import partial
from typing import Any

import pytest
from left import open_files

from rayio.engines.ray.transport.lent import LentBatches
from rayio.engines.ray.transport.shared import CHUNK_BYTES, Arenas, SharedBuffers
from rayio.errors import RunError
from rayio.model.buffers import MAX_BUFFER_BYTES
from rayio.model.queue import Delivery


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
    with pytest.raises(RunError, match="did not receive"):
        there.look(buffers.piece(new))


def test_old_arenas_are_closed_but_not_those_in_use() -> None:
    there = Arenas(2)
    made = [SharedBuffers() for _ in range(20)]
    lives, *killed = made
    used = lives.piece(lives.lend(100))
    for buffers in made:
        there.add(buffers.arena.number, os.dup(buffers.arena.fd))
        assert len(there.look(used)) == 100
    assert there.fd(lives.arena.number) is not None
    assert [there.fd(buffers.arena.number) is None for buffers in killed] == [True] * 12 + [False] * 7


def test_memory_that_is_free_goes_back_at_once_when_another_arena_is_begun() -> None:
    def held() -> int:
        return os.fstat(fd).st_blocks * 512

    buffers = SharedBuffers()
    fd = os.dup(buffers.arena.fd)  # as a rank has it open
    forgotten, other, *free = [buffers.lend(1 << 20) for _ in range(20)]
    for buffer in (forgotten, other, *free):
        buffer[:] = 1
    for buffer in free:
        buffers.give_back(buffer)
    assert held() == 20 << 20
    buffers.forget([forgotten])
    assert held() == 2 << 20
    buffers.give_back(other)
    assert held() == 1 << 20
    assert (forgotten == 1).all()
    os.close(fd)


def test_much_memory_keeps_few_files_open() -> None:
    buffers, there = SharedBuffers(), Arenas(1)
    there.add(buffers.arena.number, os.dup(buffers.arena.fd))
    before = open_files()
    for _ in range(500):
        there.look(buffers.piece(buffers.lend(CHUNK_BYTES + 1)))
    assert open_files() - before < 40


def batches_of(buffers: SharedBuffers, number: int) -> list[Delivery]:
    made = []
    for step in range(number):
        buffer = buffers.lend(5000)
        made.append(Delivery(0, step, 0, 1, 5000, 0, buffer, 0, partial(buffers.give_back, buffer)))
    return made


def test_what_is_late_of_a_caller_that_was_killed_changes_nothing_of_the_one_after_it() -> None:
    buffers, lent = SharedBuffers(), LentBatches()
    killed, lives = 100, 200
    assert lent.stored(killed, ()) == []
    early = batches_of(buffers, 2)
    assert lent.keep(killed, 0, early)
    assert lent.stored(lives, ()) == early
    assert lent.keep(lives, 0, batches_of(buffers, 2))
    assert not lent.keep(killed, 0, batches_of(buffers, 1)), "memory that nobody will speak of is kept"
    assert lent.stored(killed, (0,)) == []
    assert buffers.num_free == 0, "what the living one looks at would be lent again"
    lent.stored(lives, (0,))
    assert buffers.num_free == 2
