"""Is a deeper prefetch better, or is it noise? Runs with several seeds, compared in pairs."""

from __future__ import annotations

import rayio

#: Equal seeds draw equal times, so two runs with one seed differ only by the prefetch.
SEEDS = range(6)


def run(prefetch: int, seed: int) -> rayio.Run:
    """Return one run on the virtual clock."""
    wanted = {
        "dataset.path": "model://small",
        "loader.prefetch_factor": prefetch,
        "storage.model": "nvme",
        "loader.decode": {"kind": "exponential", "mean": "4 ms"},
        "train.compute": {"kind": "exponential", "mean": "10 ms"},
        "train.epochs": 8,
        "seed": seed,
    }
    return rayio.simulate("unet3d-small", wanted, out=f"runs/noise-{prefetch}-{seed}")


def main() -> None:
    """Print the verdict, and the mean of the metrics that matter in both groups."""
    runs = [run(prefetch, seed) for prefetch in (1, 4) for seed in SEEDS]
    comparison = rayio.compare(*runs, out="better_or_noise.html")
    print(comparison.verdicts[0].sentence)
    for row in comparison.metrics:
        if row.name in comparison.main_metrics:
            values = [None if group is None else group.mean for group in row.groups]
            print(f"{row.name}: {values[0]:.4g} with 1, {values[1]:.4g} with 4 batches ahead")


if __name__ == "__main__":
    main()
