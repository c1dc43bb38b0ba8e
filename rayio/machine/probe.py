"""A probe of this machine's processors: its scheduler's time slice, and how much busy cores slow each other down.

Both take about two seconds, in separate processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

#: Seconds that two processes share a core for, and that all cores work for.
SHARING_SECONDS, WORKING_SECONDS = 0.8, 0.5
#: A pause of at least so long means that another process had the core (s).
PAUSE = 0.0003
#: Turns that are shorter or longer than these count as interrupts, or as a core without another process (s).
LEAST_TURN, MOST_TURN = 0.0005, 0.1
#: The fewest turns that show a time slice.
FEWEST_TURNS = 5
#: Contention is a factor of at least 1, and at most this.
MOST_CONTENTION = 3.0
#: Seconds after which a process of the probe is ended.
DEADLINE = 20.0

#: Spin on one core and print the lengths of turns (s): the times between pauses.
TURNS = """
import json, os, sys, time
core, seconds, pause = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, {core})
begin = last = started = time.perf_counter()
turns = []
while last - begin < seconds:
    now = time.perf_counter()
    if now - last > pause:
        turns.append(last - started)
        started = now
    last = now
print(json.dumps(turns[1:]))
"""

#: Copy, hash and count for some seconds of wall time; print the CPU seconds of one round.
ROUNDS = """
import sys, time, zlib
seconds, source = float(sys.argv[1]), bytearray(8 << 20)
target = bytearray(len(source))
began, rounds, end = time.process_time(), 0, time.perf_counter() + seconds
while time.perf_counter() < end:
    target[:] = source
    zlib.crc32(target)
    sum(range(60_000))
    rounds += 1
print((time.process_time() - began) / max(1, rounds))
"""


def time_slice() -> float | None:
    """Return how long a process keeps a core that another one waits for (s); None if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    answers = _together([TURNS] * 2, str(core), str(SHARING_SECONDS), str(PAUSE))
    return typical_turn([turn for answer in answers for turn in _turns(answer)])


def typical_turn(turns: Sequence[float]) -> float | None:
    """Return the median of a process's turns on a core (s); None for too few.

    >>> typical_turn([0.004, 0.0041, 0.0039, 0.004, 0.004, 0.0001, 2.0])
    0.004
    """
    known = [turn for turn in turns if LEAST_TURN <= turn <= MOST_TURN]
    return round(statistics.median(known), 4) if len(known) >= FEWEST_TURNS else None


def contention() -> float | None:
    """Return how many times as much CPU time work takes while all cores work; None if unknown."""
    (alone,) = _numbers(_together([ROUNDS], str(WORKING_SECONDS))) or (0.0,)
    cores = os.cpu_count() or 1
    together = _numbers(_together([ROUNDS] * cores, str(WORKING_SECONDS)))
    if not alone or not together:
        return None
    return round(min(MOST_CONTENTION, max(1.0, statistics.mean(together) / alone)), 3)


def _together(scripts: Sequence[str], *arguments: str) -> list[str]:
    """Return the output of scripts that run at the same time; empty for one that failed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for script in scripts
    ]
    outputs = []
    for process in started:
        try:
            outputs.append(process.communicate(timeout=DEADLINE)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            outputs.append("")
    return outputs


def _turns(answer: str) -> list[float]:
    try:
        return [float(turn) for turn in json.loads(answer)]
    except (ValueError, TypeError):
        return []


def _numbers(answers: Sequence[str]) -> list[float]:
    try:
        return [float(answer) for answer in answers]
    except ValueError:
        return []
