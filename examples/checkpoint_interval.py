"""How often should 10,000 ranks save a checkpoint? A sweep, next to the formula of Young and Daly."""

from __future__ import annotations

import math

import numpy as np

import rayio

RANKS = 10_000
#: Mean time between failures of one rank (5.7 years), and so of all of them (5 hours).
MTBF_OF_A_RANK = 50_000 * 3600.0
MTBF = MTBF_OF_A_RANK / RANKS
#: Seconds of one checkpoint, and of one step (in which a real training would do many).
COST, STEP = 120.0, 240.0
#: Steps from one checkpoint to the next.
INTERVALS = [3, 5, 9, 15, 27]


def main() -> None:
    """Print the goodput of each interval, and the best interval of both.

    All ranks compute, save and die together, so one rank with the failures of 10,000 stands for them.
    """
    sweep = rayio.sweep(
        "unet3d-small",
        {
            "checkpoint.every.steps": INTERVALS,
            "cluster.ranks_per_node": 1,
            "dataset.path": "model://steps",
            "dataset.num_files": 5_000,
            "loader.batch_size": 1,
            "loader.num_workers": 0,
            "train.epochs": 1,
            "train.compute": f"{STEP} s",
            "storage.model": {"first_byte": 0, "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"},
            "checkpoint.model.bytes": f"{COST} GB",
            "checkpoint.request_bytes": "1 GB",
            "failures": {"mtbf": f"{MTBF} s", "detect": 0, "restart": 0, "max_restarts": 100_000},
            "trace.level": "step",
        },
        out="sweeps/intervals",
    )
    rows = sweep.frame().sort_values("checkpoint.every.steps")
    seconds = rows["checkpoint.every.steps"].to_numpy(float) * STEP
    for interval, goodput in zip(seconds, rows["goodput"], strict=True):
        print(f"a checkpoint every {interval / 60:4.0f} min: goodput {100 * goodput:.1f} %")
    # Time per useful time is a / interval + b · interval + c, which is least at sqrt(a / b).
    terms = np.stack([1 / seconds, seconds, np.ones(len(seconds))], axis=1)
    a, b, _ = np.linalg.lstsq(terms, 1 / rows["goodput"].to_numpy(float), rcond=None)[0]
    best, formula = math.sqrt(a / b), math.sqrt(2 * COST * MTBF)
    print(f"best by the sweep {best / 60:.0f} min, by Young and Daly {formula / 60:.0f} min: {best / formula:.2f}")


if __name__ == "__main__":
    main()
