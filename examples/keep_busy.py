"""How many accelerators does each storage keep busy? On the virtual clock: no Ray, no files, in seconds."""

from __future__ import annotations

import rayio

#: The AU that MLPerf Storage asks of unet3d.
WANTED = 0.90


def main() -> None:
    """Print AU by storage and number of accelerators, and the largest number that is kept busy."""
    for storage in ("nvme", "s3"):
        busy = 0
        for ranks in (1, 2, 4):
            run = rayio.simulate(
                "unet3d-h100",
                {
                    "cluster.ranks_per_node": ranks,
                    "dataset.path": "model://unet3d",
                    "dataset.num_files": 84 * ranks,  # the same steps for any number of ranks
                    "train.epochs": 2,
                    "storage.model": storage,
                    "costs": {},
                },
                out=f"runs/busy-{storage}-{ranks}",
            )
            au = run.au or 0.0
            rate = run.result.mib_per_second or 0.0
            print(f"{storage:>6}  {ranks} accelerators  AU {100 * au:5.1f} %  {rate:8,.0f} MiB/s")
            busy = ranks if au >= WANTED else busy
        print(f"{storage} keeps {busy or 'none'} of them busy\n")


if __name__ == "__main__":
    main()
