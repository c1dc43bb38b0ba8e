"""How large a plan is, what any batch of it costs, and how fast a whole epoch of it is walked through.

Goals: 5 x 10^9 samples: the pickled plan <= 1 MB, any batch in <= 1 ms (nothing cached: the block of steps around it is
computed); 100 million samples: one epoch iterated at >= 5 million samples/s with :meth:`Sampler.batch`, step by step.
"""

from __future__ import annotations

import pickle
import random
import statistics
import time
from typing import Any

from machine import print_machine

from rayio.data.sampler import Sampler
from rayio.data.shuffle import SHUFFLES
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.scenario.load import build

LARGE, EPOCH = 5_000_000_000, 100_000_000
SAMPLES_PER_FILE = 1000
#: One row is the whole epoch; the others walk through a part of it, which costs what any part costs.
WHOLE, PART = ("global", 256), 5_000_000


def plan(samples: int, batch_size: int, ranks: int = 1, **loader: Any) -> Plan:
    return plan_of(
        build(
            {
                "name": "plan",
                "cluster": {"nodes": max(1, ranks // 8), "ranks_per_node": min(ranks, 8)},
                "dataset": {
                    "path": "model://plan",
                    "num_files": samples // SAMPLES_PER_FILE,
                    "samples_per_file": SAMPLES_PER_FILE,
                    "sample_bytes": {"kind": "normal", "mean": "150 KB", "stdev": "30 KB"},
                },
                "loader": {"batch_size": batch_size, **loader},
                "train": {"epochs": 1, "compute": "1 ms"},
            }
        ),
        modelled=True,
    )


def cold(sampler: Sampler, batches: int) -> list[float]:
    """Give the CPU milliseconds of batches anywhere in the plan, with nothing at hand."""
    draw, spent = random.Random(1), []
    for _ in range(batches):
        address = draw.randrange(100), draw.randrange(sampler.world_size), draw.randrange(sampler.num_steps)
        began = time.thread_time()
        sampler.batch(*address)
        spent.append(1e3 * (time.thread_time() - began))
    return sorted(spent)


def walk(sampler: Sampler, samples: int) -> tuple[float, float]:
    """Iterate steps until so many samples have come; give million samples per second, by the clock and by the CPU."""
    steps = min(sampler.num_steps, samples // sampler.batch_size)
    seen, began, cpu = 0, time.perf_counter(), time.thread_time()
    for step in range(steps):
        seen += len(sampler.batch(0, 0, step).samples)
    assert seen == steps * sampler.batch_size
    return seen / 1e6 / (time.perf_counter() - began), seen / 1e6 / (time.thread_time() - cpu)


def main() -> None:
    print_machine()
    print(f"{LARGE:,} samples, 1024 ranks\n{'batch':>6}{'plan bytes':>12}{'cold batch ms':>15}{'p99':>8}{'max':>8}")
    for batch_size in (1, 32, 1024, 4096):
        large = plan(LARGE, batch_size, 1024)
        spent = cold(large.sampler(), 1000)
        row = statistics.median(spent), spent[989], spent[-1]
        print(f"{batch_size:>6}{len(pickle.dumps(large)):>12}{row[0]:>15.2f}{row[1]:>8.2f}{row[2]:>8.2f}", flush=True)
    print(f"\n{EPOCH:,} samples, one rank\n{'shuffle':<9}{'batch':>6}{'samples':>13}{'M/s':>8}{'M per CPU s':>13}")
    sizes = {"block": {"shuffle_block": 4096}, "buffer": {"shuffle_buffer": 10_000}}
    for shuffle in ("global", *(name for name in SHUFFLES if name != "global")):
        for batch_size in (1, 4, 32, 256, 1024) if shuffle == "global" else (256,):
            sampler = plan(EPOCH, batch_size, shuffle=shuffle, **sizes.get(shuffle, {})).sampler()
            samples = EPOCH if (shuffle, batch_size) == WHOLE else PART
            rate, per_cpu = walk(sampler, samples)
            print(f"{shuffle:<9}{batch_size:>6}{samples:>13,}{rate:>8.2f}{per_cpu:>13.2f}", flush=True)


if __name__ == "__main__":
    main()
