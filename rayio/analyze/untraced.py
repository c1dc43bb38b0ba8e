"""The numbers of a run without spans (``trace.level: none``): its length and its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayio.analyze.metrics import LISTED_RANKS
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import integers
from rayio.records.doubts import remark
from rayio.records.metric_names import HEADLINE
from rayio.records.run_result import Percentiles, Rank, RunResult, Seconds, Shares
from rayio.trace.slices import Slices

if TYPE_CHECKING:
    import pyarrow as pa


def measure_lives(spans: pa.Table | Slices, shape: RunShape, steps_of_rank: list[int], samples: int) -> RunResult:
    """Return the result of a run from its ranks' lives; numbers that need spans of steps are None.

    ``spans`` are the ranks' lives, ``steps_of_rank`` the training steps that each rank has consumed, ``samples`` those
    of all ranks together.
    """
    table = Slices.of(spans).named("life", "lost")
    begin, rank = integers(table, "start_ns"), integers(table, "rank")
    end = begin + integers(table, "duration_ns")
    first = int(begin.min()) if len(table) else 0
    wall = int(end.max() - first) / 1e9 if len(table) else 0.0
    lives = dict(zip(rank.tolist(), ((end - first) / 1e9).tolist(), strict=True))
    remarks = [remark("no_steps_recorded")]
    if missing := shape.world_size - len(lives):
        remarks.append(remark("ranks_ended_early", missing=missing, ranks=shape.world_size))
    known: dict[str, float | None] = {
        "samples_per_second": samples / shape.ranks_of_sample / wall if wall else None,
        "wall_seconds": wall,
        "steps": sum(steps_of_rank),
    }
    numbers: dict[str, Any] = dict.fromkeys(HEADLINE) | known
    return RunResult(
        **numbers,
        world_size=shape.world_size,
        ranks_of_sample=shape.shared_by,
        time=Seconds(),
        share=Shares(),
        percentiles=Percentiles(),
        ranks=tuple(
            Rank(rank=place, au=None, steps=number, wall=lives.get(place))
            for place, number in enumerate(steps_of_rank[:LISTED_RANKS])
        ),
        notes=(),
        remarks=tuple(remarks),
    )
