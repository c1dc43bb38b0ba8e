"""Files that a run needs before any role starts: the dataset and the checkpoint folder."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayio.errors import ScenarioError
from rayio.model.plan import Plan
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks, derive, evaluation, stage_checks
from rayio.scenario.external import check_unchanged
from rayio.scenario.layers import layers_of
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.session.burst_folder import BurstFolder
from rayio.session.folders import Checkpoints, refuse_folders
from rayio.session.stage_files import prepare_stages
from rayio.storage.address import is_absolute, is_path, join, path_of, scheme_of
from rayio.storage.stores.opening import gap_at, has_fsync, has_page_cache
from rayio.storage.stores.paged import check_direct
from rayio.units import format_bytes


def resolve(
    source: str | Path | Mapping[str, Any] | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    root: str | Path | None = None,
) -> Scenario:
    """Return a scenario, given by path, by packaged name, by its keys or as an object.

    ``root`` is that of relative paths.

    Its published facts are left out: no run depends on them.
    """
    if isinstance(source, Scenario):
        if overrides:
            raise ScenarioError("overrides apply to a scenario's file or name, not to a Scenario object")
        checks.check(source)
        scenario = source
    else:
        scenario = load(source, overrides or (), root or "")
    return scenario.model_copy(update={"published": ()}) if scenario.published else scenario


def base_folder(scenario: Scenario, root: str | Path | None) -> str:
    """Return the base of relative paths: ``root``, or the working directory.

    Raises:
        ScenarioError: a Ray job has relative paths and no ``root``; its working directory is removed afterwards.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise ScenarioError("the working directory was removed; change to another one") from None
    if root is not None:
        return join(str(here), str(root))
    if is_job():
        relative = [p for p in paths_of(scenario) if not is_absolute(p)]
        if relative or not paths_of(scenario):
            what = f"{relative[0]} is relative" if relative else "the run directory is relative"
            raise ScenarioError(f"{what}, but Ray removes the working directory of a job; give --root DIR")
    return str(here)


def is_job() -> bool:
    """Return True in the driver of a Ray job, which nobody watches."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def paths_of(scenario: Scenario) -> list[str]:
    """Return the addresses in a scenario: dataset, evaluation, stages, checkpoints; none for modelled ones."""
    paths = [] if scenario.dataset.is_modelled else [scenario.dataset.path]
    if scenario.train.evaluate is not None and not scenario.dataset.is_modelled:
        paths.append(evaluation.path_of(scenario))
    if not scenario.dataset.is_modelled:
        paths += [stage_checks.path_of(scenario, stage) for stage in scenario.stages]
    if (saved := scenario.checkpoint) is not None:
        paths += [saved.path] if saved.burst is None else [saved.path, saved.burst.path]
    return paths


def check_page_cache(scenario: Scenario, base: str) -> None:
    """Refuse a ``storage.page_cache`` that the storage of the run's files does not support.

    Raises:
        ScenarioError: the files are in an object store.
        StorageError: the file system has no direct I/O.
    """
    page_cache = scenario.storage.page_cache
    if page_cache == "use" or scenario.dataset.is_modelled:
        return
    for path in paths_of(scenario):
        address = join(base, path)
        if not has_page_cache(address):
            what = "object stores have" if gap_at(address) else f"{scheme_of(address)}:// has"
            raise ScenarioError(
                f"storage.page_cache={page_cache} does not apply to {address} ({what} no page cache); remove the key"
            )
        if page_cache == "direct" and is_path(address):
            check_direct(path_of(address))


def idle_storage(scenario: Scenario, base: str) -> Iterator[str]:
    """Iterate over notes on storage keys without effect in this run, one line a key."""
    checkpoint = scenario.checkpoint
    acting = {layer.name for layer in layers_of(scenario, modelled=False)}
    for layer in layers_of(scenario, modelled=True):
        if layer.idle_if_real and layer.name not in acting:
            yield layer.idle_if_real
    if checkpoint is not None and checkpoint.fsync and not has_fsync(address := join(base, checkpoint.path)):
        what = "objects" if gap_at(address) else f"files of {scheme_of(address)}://"
        yield f"checkpoint.fsync=true: no effect, because {what} are durable once written"


def idle_on_model(scenario: Scenario) -> Iterator[str]:
    """Iterate over notes on keys without effect on modelled storage, one line a key."""
    if scenario.storage.page_cache != "use":
        yield (
            f"storage.page_cache={scenario.storage.page_cache}: no effect, because modelled storage has no page cache"
        )
    if scenario.checkpoint is not None and scenario.checkpoint.engine != "raw":
        yield (
            f"checkpoint.engine={scenario.checkpoint.engine}: no effect on modelled storage, which has the bytes of "
            "the state; what the engine takes is in costs that rayio calibrate learned from such a run"
        )


def generate(
    source: str | Path | Mapping[str, Any] | Scenario,
    overrides: Sequence[str] | Mapping[str, Any] | None = None,
    *,
    root: str | Path | None = None,
    threads: int | None = None,
    verify: bool = False,
    reporter: Reporter = SILENT,
) -> Path | str:
    """Generate a scenario's dataset, or check an existing one; return its folder, or its address in a store.

    The check compares names and sizes of all files; ``verify`` reads and checks every sample and label too.

    >>> rayio.generate("unet3d-small", {"dataset.num_files": 14}, root="small").name
    'unet3d-small'

    Raises:
        ScenarioError: the scenario is invalid, or its dataset is modelled (``model://``).
        DataError: the folder holds something else, or a sample is damaged.
        StorageError: no space or no permission.
    """
    scenario = resolve(source, overrides, root)
    if scenario.dataset.is_modelled:
        raise ScenarioError(f"dataset.path={scenario.dataset.path} is modelled, so there is nothing to generate")
    base = base_folder(scenario, root)
    refuse_folders(scenario, base)
    place = prepare_dataset(scenario, base, threads, reporter, verify=verify)
    return path_of(place) if is_path(place) else place


def prepare_dataset(
    scenario: Scenario,
    base: str,
    threads: int | None,
    reporter: Reporter,
    section: str = "dataset",
    *,
    verify: bool = False,
) -> str:
    """Generate or check the files of the dataset and of the evaluation's; return the dataset's address."""
    from rayio.data import generate as generating
    from rayio.data.formats import layout_of

    check_page_cache(scenario, base)
    if (held_out := evaluation.phase_of(scenario)) is not None:
        prepare_dataset(held_out, base, threads, reporter, "dataset.eval", verify=verify)
    folder = join(base, scenario.dataset.path)
    layout = layout_of(scenario)
    if scenario.dataset.external:
        files = check_unchanged(scenario, folder, layout.listing)
        reporter.say(f"dataset {folder}: found {len(files)} files, {format_bytes(int(files.sizes.sum()))}")
        return folder
    report = generating.prepare(
        layout, scenario.dataset.format, folder,
        settings=scenario.stores, threads=threads, progress=reporter.generating, section=section,
    )  # fmt: skip
    reporter.done()
    written_now, reused = (report.written_files, report.written_bytes), (report.reused_files, report.reused_bytes)
    reporter.generated(folder, written_now, reused)
    done = []
    if report.written_files:
        done.append(f"generated {report.written_files} files, {format_bytes(report.written_bytes)}")
    if report.reused_files:
        done.append(f"found {report.reused_files} files, {format_bytes(report.reused_bytes)}")
    reporter.say(f"dataset {folder}: {', '.join(done)}")
    if verify:

        def progress(files: int, nbytes: int, of_files: int, of_bytes: int) -> None:
            reporter.live(f"verifying: {files}/{of_files} files · {format_bytes(nbytes)} of {format_bytes(of_bytes)}")

        verified = generating.verify(
            layout, scenario.dataset.format, folder, settings=scenario.stores, threads=threads, progress=progress
        )
        reporter.done()
        reporter.say(f"dataset {folder}: verified every sample of {verified.reused_files} files")
    return folder


def prepare_files(
    scenario: Scenario, plan: Plan, base: str, reporter: Reporter, run: str, kept: Collection[str] | None = None
) -> tuple[Plan, list[str]]:
    """Generate or check the dataset, and prepare a folder with space for all checkpoints of a run with the id ``run``.

    ``kept`` are the folders in the burst tier from which a run goes on that broke off. Returns the plan, with the
    checkpoint that the run begins with, and notes.
    """
    checkpoints, notes = None if scenario.checkpoint is None else Checkpoints(scenario, plan, base), list[str]()
    tier = BurstFolder(scenario, plan, base) if scenario.checkpoint is not None and scenario.checkpoint.burst else None
    if tier is not None:
        tier.look()
        tier.check_space()
    if checkpoints is not None:  # before the dataset, which may take hours
        checkpoints.look()
        checkpoints.check_space()
        plan, notes = checkpoints.begin(plan, reporter, run, None if tier is None else tier.chosen)
    if derive.phases(scenario) is None:
        prepare_dataset(scenario, base, None, reporter)
    else:
        check_page_cache(scenario, base)
    prepare_stages(plan, base, reporter)
    if checkpoints is not None:
        checkpoints.prepare(reporter)
    if tier is not None:
        tier.prepare(reporter, kept)
    return plan, notes
