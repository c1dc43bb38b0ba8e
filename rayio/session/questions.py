"""Questions about finished runs, by path or as objects: the functions of ``import rayio``."""

from __future__ import annotations

from pathlib import Path

from rayio.records.explained import Explained
from rayio.report import explain as explaining
from rayio.reporter import SILENT, Reporter
from rayio.session.busy_runs import calibrated
from rayio.session.calibration import Calibration
from rayio.session.result import Run


def explain(
    run: str | Path | Run,
    *,
    simulate: bool = True,
    whole: bool = False,
    target_au: float | None = None,
    reporter: Reporter = SILENT,
) -> Explained:
    """Return where a run lost time, its bottleneck and what would help, as ``rayio explain`` prints it.

    >>> run = rayio.simulate("unet3d-small", {"loader.decode": "1 s"}, out="runs/slow")
    >>> rayio.explain("runs/slow").verdict.cause
    'decode'

    Args:
        run: a run, or its directory by path or address.
        simulate: whether the run is replayed on the virtual clock, to find what would help.
        whole: whether all steps of a long run are replayed, and not the first ones.
        target_au: AU to reach, 0 to 1; None for that of ``expect:``.
        reporter: receiver of the progress.

    Raises:
        StorageError: no run is there, or it cannot be read.
        ScenarioError: the run has no scenario, or one that this version cannot read.
    """
    return explaining.explain(_address(run), simulate=simulate, whole=whole, target_au=target_au, reporter=reporter)


def calibrate(
    run: str | Path | Run,
    *others: str | Path | Run,
    out: str | Path | None = None,
    busy_run: bool = True,
    reporter: Reporter = SILENT,
) -> Calibration:
    """Return a run's scenario with costs fitted to it, for predictions: ``rayio.simulate(calibrated.scenario)``.

    >>> run = rayio.run("unet3d-small", {"train.compute": "5 ms"}, engine="local", out="runs/measured")
    >>> rayio.calibrate(run).scenario.name
    'unet3d-small'

    Args:
        run: a run on Ray or the local engine, or its directory by path or address.
        others: short runs with other sample sizes, to fit the time for each byte.
        busy_run: whether busy and lone runs are also made for each run on Ray, and processors are probed.
        out: scenario file to write; an existing one is replaced. None writes none.
        reporter: receiver of the progress.

    Raises:
        StorageError: no run is there, it is damaged, or the file cannot be written.
        RunError: a run was simulated, broke off, was too short, or differs too much from the first.
    """
    learned = calibrated(_address(run), *map(_address, others), busy=busy_run, reporter=reporter)
    if out is not None:
        learned.write(Path(out))
    return learned


def _address(run: str | Path | Run) -> str | Path:
    return run.address if isinstance(run, Run) else run
