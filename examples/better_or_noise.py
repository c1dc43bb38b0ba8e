"""Is a deeper prefetch better, or is it noise? Runs with several seeds, and the interval of the difference."""

from __future__ import annotations

from statistics import mean, stdev

import rayio

#: Equal seeds draw equal times, so two runs with one seed differ only by the prefetch.
SEEDS = range(6)


def utilisation(prefetch: int, seed: int) -> float:
    """Return the AU of one run, 0 to 1."""
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
    """Print the AU of each run, the mean difference, and whether it exceeds its 95 % interval."""
    differences = []
    for seed in SEEDS:
        shallow, deep = utilisation(1, seed), utilisation(4, seed)
        differences.append(deep - shallow)
        print(f"seed {seed}: AU {100 * shallow:.1f} % with 1, {100 * deep:.1f} % with 4 batches ahead")
    half = 2.571 * stdev(differences) / len(differences) ** 0.5  # Student's t, 95 %, 5 degrees of freedom
    print(f"difference {100 * mean(differences):+.1f} ± {100 * half:.1f} points")
    print("it is real" if abs(mean(differences)) > half else "it may be noise")


if __name__ == "__main__":
    main()
