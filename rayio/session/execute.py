"""A run from start to verdict: make ready, let an engine run the roles, collect, measure, judge."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal

import psutil

from rayio import __version__
from rayio.analyze.live import Live, line
from rayio.analyze.metrics import RunShape, measure
from rayio.analyze.summary import check_expectations, check_names
from rayio.analyze.untraced import measure_lives
from rayio.errors import ExpectationError, LedgerError, RayioError, ScenarioError
from rayio.pipeline import ledger
from rayio.pipeline.ledger import Tally
from rayio.pipeline.plan import IN_FLIGHT_SHARE, Plan
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks, derive
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.session.dataset import base_folder, prepare_files, resolve
from rayio.session.result import Run
from rayio.trace.clocks import Anchor, drifts
from rayio.trace.parts import Parts
from rayio.trace.recorder import Recorder
from rayio.trace.span import schema
from rayio.trace.store import RunDirectory, to_ipc

if TYPE_CHECKING:
    from rayio.collectors.sending import Sender
    from rayio.export.live import LiveExport

Engine = Literal["ray", "local", "virtual"]


def simulate(
    source: str | Path | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> Run:
    """Run a scenario on the virtual clock; storage is its model. See :func:`run`."""
    return run(source, overrides, engine="virtual", out=out, root=root, reporter=reporter)


def run(
    source: str | Path | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    engine: Engine = "ray",
    address: str | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
    collector: Sender | None = None,
    select: str = "all",
) -> Run:
    """Run a scenario and give its numbers. A dataset that is not there is generated first.

    Args:
        source: path or packaged name of a scenario, or a Scenario.
        overrides: ``section.key=value`` texts, or a mapping of dotted keys to values.
        engine: ``ray`` (actors), ``local`` (this process, wall clock) or ``virtual`` (this process, virtual clock).
        address: Ray cluster to use (``auto``: the one running here); None starts a local one, or uses RAY_ADDRESS.
        out: run directory to make; None picks ``runs/<name>-<time>`` below ``root``.
        root: folder from which relative paths start; None is the working directory.
        reporter: who is told how it goes.
        collector: where spans are sent while the run goes (``rayio.collectors.transport.connect``); closed at the end.
        select: the steps whose spans are sent there: ``all``, ``first``, ``every:N``.

    Raises:
        RayioError: bad input, a cluster that cannot run this, or a role that failed. Once the roles have started, the
            run directory is complete and holds the error before it is raised.
        KeyboardInterrupt: after Ctrl-C, likewise.
    """
    scenario = resolve(source, overrides)
    if engine not in ("ray", "local", "virtual"):
        raise ScenarioError(f"no engine named {engine!r}; there are ray, local and virtual")
    check_names(scenario.expect)
    if collector is not None:
        from rayio.export.live import LiveExport
        from rayio.export.select import parse_live

        parse_live(select)
    base = base_folder(scenario, root)
    session = _Session(scenario, engine, address, base, _out(scenario, base, out), reporter)
    if collector is not None:
        session.live_export = LiveExport(
            session.directory, session.run_id, collector, selection=select, world_size=session.plan.world_size
        )
    return session.run()


def _out(scenario: Scenario, base: Path, out: str | Path | None) -> Path:
    if out is not None:
        return base / out
    stem = f"{scenario.name}-{datetime.now(UTC).astimezone():%Y%m%d-%H%M%S}"
    number = 0
    while (path := base / "runs" / (stem if not number else f"{stem}-{number}")).exists():
        number += 1
    return path


class _Session:
    """One call of :func:`run`."""

    def __init__(
        self, scenario: Scenario, engine: Engine, address: str | None, base: Path, out: Path, reporter: Reporter
    ) -> None:
        self.scenario = scenario
        self.engine = engine
        self.address = address
        self.base = base
        self.reporter = reporter
        self.plan = Plan(scenario, modelled=engine == "virtual" or scenario.dataset.is_modelled)
        self.shape = RunShape.of(scenario)
        self.planned_steps = derive.total_rank_steps(scenario)
        self.notes = checks.idle(scenario)
        if engine != "ray" and scenario.loader.worker == "thread":
            self.notes.append(f"loader.worker=thread: is for Ray; on the {engine} engine all roles share one process")
        self.live = Live()
        self.directory = RunDirectory.create(out)
        self.parts = Parts(self.directory)
        #: Spans that the roles recorded, as far as they could be asked.
        self.recorded = 0
        self.live_export: LiveExport | None = None
        #: What ids are derived from (``rayio.trace.ids``), and the namespace of the run's actors.
        self.run_id = f"rayio-{self.directory.path.name}-{token_hex(4)}"
        self.info: dict[str, Any] = {
            "run_id": self.run_id,
            "rayio": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "engine": engine,
            "root": str(base),
            "modelled_storage": self.plan.modelled,
            "payload": "real" if self.plan.payload else "none",
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "anchor": {"boot_id": Anchor.new().boot_id, "ns": 0 if engine == "virtual" else Anchor.new().ns},
        }

    def run(self) -> Run:
        """Run, collect, measure; whatever happens after the roles have started is in the run directory."""
        started = False
        tallies = [Tally(rank) for rank in range(self.plan.world_size)]
        error: BaseException | None = None
        self._began = time.monotonic()
        try:
            self.directory.write_scenario(to_yaml(self.scenario))
            with self._engine() as go:
                started = True
                self._began = time.monotonic()
                if self.live_export is not None:
                    self.live_export.start()
                tallies, error = go(tallies)
        except BaseException as problem:
            if not started:
                self._undo()
                raise
            error = problem
        self.reporter.done()
        self.parts.write(is_last=True)
        return self._finish(tallies, error)

    def _undo(self) -> None:
        """Leave nothing of a run that never began."""
        import shutil

        shutil.rmtree(self.directory.path, ignore_errors=True)

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Callable[[list[Tally]], tuple[list[Tally], BaseException | None]]]:
        """Make everything ready; what it yields runs the roles and gives what was consumed and what went wrong."""
        if self.engine == "ray":
            with self._ray() as go:
                yield go
            return
        if self.plan.payload:
            free = psutil.virtual_memory().available // self.scenario.cluster.nodes
            self.plan = Plan(self.scenario, self.plan.modelled, int(IN_FLIGHT_SHARE * free))
        if not self.plan.modelled:
            prepare_files(self.scenario, self.base, self.reporter)
        self.directory.write_info(self.info | {"max_bytes_in_flight": self.plan.max_bytes_in_flight})
        to_ipc(schema().empty_table())  # loads Arrow now: in the middle of a run it would stop every role's clock
        yield self._in_process

    def _in_process(self, tallies: list[Tally]) -> tuple[list[Tally], BaseException | None]:
        from rayio.pipeline import local

        recorder = Recorder(resolution_ns=self.scenario.trace.resolution_ns)

        def watch() -> None:
            table = recorder.drain()
            if table is not None:
                self.live.add(table)
                self.parts.keep(table)
            self._show(self.live.snapshot())

        error: BaseException | None = None
        try:
            if self.engine == "virtual":
                local.simulate(self.plan, recorder, tallies, watch)
            else:
                local.run(self.plan, recorder, self.base, tallies, watch, self.run_id)
        except BaseException as problem:
            error = problem
        self.parts.keep(recorder.drain())
        self.recorded = recorder.recorded
        return tallies, error

    @contextlib.contextmanager
    def _ray(self) -> Iterator[Callable[[list[Tally]], tuple[list[Tally], BaseException | None]]]:
        from rayio.cluster import connect as connecting
        from rayio.cluster import run as cluster

        is_there = self.address or os.environ.get("RAY_ADDRESS")
        self.reporter.say("connecting to Ray" if is_there else "starting a local Ray")
        connection = connecting.connect(self.address, self.directory.log)
        try:
            if self.plan.payload:
                bound = connecting.in_flight_bytes(self.scenario.cluster.nodes, connection)
                self.plan = Plan(self.scenario, self.plan.modelled, bound)
            warnings = connecting.preflight(self.plan, connection)
            for text in warnings:
                self.reporter.say(f"warning: {text}")
            self.notes += warnings
            if not self.plan.modelled:
                prepare_files(self.scenario, self.base, self.reporter)
            self.info |= {"ray": connection.nodes[0].ray, "nodes": [_node(n) for n in connection.nodes]}
            self.info |= {"is_our_ray": connection.is_ours, "max_bytes_in_flight": self.plan.max_bytes_in_flight}
            self.directory.write_info(self.info)

            def go(tallies: list[Tally]) -> tuple[list[Tally], BaseException | None]:
                attempt = cluster.Run(self.plan, connection, self.directory.path, self.base, self.run_id)
                seen = 0

                def watch(progress: dict[str, Any]) -> None:
                    nonlocal seen
                    for restart in progress["restarts"][seen:]:
                        self.reporter.say(_restarted(restart))
                    seen = len(progress["restarts"])
                    self._show(progress)

                def begin() -> None:
                    self._began = time.monotonic()
                    self.reporter.say(f"{len(attempt.handles)} actors are running")

                outcome = cluster.run(attempt, watch, self.reporter.say, begin)
                self._keep(outcome)
                by_rank = {tally.rank: tally for tally in outcome.tallies}
                return [by_rank.get(tally.rank, tally) for tally in tallies], outcome.error

            yield go
        finally:
            with _no_interrupt():
                connection.close()

    def _keep(self, outcome: Any) -> None:
        self.notes += [*(_restarted(restart) for restart in outcome.restarts), *drifts(outcome.clocks)]
        self.recorded = outcome.recorded
        same = {"boot_id": self.info["anchor"]["boot_id"], "offset_ns": 0, "error_ns": 0}
        clocks = {str(node): outcome.clocks.get(node, same) for node in range(self.scenario.cluster.nodes)}
        self.info |= {"actors": outcome.actors, "restarts": outcome.restarts, "clocks": clocks}
        self.directory.write_info(self.info)

    def _show(self, snapshot: Mapping[str, Any]) -> None:
        seconds = None if self.engine == "virtual" else time.monotonic() - self._began
        if self.scenario.trace.level == "none":
            self.reporter.live("running; trace.level is none, so nothing is known before the end")
            return
        self.reporter.live(line(dict(snapshot), self.planned_steps, seconds))

    def _finish(self, tallies: list[Tally], error: BaseException | None) -> Run:
        result: dict[str, Any] = {"version": 1, "engine": self.engine, "scenario": self.scenario.name}
        result |= self._numbers(tallies)
        if error is None:
            books = ledger.close(self.plan.planned(), tallies).as_dict()
        else:  # nothing to compare: how much was planned is enough
            books = ledger.close(self.plan.planned_numbers(), tallies).as_dict() | {"even": None, "differences": []}
        result["ledger"] = books
        result["dropped_samples_per_epoch"] = derive.dropped_samples(self.scenario)
        result["capped_samples_per_epoch"] = derive.capped_samples(self.scenario)
        result["notes"] = [*self.notes, *result["notes"]]
        if lost := self.directory.lost_files:
            result["notes"].append(f"span files that cannot be read: {', '.join(lost)}")
        verdict, code = self._verdict(error, books, result)
        result |= {"exit_code": code, "error": verdict}
        self.directory.write_result(result)
        done = Run(self.directory)
        if isinstance(error, KeyboardInterrupt):
            self.reporter.say(f"what was recorded until the interrupt is in {done.path}")
            raise error
        if isinstance(error, RayioError):
            self.reporter.say(f"the run broke off; what was recorded until then is in {done.path}")
            raise error
        if error is not None:
            with self.directory.log.open("a") as log:
                traceback.print_exception(error, file=log)
            self.reporter.say(f"the run broke off; the traceback is in {self.directory.log}")
            raise error
        return done

    def _numbers(self, tallies: list[Tally]) -> dict[str, Any]:
        """Compact the spans, count them, and measure."""
        exported = self._exported()
        try:
            self.directory.compact()
        except RayioError as error:
            self.notes.append(f"the spans are stored as they came, not compacted: {error}")
        stored, trace = self.directory.stored, self.scenario.trace
        if self.recorded != stored:
            self.notes.append(f"{self.recorded} spans were recorded and {stored} are stored: the numbers may be wrong")
        spans = self.directory.spans()
        if trace.level == "none":
            steps = [tally.steps - tally.evaluation_steps for tally in tallies]
            samples = sum(tally.samples - tally.evaluation_samples for tally in tallies)
            numbers = measure_lives(spans, self.shape, steps, samples)
        else:
            numbers = measure(spans, self.shape)
            if trace.level == "step":
                self.notes.append("trace.level is step: no reader was recorded, so what was read (MiB/s) is unknown")
        counts = {"level": trace.level, "resolution": trace.resolution, "recorded": self.recorded, "stored": stored}
        counts |= exported
        return numbers | {"trace": counts}

    def _exported(self) -> dict[str, Any]:
        """End the live export, while the files that it reads are there."""
        if self.live_export is None:
            return {}
        for told in filter(None, (self.live_export.finish(self.directory.stored), self.live_export.big_traces())):
            self.reporter.say(told)
            self.notes.append(told)
        return self.live_export.counts()

    def _verdict(
        self, error: BaseException | None, books: Mapping[str, Any], result: Mapping[str, Any]
    ) -> tuple[str | None, int]:
        if isinstance(error, KeyboardInterrupt):
            return "interrupted", 130
        if isinstance(error, RayioError):
            return str(error), error.exit_code
        if error is not None:
            return f"{type(error).__name__}: {error}", 1
        if not books["even"]:
            return f"the ledger is not even: {'; '.join(books['differences'][:3])}", LedgerError.exit_code
        if unmet := check_expectations(self.scenario.expect, result):
            return "; ".join(unmet), ExpectationError.exit_code
        return None, 0


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Let a second Ctrl-C wait until Ray is down, where signals can be had."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _node(node: Any) -> dict[str, Any]:
    return {"id": node.node_id, "host": node.host, "python": node.python, "object_store_bytes": node.object_store_bytes}


def _restarted(restart: Mapping[str, Any]) -> str:
    return (
        f"{restart['actor']} died and was started again (pid {restart['pid']}); "
        f"nothing was heard of it for {restart['silent_seconds']:.1f} s"
    )
