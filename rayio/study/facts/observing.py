"""The numbers of a simulated scenario from which published facts follow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayio.data.formats import FORMATS, layout_of
from rayio.reporter import SILENT, Reporter
from rayio.scenario import derive
from rayio.scenario.facts import Observed, Requests
from rayio.scenario.model import Scenario
from rayio.session.execute import simulate

if TYPE_CHECKING:
    import pandas as pd

    from rayio.records.run_result import RunResult

#: The most read requests of a run that are recorded one by one; of a run with more, those of its first steps are.
MOST_REQUESTS = 50_000
#: Files whose mean size is that of a file.
SAMPLED_FILES = 1000


def observed(scenario: Scenario, *, requests: bool, reporter: Reporter = SILENT) -> Observed:
    """Simulate a scenario and return its numbers; with ``requests`` also those of single requests.

    Raises:
        RayioError: the scenario cannot be simulated.
    """
    spans, result = _simulated(scenario, reporter)
    seen = _observed(scenario, spans, result)
    if not requests:
        return seen
    first, _ = _simulated(_first_steps(scenario, int(spans.requests[spans.name == "read"].sum())), reporter)
    return replace(seen, requests=_requests(first))


def _simulated(scenario: Scenario, reporter: Reporter) -> tuple[pd.DataFrame, RunResult]:
    with tempfile.TemporaryDirectory(prefix="rayio-facts-") as folder:
        run = simulate(scenario, out=Path(folder, "run"), reporter=reporter)
        return run.spans(), run.result


def _observed(scenario: Scenario, spans: pd.DataFrame, result: RunResult) -> Observed:
    assert result.wall_seconds is not None
    assert result.ledger is not None
    reads, writes = spans[spans.name == "read"], spans[spans.name.isin(["write", "fsync"])]
    layout = layout_of(scenario)
    some = np.arange(min(layout.num_files, SAMPLED_FILES))
    steps = result.percentiles.step_time if result.percentiles is not None else None
    return Observed(
        seconds=result.wall_seconds,
        ranks=derive.world_size(scenario),
        read_seconds=float(reads.duration_ns.sum()) / 1e9,
        write_seconds=float(writes.duration_ns.sum()) / 1e9,
        read_bytes=int(reads.bytes.sum()),
        written_bytes=int(writes.bytes.sum()),
        delivered_bytes=result.ledger.delivered_bytes,
        delivered_samples=result.ledger.delivered_samples,
        step_seconds=None if steps is None else steps.p50,
        au=result.au,
        files=layout.num_files,
        file_bytes=float(np.mean(FORMATS[scenario.dataset.format].file_bytes(layout, some))),
        steps_per_epoch=derive.uncapped_steps(scenario)[0],
        demand=derive.read_demand(scenario),
        written_files=int((writes.name == "write").sum()),
        workflow=result.workflow,
        checkpoints=len(writes[["epoch", "step"]].drop_duplicates()),
    )


def _first_steps(scenario: Scenario, requests: int) -> Scenario:
    """Return the scenario request by request, with as many first steps as make few enough."""
    train, trace = scenario.train, scenario.trace.model_copy(update={"level": "io"})
    changes: dict[str, object] = {"warmup_steps": 0, "evaluate": None}
    if requests > MOST_REQUESTS:
        steps = derive.total_steps(scenario) * MOST_REQUESTS // requests
        changes |= {"epochs": 1, "steps": max(1, min(steps, derive.rank_steps(scenario)[0]))}
    update = {"train": train.model_copy(update=changes), "trace": trace, "checkpoint": None}
    return scenario.model_copy(update=update)


def _requests(spans: pd.DataFrame) -> Requests:
    rows = spans[spans.name == "io.read"].sort_values("start_ns", kind="stable")
    end = (rows.offset + rows.bytes).groupby([rows["rank"], rows["index"], rows.file]).shift()
    follows: Iterable[bool] = (rows.offset == end)[end.notna()]
    mean = float(np.mean([*follows])) if end.notna().any() else 0.0
    return Requests(rows.bytes.to_numpy(), mean)
