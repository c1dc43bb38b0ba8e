"""A run from start to verdict: prepare, run the roles on an engine, collect spans, measure, judge."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from rayio.analyze import gate
from rayio.analyze.retries import retried
from rayio.analyze.run_scenario import RAN
from rayio.analyze.shape import RunShape
from rayio.errors import RayioError, ScenarioError, StorageError, first_error
from rayio.machine.speed import fixed_work
from rayio.model.attempts import BrokenOffError, Resumed, held_by
from rayio.model.engine import Site, engine_named
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.records.doubts import INTERVAL, blocking
from rayio.records.run_result import RunResult, TraceCounts
from rayio.report.text.progress import progress_line
from rayio.report.text.terms import retries_note
from rayio.reporter import SILENT, Reporter
from rayio.scenario import apart, checks, derive
from rayio.scenario.foreign import converted
from rayio.scenario.model import Scenario, placed
from rayio.scenario.write import to_yaml
from rayio.schema.fields import MAX_WHOLE
from rayio.session.between import between
from rayio.session.conclude import OF_STEPS, conclude, numbers_of
from rayio.session.dataset import base_folder, idle_on_model, idle_storage, prepare_files, resolve
from rayio.session.fetched import fetched, loaded, source_notes
from rayio.session.folders import refuse_folders, refuse_inside, remove_unfinished
from rayio.session.naming import named
from rayio.session.progress_writer import ProgressWriter
from rayio.session.result import Run
from rayio.session.unheard import counted_from_spans
from rayio.signals import Interrupts, hold
from rayio.trace.clocks import Anchor
from rayio.trace.parts import write_what_fits
from rayio.trace.run_directory import LOG, RESUME, RunDirectory
from rayio.trace.slices import Slices
from rayio.trace.span_files import together
from rayio.units import format_seconds
from rayio.version import __version__

if TYPE_CHECKING:
    from rayio.export.collectors.sending import Sender
    from rayio.export.live_export import LiveExport


def simulate(
    source: str | Path | Mapping[str, Any] | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> Run:
    """Run a scenario on the virtual clock, with modelled storage. See :func:`run`.

    >>> run = rayio.simulate("unet3d-small", {"loader.num_workers": 4}, out="runs/four")
    >>> round(run.au, 2), run.spans().name.nunique() > 5
    (0.97, True)
    """
    return run(source, overrides, engine="virtual", out=out, root=root, reporter=reporter)


def repeated(
    source: str | Path | Mapping[str, Any] | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None,
    number: int,
    root: str | Path | None = None,
) -> list[Scenario]:
    """Return a scenario with as many seeds: its own, and those that follow.

    Raises:
        ScenarioError: the scenario is invalid, or its seed is too large.
    """
    first = resolve(source, overrides, root)
    if first.seed + number - 1 > MAX_WHOLE:
        raise ScenarioError(f"seed={first.seed}: too large for {number} repeats")
    return [first, *(first.model_copy(update={"seed": first.seed + n}) for n in range(1, number))]


def run(
    source: str | Path | Mapping[str, Any] | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    engine: str = "ray",
    address: str | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
    collector: Sender | None = None,
    select: str = "all",
    ended: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Run a scenario in real time and return the run. A missing dataset is generated first.

    >>> run = rayio.run("unet3d-small", ["dataset.num_files=14", "train.epochs=1"], engine="local")
    >>> run.result.steps, run.result.ledger.even
    (2, True)

    Args:
        source: path or packaged name of a scenario, a mapping as in its file, or a Scenario.
        overrides: ``section.key=value`` texts, or a mapping of dotted keys to values.
        engine: ``ray`` (actors), ``local`` (this process, wall clock) or ``virtual`` (this process, virtual clock).
        address: Ray cluster to use (``auto``: the one running here); None uses RAY_ADDRESS, or starts a local one.
        out: run directory to make; None picks ``runs/<name>-<time>`` below ``root``.
        root: base folder or address of relative paths; None is the working directory.
        reporter: receives progress.
        collector: receives spans during the run (``rayio.export.collectors.transport.connect``).
        select: steps whose spans it receives: ``all``, ``first``, ``every:N``.
        ended: called with the run once its results are written, before a pending signal is raised.

    Raises:
        RayioError: bad input, a cluster that cannot run this, or a role that failed. If the roles had started, the
            run directory is complete and holds the error.
        KeyboardInterrupt: after Ctrl-C, with a complete run directory likewise.
    """
    scenario = resolve(source, overrides, root)
    made = None if isinstance(source, Scenario) else converted(source, overrides or ())
    if made is not None and made.remarks():
        reporter.say(f"{source}: {made.in_words()}; rayio validate lists them")
    base = base_folder(scenario, root)
    if is_modelled := engine_named(engine).is_virtual or scenario.dataset.is_modelled:
        checks.check_simulated(scenario)
        apart.refuse_overlaps(scenario, base)
    if collector is not None:
        from rayio.export.live_export import LiveExport
        from rayio.export.select import parse_live

        parse_live(select)
    scenario = placed(scenario, base) if engine_named(engine).is_virtual else scenario
    with named(scenario, base, out) as directory:
        if not is_modelled:
            refuse_folders(scenario, base, directory)
        refuse_inside(directory)
        session = _Session(scenario, engine, address, base, directory, reporter, ended)
        if collector is not None:
            session.live_export = LiveExport(
                session.directory, session.run_id, collector, selection=select, world_size=session.plan.world_size,
                info=lambda: session.info | session.engine.outcome.info,
            )  # fmt: skip
        return session.run()


def run_session(
    scenario: Scenario, engine: str, address: str | None, base: str, out: str, reporter: Reporter, resumed: Resumed
) -> Run:
    """Go on with a run in its directory; see :func:`rayio.session.resume.resume`."""
    return _Session(scenario, engine, address, base, out, reporter, lambda run: None, resumed).run()


class _Session:
    def __init__(
        self,
        scenario: Scenario,
        engine: str,
        address: str | None,
        base: str,
        out: str,
        reporter: Reporter,
        ended: Callable[[Run], None],
        resumed: Resumed | None = None,
    ) -> None:
        self.scenario, self.ended, self.resumed = scenario, ended, resumed
        self.engine_name = engine
        self.base = base
        self.reporter = reporter
        chosen = engine_named(engine)
        self.plan = plan_of(scenario, modelled=chosen.is_virtual or scenario.dataset.is_modelled)
        self.shape = RunShape.of(scenario)
        self.planned_steps = derive.total_rank_steps(scenario)
        self.notes = [*checks.idle(scenario), *checks.hidden_kinds(scenario)]
        if self.plan.held_seconds and not chosen.is_virtual:
            self.notes.append(
                f"costs={scenario.costs}: each batch occupies its rank {format_seconds(self.plan.held_seconds)} "
                "longer, as with that loader; messages and reads are rayio's"
            )
        self.notes += checks.unused_schemes(scenario, base, out)
        if not self.plan.modelled:
            self.notes += idle_storage(scenario, base)
            self.notes += [layer.description for layer in self.plan.layers if layer.description]
        else:
            self.notes += idle_on_model(scenario)
        self.directory = RunDirectory(out, scenario.stores)  # created once signals are handled
        self.live_export: LiveExport | None = None
        #: Root of all ids (``rayio.trace.ids``), and the namespace of the run's actors.
        self.run_id = f"rayio-{self.directory.name}-{token_hex(4)}"
        #: Spans that an earlier part of the run stored.
        self.stored_before = 0 if resumed is None else self.directory.stored
        self.progress_writer: ProgressWriter | None = None
        if scenario.trace.live and not chosen.is_virtual:
            self.progress_writer = ProgressWriter(
                self.directory, reporter, scenario=scenario.name, engine=engine, ranks=self.plan.world_size,
                planned_steps=self.planned_steps, ranks_of_sample=self.shape.ranks_of_sample,
            )  # fmt: skip
        live = None if self.progress_writer is None else self.progress_writer.live
        self.engine = chosen(self.plan, Site(self.run_id, base, self.directory, reporter, address, live, resumed))
        anchor = Anchor.new()
        self.info: dict[str, Any] = {
            "run_id": self.run_id,
            "rayio": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "host": platform.node(),
            "pid": os.getpid(),
            "cpus": os.cpu_count(),
            "engine": engine,
            "root": base,
            "modelled_storage": self.plan.modelled,
            "payload": "real" if self.plan.payload else "none",
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "anchor": {"boot_id": anchor.boot_id, "ns": 0 if chosen.is_virtual else anchor.ns},
        }

    def run(self) -> Run:
        """Return the finished run; the run directory is complete once the roles have started.

        A signal ends the roles; then signals wait until the results are written.
        """
        with Interrupts(self.reporter.say) as interrupts:
            has_begun, error = False, None
            try:
                interrupts.listen()
                self._prepare()
                has_begun = True
                self._live()
            except BaseException as raised:
                error = raised
            interrupts.hold()
            if "fixed_work_seconds" in self.info:
                before = self.info["fixed_work_seconds"][0]
                self.info["fixed_work_seconds"].append(round(fixed_work(gate.as_fast(before)), 6))
            if error is not None and not has_begun:
                first_error(self.engine.close, self.directory.unmake)
                raise error
            after = first_error(self.engine.close, self._write_info)
            error = error or after
            self.reporter.done()
            self.notes += self.engine.outcome.notes
            done = self._finish(self.engine.outcome.tallies, error)
            if interrupts.has_waiting:
                self.reporter.say(f"run complete (interrupted after the last step): {self.directory.address}")
            self.ended(done)
            return done

    def _prepare(self) -> None:
        for text in () if self.scenario.failures is None else checks.never(self.scenario):
            self.reporter.say(f"warning: {text}")
        if self.resumed is None:
            self.directory.make({key: self.info[key] for key in ("run_id", "host", "pid", "started")})
            text = to_yaml(self.scenario)
            self.directory.write_scenario(text)
            self.info[RAN] = text
        else:  # what the first part noted stays, such as when the run began
            self.info |= self.directory.info | {"host": platform.node(), "pid": os.getpid()}
        if self.progress_writer is not None:
            self.progress_writer.begin()
        self.engine.prepare()
        self.plan = self.engine.plan
        if not self.plan.modelled:
            run = str(self.info["run_id"])
            kept = None if self.resumed is None else held_by(self.plan, self.resumed)
            self.plan, notes = prepare_files(self.scenario, self.plan, self.base, self.reporter, run, kept)
            self.engine.plan, self.notes = self.plan, self.notes + notes
        self.info["max_bytes_in_flight"] = self.plan.max_bytes_in_flight
        if not engine_named(self.engine_name).is_virtual:
            self.info["fixed_work_seconds"] = [round(fixed_work(), 6)]
        self._write_info()
        self.directory.reserve()

    def _live(self) -> None:
        try:
            if self.live_export is not None:
                self.live_export.start()
            self.engine.run(self._show)
        finally:
            hold()

    def _write_info(self) -> None:
        self.directory.release()
        self.directory.write_info(self.info | self.engine.outcome.info)

    def _show(self, progress: Mapping[str, Any], seconds: float | None) -> None:
        if self.progress_writer is not None and seconds is not None:
            self.progress_writer.look(progress, seconds)
        if self.scenario.trace.level == "none":
            self.reporter.live("running; no progress is shown, because trace.level is none")
            return
        share = progress["steps"] / self.planned_steps if self.planned_steps else None
        self.reporter.live(progress_line(progress, self.planned_steps, seconds), share)

    def _finish(self, tallies: list[Tally], error: BaseException | None) -> Run:
        result = self._numbers(tallies)
        lost = self.directory.lost_files
        unread = (f"unreadable span files: {', '.join(lost)}",) if lost else ()
        outcome = self.engine.outcome
        sources = fetched(self.plan, self.base, tallies, outcome.before, outcome.after)
        if result.restored is not None:
            origins = loaded(self.plan, self.base, tallies, outcome.before, outcome.after)
            result = replace(result, restored=replace(result.restored, fetched=origins))
        foretold = () if sources is not None and sources.page_cache_share is not None else outcome.foretold
        is_partial = self.resumed is not None or self.engine_name == "ray"  # what a process counted dies with it
        of_sources = source_notes(sources, is_partial=is_partial and bool(outcome.restarts))
        result = replace(
            result, notes=(*self.notes, *foretold, *result.notes, *unread, *of_sources), fetched=sources,
            hosts=tuple(sighting.host for sighting in outcome.before) or None,
        )  # fmt: skip
        speed = gate.speed_of_run(self.info)
        result = conclude(
            result, self.scenario, self.plan, self.engine_name, tallies, error, speed, outcome.restarts, outcome.stages
        )
        self.directory.write_result(result)  # kept even if the interval fails
        is_doubted = blocking(result.doubts or (), INTERVAL)
        if engine_named(self.engine_name).is_virtual and error is None and not is_doubted:
            try:
                extended = replace(result, between=between(self.scenario, result))
            except RayioError as failure:
                note = f"no prediction interval: the simulation with the least or most costs failed: {failure}"
                extended = replace(result, notes=(*result.notes, note))
            if extended != result:
                result = extended
                self.directory.write_result(result)
        if self.progress_writer is not None:
            self.progress_writer.end()
        if (unstored := self.engine.outcome.unstored) is not None and result.trace is not None:
            write_what_fits(self.directory, unstored)
            with suppress(StorageError):
                self.directory.write_result(replace(result, trace=replace(result.trace, stored=self.directory.stored)))
        self.directory.keep_log()
        if error is None and not engine_named(self.engine_name).is_virtual:
            self.directory.store.remove(RESUME)
            if self.engine.outcome.restarts:
                remove_unfinished(self.plan, self.base)
        done = Run(self.directory)
        if isinstance(error, KeyboardInterrupt):
            self.reporter.failed(f"run interrupted; its records until then are in {self.directory.address}")
            raise error
        if isinstance(error, RayioError):
            how = "broke off" if isinstance(error, BrokenOffError) else "failed"
            self.reporter.failed(f"run {how}; its records until then are in {self.directory.address}")
            raise error
        if error is not None:
            with self.directory.log.open("a") as log:
                traceback.print_exception(error, file=log)
            self.directory.keep_log()
            self.reporter.failed(f"run failed; the traceback is in {self.directory.store.full(LOG)}")
            raise error
        return done

    def _numbers(self, tallies: list[Tally]) -> RunResult:
        """Return the metrics, after compacting and counting the spans."""
        exported = self._exported()
        try:
            self.directory.compact()
        except RayioError as error:
            self.notes.append(f"spans are stored uncompacted: {error}")
        stored, trace = self.directory.stored, self.scenario.trace
        if self.engine.outcome.unstored is not None:
            self.notes.append("not all spans could be stored; the metrics include all recorded spans")
        elif (recorded := self.stored_before + self.engine.outcome.recorded) != stored:
            self.notes.append(f"metrics may be wrong: {recorded} spans were recorded, {stored} are stored")
        spans = self.directory.slices()
        if self.engine.outcome.unstored is not None:
            spans = Slices.of(together(self.directory.spans(), self.engine.outcome.unstored))
        if (retries := retried(spans)) is not None:
            self.notes.append(retries_note(retries))
        if trace.level == "step":
            self.notes.append(OF_STEPS)
        attempt = max((restart.attempt for restart in self.engine.outcome.restarts), default=0)
        self.notes += counted_from_spans(tallies, self.engine.outcome.unheard, self.scenario, spans, attempt)
        is_virtual = engine_named(self.engine_name).is_virtual
        numbers = numbers_of(spans, self.scenario, self.shape, tallies, is_virtual=is_virtual)
        counts = TraceCounts(
            level=trace.level,
            resolution=trace.resolution,
            recorded=self.stored_before + self.engine.outcome.recorded,
            stored=stored,
            **exported,
        )
        return replace(numbers, trace=counts)

    def _exported(self) -> dict[str, int]:
        """End the live export while its files exist; return its counts."""
        if self.live_export is None:
            return {}
        for note in filter(None, (self.live_export.finish(self.directory.stored), self.live_export.big_traces())):
            self.reporter.say(note)
            self.notes.append(note)
        return self.live_export.counts()
