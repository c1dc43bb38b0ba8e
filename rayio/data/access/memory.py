"""Memory that workers take for what they keep of files, and the refusal of more than a node has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats import Format
from rayio.data.layout import Layout
from rayio.scenario.cluster import Cluster
from rayio.units import format_bytes, format_excess

#: Files whose sizes are drawn to know the mean and the largest; sizes of a dataset have one distribution.
DRAWN = 4096


def drawn_sizes(form: Format, layout: Layout) -> NDArray[np.int64]:
    """Return the sizes in bytes of a dataset's first files."""
    return form.file_bytes(layout, np.arange(min(layout.num_files, DRAWN)))


def all_bytes(form: Format, layout: Layout) -> float:
    """Return the bytes of all files: of many, by the mean of the first ones."""
    return float(drawn_sizes(form, layout).mean()) * layout.num_files


def too_much(
    setting: str, each: float, cluster: Cluster, workers: int, memory: float | None, whose: str, holder: str = "worker"
) -> Iterator[str]:
    """Yield a line if the workers of a node keep more of files than its ``memory``; None is no bound.

    ``each`` is what one keeps, and ``setting`` the key that decides it. ``workers`` are those of a rank; with 0 the
    rank reads. A ``holder`` other than "worker" has it once.
    """
    if memory is None or not each:
        return
    workers = 0 if holder == "rank" else workers
    readers = max(1, workers) * cluster.most_ranks
    if cluster.placement != "colocated":
        readers = -(-cluster.world_size * max(1, workers) // len(cluster.reading_nodes))
    if holder == "node":
        if each > memory:
            yield (
                f"{setting}: the workers of a node keep {format_excess(each, memory)} of the files; a node has "
                f"{format_bytes(memory)} ({whose}); use loader.file_access=per_sample"
            )
        return
    if each * readers > memory:
        what = "worker" if workers else "rank"
        yield (
            f"{setting}: a {what} keeps {format_bytes(each)} of the files, and the {readers} of a node "
            f"{format_excess(each * readers, memory)}; a node has {format_bytes(memory)} ({whose}); use fewer, or "
            "loader.file_access=per_sample"
        )
