"""How many readers does a rank need, and how far ahead? A sweep, and the cheapest point that is enough."""

from __future__ import annotations

import rayio

#: Utilisation that is enough.
ENOUGH = 0.85


def main() -> None:
    """Print a row for each point, and the one with the fewest readers that is enough."""
    found = rayio.sweep(
        "unet3d-small",
        {
            "loader.num_workers": [4, 8, 16, 32],
            "loader.prefetch_factor": [2, 4],
            "storage.model": "s3",
            "dataset.path": "model://unet3d",
            "dataset.num_files": 1680,
            "train.epochs": 1,
        },
        out="sweeps/readers",
    )
    rows = found.frame()
    print(
        rows[["loader.num_workers", "loader.prefetch_factor", "au", "samples_per_second"]]
        .round(3)
        .to_string(index=False)
    )
    enough = rows[rows.au >= ENOUGH].sort_values(["loader.num_workers", "loader.prefetch_factor"])
    if enough.empty:
        best = rows.sort_values("au").iloc[-1]
        print(f"no point reaches AU {ENOUGH}; the best has {best.au:.2f} with {best['loader.num_workers']} readers")
    else:
        first = enough.iloc[0]
        readers, ahead = first["loader.num_workers"], first["loader.prefetch_factor"]
        print(f"{readers:.0f} readers, {ahead:.0f} batches ahead each, are enough")


if __name__ == "__main__":
    main()
