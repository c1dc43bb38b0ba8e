"""How many workers does a rank need, and which prefetch depth? A sweep, and the cheapest point that is enough."""

from __future__ import annotations

import rayio

#: The AU that is enough.
ENOUGH = 0.85


def main() -> None:
    """Print a row for each point, and the sufficient one with the fewest workers."""
    sweep = rayio.sweep(
        "unet3d-small",
        {
            "loader.num_workers": [4, 8, 16, 32],
            "loader.prefetch_factor": [2, 4],
            "storage.model": "s3",
            "dataset.path": "model://unet3d",
            "dataset.num_files": 1680,
            "train.epochs": 1,
        },
        out="sweeps/workers",
    )
    rows = sweep.frame()
    print(
        rows[["loader.num_workers", "loader.prefetch_factor", "au", "samples_per_second"]]
        .round(3)
        .to_string(index=False)
    )
    enough = rows[rows.au >= ENOUGH].sort_values(["loader.num_workers", "loader.prefetch_factor"])
    if enough.empty:
        best = rows.sort_values("au").iloc[-1]
        print(f"no point reaches AU {ENOUGH}; the best has {best.au:.2f} with {best['loader.num_workers']} workers")
    else:
        first = enough.iloc[0]
        workers, prefetch = first["loader.num_workers"], first["loader.prefetch_factor"]
        print(f"{workers:.0f} workers with prefetch_factor {prefetch:.0f} are enough")


if __name__ == "__main__":
    main()
