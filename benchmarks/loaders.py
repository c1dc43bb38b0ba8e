"""Loaders beside each other: ``loader.kind: torch``, our readers, and a bare PyTorch loop that reads as they do.

One rank; workers 1, 2, 4 x batches of four samples, 150 KB, 1 MB and 8 MB in all, x compute of 20 and 100 ms, files in
memory. It is ``real_loop.py`` at other points. Goal: epoch time of ``kind: torch`` within 3 % of the bare loop at all
18 points.

``python benchmarks/loaders.py`` runs all points (10 minutes on two quiet cores); ``--quick`` two of them; the other
options are those of ``real_loop.py``.
"""

from __future__ import annotations

import itertools

from real_loop import main

#: Bytes of a sample, of which four are a batch.
SAMPLES = ("37500 B", "250 KB", "2 MB")
QUICK = ((2, 0.02, "250 KB"), (4, 0.1, "250 KB"))

if __name__ == "__main__":
    main(__doc__, tuple(itertools.product((1, 2, 4), (0.02, 0.1), SAMPLES)), QUICK, ranks=1, reader="same")
