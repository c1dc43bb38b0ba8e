"""Memory that workers take for what they keep of files, and the refusal of more than a node has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayio.units import format_bytes

if TYPE_CHECKING:
    from rayio.data.access.contract import Access, Files
    from rayio.scenario.cluster import Cluster

#: Files whose sizes are drawn to know the mean and the largest; sizes of a dataset have one distribution.
DRAWN = 4096


def drawn_sizes(files: Files) -> NDArray[np.int64]:
    """Return the sizes in bytes of a dataset's first files."""
    return files.form.file_bytes(files.layout, np.arange(min(files.layout.num_files, DRAWN)))


def all_bytes(files: Files) -> float:
    """Return the bytes of all files: of many, by the mean of the first ones."""
    return float(drawn_sizes(files).mean()) * files.layout.num_files


def too_much(
    access: Access, files: Files, cluster: Cluster, workers: int, memory: float | None, whose: str
) -> Iterator[str]:
    """Yield a line if what the workers of a node keep of files exceeds its ``memory``; None is no bound.

    ``workers`` are those of a rank; with 0 the rank reads.
    """
    if memory is None or not (each := access.memory(files)):
        return
    readers = -(-cluster.world_size * max(1, workers) // len(cluster.reading_nodes))
    if each * readers > memory:
        what = "worker" if workers else "rank"
        yield (
            f"{access.setting(files)}: a {what} keeps {format_bytes(each)} of the files, and the {readers} of a node "
            f"{format_bytes(each * readers)}; a node has {format_bytes(memory)} ({whose}); use fewer, or "
            "loader.file_access=per_sample"
        )
