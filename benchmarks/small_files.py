"""Many small files: 2000 and 20 000 npz files of 150 KB in memory, beside PyTorch's DataLoader.

One rank, batches of 4, prefetch_factor 16, zero compute, 2000 batches of each dataset (4 epochs of the small one),
OMP_NUM_THREADS=1 on both sides, which run in turn; medians. What each side verifies is said in ceiling.py. Goals:
samples/s >= 1.0 times PyTorch's with 1, 2 and 4 workers, and equal for both datasets within 10 %.
"""

from __future__ import annotations

from machine import print_machine
from side import both, median, memory_and_ray, scenario

BATCH, BATCHES, REPEATS = 4, 2000, 3


def main() -> None:
    print_machine()
    print(f"{'workers':>7}{'files':>8}{'rayio':>9}{'PyTorch':>9}{'ratio':>8}   goal   samples/s")
    with memory_and_ray() as root:
        for workers in (1, 2, 4):
            of_size = []
            for num_files in (2000, 20000):
                wanted = scenario(f"files-{num_files}", num_files, "150 KB", BATCH, workers, 16)
                wanted["train"] |= {"epochs": max(1, BATCHES * BATCH // num_files), "steps": BATCHES}
                mine, other = (BATCH * median(side, "batches_per_second") for side in both(wanted, root, REPEATS))
                of_size.append(mine)
                print(f"{workers:>7}{num_files:>8}{mine:>9.0f}{other:>9.0f}{mine / other:>8.2f}  >= 1.0", flush=True)
            print(f"   20 000 against 2000 files: {of_size[1] / of_size[0]:.2f} (goal: 0.90 to 1.10)", flush=True)


if __name__ == "__main__":
    main()
