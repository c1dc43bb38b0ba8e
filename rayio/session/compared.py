"""Runs compared, from their directories."""

from __future__ import annotations

from pathlib import Path

import yaml

from rayio import storage
from rayio.analyze.compare import Compared
from rayio.analyze.run_scenario import has_edited_keys, is_edited, text_of
from rayio.errors import ScenarioError, StorageError
from rayio.records.comparison import Comparison
from rayio.report.compare import compared
from rayio.report.compare_page import page
from rayio.scenario.source import UNREADABLE, plain
from rayio.session.result import Run
from rayio.storage.address import is_path, last_part, parent, path_of
from rayio.storage.stores.opening import with_option


def compare(*runs: str | Path | Run, out: str | Path | None = None) -> Comparison:
    """Return a comparison of runs: verdict, differing keys, metrics and noise.

    Runs of one scenario are repeats. The first run's group is A, with which the others are compared.

    >>> for workers in (1, 4):
    ...     for seed in range(3):
    ...         keys = {"loader.num_workers": workers, "loader.decode": "30 ms", "seed": seed}
    ...         run = rayio.simulate("unet3d-small", keys, out=f"runs/{workers}-of-{seed}")
    >>> folders = [f"runs/{workers}-of-{seed}" for workers in (1, 4) for seed in range(3)]
    >>> rayio.compare(*folders).verdicts[0].outcome
    'faster'

    Args:
        runs: at least two run directories, by path or address, or runs.
        out: file to write the comparison to, as an HTML page; None writes none.

    Raises:
        StorageError: a run is missing or damaged, or the page cannot be written.
        ScenarioError: fewer than two runs, or one is given twice, or its scenario is damaged.
    """
    paths = [run.address if isinstance(run, Run) else str(run) for run in runs]
    if len(paths) < 2:
        raise ScenarioError("compare: give at least two run directories")
    resolved = [str(path_of(path).resolve()) if is_path(path) else path.rstrip("/") for path in paths]
    if twice := next((path for number, path in enumerate(paths) if resolved[number] in resolved[:number]), None):
        raise ScenarioError(f"compare: {twice} is given twice; give each run once")
    comparison = compared([*map(_opened, paths)])
    if out is not None:
        _write(comparison, str(out))
    return comparison


def _opened(path: str) -> Compared:
    run = Run.open(path)
    directory, result = run.directory, run.result
    text, has_edited = text_of(directory), has_edited_keys(directory)
    try:
        scenario = plain(text) if text else {}
    except (yaml.YAMLError, *UNREADABLE):
        scenario = None
    if not isinstance(scenario, dict):
        raise ScenarioError(f"{path}/scenario.yaml is not a scenario: the file is damaged; restore or remove it")
    is_ignored = not has_edited and is_edited(directory)
    return Compared(path, result, scenario, directory.info, has_edited_keys=has_edited, has_ignored_edits=is_ignored)


def _write(comparison: Comparison, out: str) -> None:
    html = page(comparison).encode()
    try:
        store = storage.open(parent(out))
        store.prepare("writing there")
        store.write(last_part(out), lambda file: file.write(html), doing="writing the comparison")
    except StorageError as error:
        raise StorageError(str(with_option(error, "cannot write", "--out"))) from None
