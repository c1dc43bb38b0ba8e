"""``rayio run --resume RUN``: a run that broke off goes on in its run directory, from its newest checkpoint."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, cast

import numpy as np

from rayio.analyze.run_scenario import scenario_of
from rayio.analyze.timeline import integers, is_text
from rayio.errors import DataError, ScenarioError, StorageError
from rayio.kinds import LOADERS
from rayio.model import manifest, resuming
from rayio.model.attempts import BROKE_OFF, BrokenOffError, Resumed, continued
from rayio.model.engine import engine_named
from rayio.model.marks import Mark
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.model.saving import Checkpointing
from rayio.place import checkpoint_folder
from rayio.records.failures import Restart
from rayio.reporter import SILENT, Reporter
from rayio.scenario.model import Scenario
from rayio.scenario.schedule import place_of
from rayio.session import execute
from rayio.session.claiming import claimed, itself, refuse_living
from rayio.session.dataset import base_folder, resolve
from rayio.session.execute import run_session
from rayio.session.result import Run
from rayio.storage.address import join
from rayio.storage.stores.opening import Store
from rayio.trace.live_file import LIVE
from rayio.trace.run_directory import CLAIM, INFO, LOG, RESERVED, RESULT, SCENARIO, SPANS, RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

P = ParamSpec("P")

#: Exit codes of runs that did all their steps.
COMPLETE = (0, 3, 4)
ENGINES = ("ray", "local")


def start_or_resume(
    path: str,
    source: str | Path | Mapping[str, Any] | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    engine: str = "ray",
    address: str | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> Run:
    """Go on with the run at ``path``, or start it if there is none: a job that is tried again calls this each time.

    Raises:
        RayioError: see :func:`resume` and :func:`rayio.session.execute.run`.
    """
    scenario = resolve(source, overrides, root)
    where = join(base_folder(scenario, root), path)
    directory = RunDirectory(where, scenario.stores)
    if directory.holds(INFO):
        known = directory.store.read(INFO)
        there = {entry for entry in directory.store.entries() if not entry.startswith(CLAIM)}
        has_more = not there <= {INFO, SCENARIO, LOG, LIVE, RESERVED, SPANS}
        if "engine" in directory.info or has_more or directory.store.sizes(SPANS):
            return resume(where, scenario, address=address, reporter=reporter)
        refuse_living(directory)
        with claimed(directory, known):
            directory.store.remove_all()  # broke off before it began: there are no spans and no checkpoints
    return run(scenario, engine=engine, address=address, out=path, root=root, reporter=reporter)


def surviving(live: Callable[P, Run]) -> Callable[P, Run]:
    """Return a function that runs, and goes on in the run directory if a part is lost that nothing replaces."""

    @wraps(live)
    def survive(*args: P.args, **options: P.kwargs) -> Run:
        try:
            return live(*args, **options)
        except BrokenOffError as error:
            if options.get("collector") is not None:  # it has the spans of the first part
                raise
            broken = error
        address, reporter = (
            cast("str | None", options.get("address")),
            cast("Reporter", options.get("reporter", SILENT)),
        )
        done = resume(broken.directory, address=address, reporter=reporter, cause=broken.cause)
        cast("Callable[[Run], None]", options.get("ended", lambda run: None))(done)
        return done

    return survive


run = surviving(execute.run)


def resume(
    path: str,
    scenario: Scenario | None = None,
    *,
    address: str | None = None,
    reporter: Reporter = SILENT,
    cause: str = BROKE_OFF,
) -> Run:
    """Go on with a run that broke off, and return it; ``scenario`` must be its own, if given.

    ``cause`` is what died, in words. Should the run break off again, it goes on again.

    Raises:
        StorageError: there is no such run, it is complete, or it cannot be read.
        ScenarioError: it is no measured run, or ``scenario`` is another one.
        RayioError: the run fails again.
    """
    while True:
        try:
            return _resume(path, scenario, address, reporter, cause)
        except BrokenOffError as error:
            cause = error.cause


def _resume(path: str, scenario: Scenario | None, address: str | None, reporter: Reporter, cause: str) -> Run:
    """Go on with a run once; see :func:`resume`.

    Raises:
        StorageError: there is no such run, it is complete, or it cannot be read.
        ScenarioError: it is no measured run, or ``scenario`` is another one.
        RayioError: the run fails again.
    """
    directory = RunDirectory.open(path) if scenario is None else RunDirectory.open(path, scenario.stores)
    known = directory.store.read(INFO)
    info = directory.info
    if "engine" not in info:
        refuse_living(directory)
        raise StorageError(f"{path}: the run broke off before it began; remove it, and start it again")
    own = scenario_of(directory)
    engine, base = str(info["engine"]), str(info.get("root", "."))
    if engine not in ENGINES:
        raise ScenarioError(f"{path}: a run of engine {engine} cannot be resumed; simulate it again, it takes seconds")
    result = directory.result
    if result is not None and result.exit_code in COMPLETE:
        raise StorageError(f"{path} is complete (exit code {result.exit_code}): nothing is left to resume")
    refuse_living(directory)
    if (host := str(info.get("host"))) != platform.node():
        reporter.warn(f"{path} was started on {host}: make sure that it is over there")
    if scenario is not None and (key := _difference(own, scenario)):
        raise ScenarioError(
            f"{path} has another scenario: {key} differs; resume it without a scenario, or start a new run"
        )
    plan = plan_of(own, modelled=engine_named(engine).is_virtual or own.dataset.is_modelled)
    marks, restarts = resuming.read(directory, plan.world_size)
    with claimed(directory, known):
        directory.write_info(directory.info | itself())
    is_again = cause != BROKE_OFF and own.failures is not None and own.failures.policy == "from_start"
    mark = durable = None
    if not is_again:
        mark, durable = _usable(plan, marks, base, _is_known(own), reporter, str(info.get("run_id")))
    earlier = replace(_earlier(directory, plan, mark, restarts), restarts=restarts, cause=cause, durable=durable)
    earlier = replace(earlier, stages=resuming.stages_of(directory, plan.workflow))
    start = continued(plan, mark, earlier.attempt).start
    place = f"from the checkpoint before epoch {start.epoch}, step {start.step}" if mark else "from the start"
    reporter.say(f"attempt {earlier.attempt} of {path}: on {place}")
    directory.store.remove(RESULT)
    return run_session(own, engine, address, base, directory.address, reporter, earlier)


def _difference(own: Scenario, given: Scenario) -> str:
    """Return the first key with different values, or nothing."""
    pairs = zip(own.model_dump(mode="json").items(), given.model_dump(mode="json").items(), strict=True)
    for (section, mine), (_, theirs) in pairs:
        if mine != theirs:
            keys = sorted({*mine, *theirs}) if isinstance(mine, dict) and isinstance(theirs, dict) else []
            return next((f"{section}.{key}" for key in keys if mine.get(key) != theirs.get(key)), section)
    return ""


def _usable(
    plan: Plan, marks: Sequence[Mark], base: str, is_known: bool, reporter: Reporter, run: str
) -> tuple[Mark | None, Mark | None]:
    """Return a run's newest checkpoint whose files are complete, and the newest one that needs no burst tier.

    None for the start, with the reason as a warning.
    """
    saved, newest = plan.checkpointing, None
    if saved is None or not marks:
        reporter.warn("the run had no complete checkpoint, so it begins again")
        return None, None
    if not is_known:
        reporter.warn(
            "loader.in_order=false and loader.kind=torch: a checkpoint does not have the batches that came early; it "
            "begins again"
        )
        return None, None
    if plan.modelled:  # the burst tier was that of the process
        newest = next((mark for mark in marks if not mark.undrained), None)
        return newest, newest
    stores = [plan.store(base, path) for path in ([saved.burst.path] if saved.burst else []) + [saved.path]]
    for mark in marks:
        try:
            usable = _there(saved, stores, mark, run)
        except DataError as error:
            if newest is None:
                folder = checkpoint_folder(*saved.schedule.step(mark.number))
                reporter.warn(f"checkpoint {folder} is passed over: {error}")
            continue
        newest = newest or usable
        if not usable.undrained:
            return newest, replace(usable, in_burst=frozenset())
    if newest is None:
        reporter.warn("no checkpoint of the run is complete any more, so it begins again")
    return newest, None


def _there(saved: Checkpointing, stores: Sequence[Store], mark: Mark, run: str) -> Mark:
    """Return a checkpoint with what of its chain is in the burst tier, the first of two ``stores``.

    Raises:
        DataError: it is not complete, or another run wrote it; the message is the reason alone.
    """
    there, _ = manifest.whole(stores, checkpoint_folder(*saved.schedule.step(mark.number)))
    if there.run != run:
        raise DataError(f"run {there.run} wrote it")
    links, in_burst, undrained = manifest.spread(stores, there), set[int](), set[int]()
    if len(links) != len(mark.chain):
        raise DataError("it is an increment since another checkpoint")
    for number, (link, place) in zip(mark.chain, links, strict=True):
        if len(stores) == 1 or place is stores[-1]:
            if undrained:
                raise DataError(f"{checkpoint_folder(*saved.schedule.step(min(undrained)))} is in the burst tier alone")
            in_burst.clear()
            continue
        in_burst.add(number)
        try:
            manifest.whole(stores[-1:], link.folder, link)
        except DataError:
            undrained.add(number)
    return replace(mark, in_burst=frozenset(in_burst), undrained=frozenset(undrained))


def _is_known(scenario: Scenario) -> bool:
    """Return True if a checkpoint has the batches that came early, or none does."""
    return scenario.loader.in_order or bool(LOADERS[scenario.loader.kind].has_roles)


def _earlier(directory: RunDirectory, plan: Plan, mark: Mark | None, restarts: Sequence[Restart]) -> Resumed:
    """Return the earlier part of a run, from its spans; if no rank had begun, nothing is restarted."""
    spans = directory.columns("name", "role", "attempt", "epoch", "step", "start_ns", "duration_ns", "rank")
    start, attempts = integers(spans, "start_ns"), integers(spans, "attempt")
    is_rank = is_text(spans, "role", "rank")
    if not is_rank.any():
        began = _started(directory)
        return Resumed(mark, 0 if mark is None else 1, began, began)
    ends = (start + integers(spans, "duration_ns"))[is_rank]
    attempt = int(attempts[is_rank].max())
    waits = np.flatnonzero(is_text(spans, "name", "data_wait") & is_rank)
    place = integers(spans, "epoch", waits) * (1 << 32) + integers(spans, "step", waits)
    first = continued(plan, mark, attempt).start
    is_undone = place >= _place(first.epoch, first.step)
    is_undone &= place < _kept_until(place, attempts[waits], attempt, restarts)[attempts[waits]]
    last = _reached(spans, place, plan)
    return Resumed(
        mark=mark,
        attempt=attempt + 1,
        began=int(start[is_rank].min()),
        ended=int(ends.max()),
        reached=last,
        redone_steps=int(is_undone.sum()),
    )


def _place(epoch: int, step: int) -> int:
    """Return a number that grows from step to step."""
    return epoch << 32 | step


def _kept_until(
    place: NDArray[np.int64], attempts: NDArray[np.int64], last: int, restarts: Sequence[Restart]
) -> NDArray[np.int64]:
    """Return by attempt, up to ``last``, the first step that a later one began with: from there on all was redone.

    A restart that is not recorded began at its first batch.
    """
    begins = {restart.attempt: _place(restart.epoch, restart.step) for restart in restarts}
    kept = np.full(last + 1, np.iinfo(np.int64).max)
    for number in range(last, 0, -1):
        begin = begins.get(number, place[attempts == number].min(initial=kept[number]))
        kept[number - 1] = min(kept[number], begin)
    return kept


def _reached(spans: pa.Table, waits: NDArray[np.int64], plan: Plan) -> tuple[int, int]:
    """Return the last (epoch, step) that a rank began: it waited for its batch, or computed the step before."""
    last = int(waits.max(initial=-1))
    computed = np.flatnonzero(is_text(spans, "name", "compute") & is_text(spans, "role", "rank"))
    before = np.cumsum((0, *plan.steps))
    done = before[integers(spans, "epoch", computed)] + integers(spans, "step", computed)
    after = place_of(int(done.max(initial=-1)) + 1, plan.steps) if len(done) else (-1, -1)
    return max((last >> 32, last & 0xFFFFFFFF) if last >= 0 else (-1, -1), after)


def _started(directory: RunDirectory) -> int:
    """Return the start of a run without spans (ns), from run.json."""
    try:
        return round(datetime.fromisoformat(str(directory.info.get("started"))).timestamp() * 1e9)
    except ValueError:
        raise StorageError(f"{directory.address}: run.json has no time of the start; start the run again") from None
