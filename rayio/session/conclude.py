"""Results of a run whose roles are done: metrics, delivered samples, expectations; on disk or in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayio.analyze import gate
from rayio.analyze.arrays import arrays_of
from rayio.analyze.draining import draining
from rayio.analyze.metrics import measure
from rayio.analyze.scaling import scaling
from rayio.analyze.shape import RunShape
from rayio.analyze.stalls import charged
from rayio.analyze.transfers import READ, WRITTEN, transfers
from rayio.analyze.untraced import measure_lives
from rayio.analyze.verdict import loader_share
from rayio.engines.recording import bounded, on_ray_only
from rayio.engines.virtual.simulation import simulate
from rayio.errors import ExpectationError, LedgerError, RayioError
from rayio.machine.speed import fixed_work_once
from rayio.model import ledger
from rayio.model.engine import engine_named
from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.model.workflow import StageTally
from rayio.records.doubts import Doubt
from rayio.records.failures import Restart
from rayio.records.run_result import Books, RunResult, TraceCounts
from rayio.report.text.doubts import worded
from rayio.report.text.remarks import noted
from rayio.report.text.summary import check_expectations
from rayio.scenario import checks, derive
from rayio.scenario.model import Scenario
from rayio.scenario.origin import origin_of
from rayio.scenario.workers import Autoscaled
from rayio.session.survived import restoring, survived
from rayio.session.worked import tallied, timed
from rayio.trace.arrow import empty_table
from rayio.trace.recorder import Recorder
from rayio.trace.slices import Slices
from rayio.units import format_number, format_share

if TYPE_CHECKING:
    import pyarrow as pa

#: Numbers of a run that are unknown if it delivered no sample.
OF_SAMPLES = (
    "au", "au_min", "au_max", "au_interval_low", "au_interval_high", "samples_per_second", "au_dlio", "au_dlio_stdev",
    "samples_per_second_dlio", "samples_per_second_dlio_stdev", "goodput", "evaluation",
)  # fmt: skip

OF_STEPS = "no MiB/s: trace.level is step, which records no reads; use trace.level=batch"


def in_memory(scenario: Scenario) -> RunResult:
    """Return the result of ``rayio simulate`` for a scenario, without writing anything.

    Raises:
        RayioError: the scenario cannot run, or a role failed.
    """
    return with_spans(scenario)[0]


def with_spans(
    scenario: Scenario, watch: Callable[[Sequence[Tally]], None] | None = None
) -> tuple[RunResult, pa.Table]:
    """Return the result and the spans of a scenario on the virtual clock.

    ``watch`` is called about once a second of wall time, with the ranks' tallies so far.

    Raises:
        RayioError: the scenario cannot run, or a role failed.
    """
    checks.check_simulated(scenario)
    plan = bounded(plan_of(scenario, modelled=True))
    recorder = Recorder(resolution_ns=scenario.trace.resolution_ns)
    tallies = plan.tallies()
    attempts = simulate(plan, recorder, tallies, None if watch is None else lambda: watch(tallies))
    table = recorder.drain()
    spans = empty_table() if table is None else table
    result = numbers_of(spans, scenario, RunShape.of(scenario), tallies, is_virtual=True)
    trace, recorded = scenario.trace, recorder.recorded
    counts = TraceCounts(level=trace.level, resolution=trace.resolution, recorded=recorded, stored=recorded)
    of_steps = [OF_STEPS] if trace.level == "step" else []
    notes = (*checks.idle(scenario), *of_steps, *on_ray_only(plan, "virtual"), *attempts.notes())
    result = replace(result, trace=counts, notes=(*notes, *result.notes))
    done = conclude(
        result, scenario, plan, "virtual", tallies, restarts=attempts.restarts, stages=attempts.stages.tallies
    )
    return done, spans


def numbers_of(
    spans: pa.Table | Slices, scenario: Scenario, shape: RunShape, tallies: list[Tally], *, is_virtual: bool
) -> RunResult:
    """Return the metrics of a run from its spans, or from its tallies if steps have no spans."""
    if scenario.trace.level != "none":
        spans = Slices.of(spans)
        arrays = arrays_of(spans)
        measured = timed(noted(measure(arrays, shape)), scenario, spans)
        if scenario.checkpoint is not None:
            few = Slices.of(spans.named(*WRITTEN, *READ, "restore"))
            beyond = scenario.charges.of_checkpoint if is_virtual else None
            saved, restored = transfers(few, WRITTEN, beyond), transfers(few, READ)
            drained = None if scenario.checkpoint.burst is None else draining(spans)
            failures = restoring(few, shape.world_size)
            measured = replace(measured, saved=saved, restored=restored, drained=drained, failures=failures)
        if isinstance(scenario.loader.num_workers, Autoscaled):
            measured = replace(measured, scaling=scaling(spans, arrays))
        if is_virtual and scenario.trace.level != "step" and scenario.charges.of_loader:
            return replace(measured, loader_share=loader_share(charged(spans, meetings=shape.meetings), shape))
        return measured
    steps = [tally.steps - tally.evaluation_steps for tally in tallies]
    samples = sum(tally.samples - tally.evaluation_samples for tally in tallies)
    return timed(noted(measure_lives(spans, shape, steps, samples)), scenario, spans)


def conclude(
    result: RunResult,
    scenario: Scenario,
    plan: Plan,
    engine: str,
    tallies: list[Tally],
    error: BaseException | None = None,
    speed: Doubt | None = None,
    restarts: Sequence[Restart] = (),
    stages: Sequence[StageTally] = (),
) -> RunResult:
    """Return the result with delivered samples, doubts, verdict and exit code; ``error`` ended the run, if not None.

    ``speed`` is the doubt about the machine's speed; on the virtual clock it is that of the costs. ``restarts`` are
    those after failures, ``stages`` what the processes of each stage did.
    """
    if error is None:
        books = Books.of_json(ledger.close(plan.planned(), tallies).as_dict())
    else:  # nothing to compare: planned numbers are enough
        books = Books.of_json(ledger.close(plan.planned_numbers(), tallies).as_dict())
        books = replace(books, even=None, differences=())
    if scenario.dataset.external and not plan.modelled:
        books = replace(books, contents_verified=False)
    result = tallied(survived(result, restarts), plan, stages, error)
    if restarts:
        books = replace(books, redone_steps=sum(restart.redone_steps for restart in restarts))
    skipped = books.skipped_samples or 0
    if (nothing := gate.nothing_delivered(books)) is not None:
        unknown: dict[str, Any] = dict.fromkeys(OF_SAMPLES)
        ranks = (replace(rank, au=None) for rank in result.ranks)
        result = replace(result, **unknown, ranks=(*ranks,), doubts=())
    few_delivered = skipped and nothing is None
    counted = (_of_skipped(skipped, books.planned_samples, result.samples_per_second),) if few_delivered else ()
    result = replace(
        result,
        engine=engine,
        scenario=scenario.name,
        origin=origin_of(scenario, is_virtual=engine_named(engine).is_virtual, modelled=plan.modelled),
        ledger=books,
        notes=(*result.notes, *counted),
        dropped_samples_per_epoch=derive.dropped_samples(scenario),
        capped_samples_per_epoch=derive.capped_samples(scenario),
    )
    sized = None
    if engine_named(engine).is_virtual:
        speed = speed_of_costs(scenario)
        sized = gate.other_size(scenario.charges.sample_bytes, derive.sample_bytes(scenario))
    deaths, nodes = scenario.failures, scenario.cluster.nodes
    mtbf = None if deaths is None or deaths.mtbf is None else deaths.mtbf / nodes
    few = gate.few_failures(result, 0 if deaths is None else len(deaths.events), mtbf, scenario.train.epochs)
    result = replace(result, doubts=worded(gate.completed(result, nothing, speed, sized, few)))
    verdict, code = _verdict(error, books, scenario, result)
    return replace(result, exit_code=code, error=verdict)


def _of_skipped(skipped: int, planned: int, rate: float | None) -> str:
    """Return a note on samples that storage.faults made fail: they took their time, so throughput counts them."""
    share = skipped / planned
    delivered = "" if rate is None else f" ({format_number(rate * (1 - share))} samples/s without them)"
    return (
        f"{skipped:,} samples ({format_share(share)}) were skipped after errors; throughput counts them as "
        f"read{delivered}"
    )


def speed_of_costs(scenario: Scenario) -> Doubt | None:
    """Return the doubt about a prediction whose costs are from a machine of another speed than this one."""
    calibrated = scenario.charges.fixed_work
    return gate.speed_of_calibration(calibrated, fixed_work_once(gate.as_fast(calibrated))) if calibrated else None


def _verdict(
    error: BaseException | None, books: Books, scenario: Scenario, result: RunResult
) -> tuple[str | None, int]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, RayioError):
        return str(error), error.exit_code
    if error is not None:
        return f"{type(error).__name__}: {error}", 1
    if not books.even:
        return f"samples were not delivered exactly once: {'; '.join(books.differences[:3])}", LedgerError.exit_code
    if (workflow := result.workflow) is not None and not workflow.even:
        return f"processes did not do what was planned: {'; '.join(workflow.differences[:3])}", LedgerError.exit_code
    if unmet := check_expectations(scenario.expect, result):
        return "; ".join(unmet), ExpectationError.exit_code
    return None, 0
