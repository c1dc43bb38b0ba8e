"""Files of watched loops with planted times, as ranks and workers of a loop write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rayio.trace.loop_files import END, STEP, header_path, loads_path, pack_load, pack_step, steps_path

MS = 1_000_000
HEADER: dict[str, Any] = {
    "rank": 0, "world_size": 1, "job": "", "host": "here", "boot_id": "b", "pid": 7, "cpus": 2,
    "started": "2026-11-23T10:00:00+00:00", "anchor_ns": 1_000_000 * MS, "begin_ns": 0, "is_synchronized": False,
    "has_accelerator": False,
}  # fmt: skip
FACTS: dict[str, Any] = {
    "kind": "DataLoader", "is_dataloader": True, "is_iterable": False, "batch_size": 4, "num_workers": 0,
    "drop_last": False, "pin_memory": False, "persistent_workers": False, "in_order": True,
}  # fmt: skip


class Loop:
    """The files of a run of some ranks, written a rank at a time; times are in ms."""

    def __init__(self, out: Path, world_size: int = 1, **facts: Any) -> None:
        self.out, self.folder = out, out / "watch"
        self.folder.mkdir(parents=True)
        self.world_size, self.facts = world_size, FACTS | facts
        run = {"version": 1, "rayio": "0", "engine": "watch", "world_size": world_size, "job": ""}
        (out / "run.json").write_text(json.dumps(run))

    def rank(
        self, rank: int, steps: list[tuple[int, int, float, float, float]], *, end: float | None = 0.0, **header: Any
    ) -> None:
        """Write a rank's header and steps: (epoch, step, requested, arrived, done); ``end`` None: it was killed."""
        text = HEADER | {"rank": rank, "world_size": self.world_size, "loader": self.facts} | header
        header_path(self.folder, rank).write_text(json.dumps(text))
        rows = b"".join(pack_step(STEP, e, s, 0, *(round(t * MS) for t in times)) for e, s, *times in steps)
        if end is not None:
            rows += pack_step(END, 0, 0, 0, round(max([end, *(step[-1] for step in steps)]) * MS), 0, 0)
        steps_path(self.folder, rank).write_bytes(rows)

    def worker(
        self, rank: int, worker: int, loads: list[tuple[int, int, float, float, float]], *, nbytes: int = 0,
        samples: int = 4,
    ) -> None:  # fmt: skip
        """Write the batches of a worker: (epoch, number, begin, end, ms within ``rayio.reading()``)."""
        rows = b"".join(
            pack_load(e, n, samples, 100 + worker, round(a * MS), round(b * MS), round(r * MS), 0, nbytes, 1)
            for e, n, a, b, r in loads
        )
        loads_path(self.folder, rank, worker).write_bytes(rows)


def in_turn(
    out: Path,
    *,
    read: float,
    compute: float,
    workers: int = 1,
    prefetch: int = 2,
    steps: int = 60,
    decode: float = 0.0,
    nbytes: int = 0,
    is_shared: bool = False,
    ahead: int = 0,
    together: int = 1,
) -> Loop:
    """Write the loop of one rank whose workers take ``read`` + ``decode`` ms a batch, by PyTorch's rules, no overhead.

    With ``is_shared`` one batch is read at a time. Batch n is dealt to worker n mod W when the rank has batch n - W·P;
    the rank takes batches in order, ``together`` of them at a time, and has ``ahead`` more before it works on any.
    """
    facts = {"ahead": ahead, "together": together} if ahead or together > 1 else {}
    loop = Loop(out, num_workers=workers, prefetch_factor=prefetch, persistent_workers=True, batches=steps,
                samples=4 * steps, **facts)  # fmt: skip
    had: list[float] = []
    ended: list[float] = []
    rows, loads = [], [[] for _ in range(workers)]  # type: ignore[var-annotated]
    now = 0.0
    for step in range(steps):
        arrived = now
        wanted = min(step - step % together + together + ahead, steps)
        for batch in range(len(had), wanted):
            granted = had[batch - workers * prefetch] if batch >= workers * prefetch else 0.0
            begin = max(granted, ended[batch - workers] if batch >= workers else 0.0)
            served = max(begin, ended[-1] if is_shared and ended else 0.0)
            ended.append(served + read + decode)
            loads[batch % workers].append((0, batch // workers, begin, ended[-1], served - begin + read))
            arrived = max(arrived, ended[-1])
            had.append(arrived)
        rows.append((0, step, now, arrived, arrived + compute))
        now = arrived + compute
    loop.rank(0, rows)
    for number, each in enumerate(loads):
        loop.worker(0, number, each, nbytes=nbytes)
    return loop
