"""Is a deeper prefetch really better, or is it noise? Runs with several seeds, and what the differences come to."""

from __future__ import annotations

from statistics import mean, stdev

import rayio

#: Equal seeds draw equal times, so that two runs of one seed differ by what was changed alone.
SEEDS = range(6)


def utilisation(prefetch: int, seed: int) -> float:
    """The utilisation of one run, 0 to 1."""
    wanted = {
        "dataset.path": "model://small",
        "loader.prefetch_factor": prefetch,
        "storage.model": "nvme",
        "loader.decode": {"kind": "exponential", "mean": "4 ms"},
        "train.compute": {"kind": "exponential", "mean": "10 ms"},
        "train.epochs": 8,
        "seed": seed,
    }
    return rayio.simulate("unet3d-small", wanted, out=f"runs/noise-{prefetch}-{seed}").au or 0.0


def main() -> None:
    """Print both, the difference by seed, and whether it exceeds what chance would do."""
    differences = []
    for seed in SEEDS:
        one, four = utilisation(1, seed), utilisation(4, seed)
        differences.append(four - one)
        print(f"seed {seed}: AU {100 * one:.1f} % with 1, {100 * four:.1f} % with 4 batches ahead")
    half = 2.571 * stdev(differences) / len(differences) ** 0.5  # Student's t, 95 %, 5 degrees of freedom
    print(f"difference {100 * mean(differences):+.1f} ± {100 * half:.1f} points")
    print("it is real" if abs(mean(differences)) > half else "it may be noise")


if __name__ == "__main__":
    main()
