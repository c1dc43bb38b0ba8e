"""The cheapest setting that reaches a goal: searched with few simulations, and checked by a real run on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rayio.analyze.filled import enough
from rayio.analyze.gate import of_result
from rayio.errors import RayioError, ScenarioError
from rayio.predict.counterfactual import left_out
from rayio.records.doubts import SETTING, blocking
from rayio.records.sizing import HOLDS, UNDECIDED, Advised, AsWritten, Bottleneck, Checked, Setting
from rayio.records.sizing_notes import (
    InvalidSettings,
    MoreIsNotWorse,
    MoreIsWorse,
    SimulationFailed,
    SizingNote,
    StepsSimulated,
    UndecidedSettings,
)
from rayio.report.advice_page import PAGE, page
from rayio.report.text.sizing_notes import worded
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks, derive
from rayio.scenario.load import loading
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.session.dataset import base_folder
from rayio.session.execute import simulate
from rayio.session.resume import run as run_one
from rayio.study.sizing.doubts import of_miss, of_setting
from rayio.study.sizing.knee import bottleneck_of
from rayio.study.sizing.prices import DEAR, Choice, Varied, as_overrides, cheapest, choices, front, varied
from rayio.study.sizing.questions import files_for, without_failures
from rayio.study.sizing.trials import AU, AU_DLIO, ROUNDING, Trials, au_of
from rayio.study.sweeps.finished import Sweep
from rayio.study.sweeps.points import grid
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_files import write_tables

#: Bytes per second of ranks that compute in no time; no demand that can be stated.
UNBOUNDED = 1e300


def advise(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    vary: str = "loader.num_workers=1..16,loader.prefetch_factor=1..8",
    reach: str = "au=0.9",
    price: str = ",".join(DEAR),
    check: str | None = None,
    address: str | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> Advised:
    """Return the cheapest setting of some keys that reaches a goal, searched with few simulations.

    >>> result = rayio.advise("unet3d-small", ["train.epochs=1"], vary="loader.num_workers=1..4", out="advice/small")
    >>> result.advice.values, result.possible
    ((1,), 4)

    Args:
        source: path or packaged name of a scenario.
        overrides: ``section.key=value`` texts, or a mapping of dotted keys to values.
        vary: keys and their values: ``loader.num_workers=1..16`` (ordered: assumes that more is not worse, so few are
            simulated), ``dataset.format=npz|tfrecord`` (alternatives: all are simulated).
        reach: ``au=0.9``, or ``au_dlio=0.9`` by DLIO's formula.
        price: costs to minimize, most important first: workers, memory, nodes.
        check: ``ray`` or ``local``: run the advised setting once, on real storage.
        address: Ray cluster for that run, see :func:`rayio.run`.
        out: directory of the simulations, resumed if it exists; None is ``advice/<name>`` below ``root``.
        root: base folder of relative paths.
        reporter: receives progress.

    Raises:
        ScenarioError: the scenario, a key, a value or the goal is invalid.
        StorageError: the directory holds another search, or cannot be written.
    """
    formula, target = _goal(reach)
    dear = tuple(name.strip() for name in price.split(","))
    twice = [name for place, name in enumerate(dear) if name in dear[:place]]
    if strange := [name for name in dear if name not in DEAR] or twice:
        why = "not allowed" if strange[0] not in DEAR else "given twice"
        raise ScenarioError(
            f"--price {price}: {strange[0] or 'an empty part'} is {why}; give {', '.join(DEAR)}, each at most once"
        )
    if check not in (None, "ray", "local"):
        raise ScenarioError(f"--check {check}: must be ray or local")
    dear = (*dear, *(name for name in DEAR if name not in dear))
    search = _Advising(source, overrides, varied(vary), formula, target, dear, out, root, reporter)
    return search.run(check, address)


def _goal(reach: str) -> tuple[str, float]:
    name, _, number = reach.replace(">=", "=").partition("=")
    if name.strip() not in (AU, AU_DLIO):
        raise ScenarioError(f"--reach {reach}: not yet: {name.strip()}; there are {AU} and {AU_DLIO}, such as au=0.9")
    try:
        target = float(number)
    except ValueError:
        target = -1.0
    if not 0 < target <= 1:
        raise ScenarioError(f"--reach {reach}: must be above 0 and at most 1, such as au=0.9")
    return name.strip(), target


class Progress:
    """The progress of a search along prices, estimated from the simulations that each price took so far."""

    def __init__(self) -> None:
        self._simulations = self._prices = self._at_price = 0
        self._prices_left = 1
        self._share = 0.0

    def next_price(self, left: int) -> None:
        """Count another price; ``left`` prices are left, including this one."""
        self._prices += 1
        self._prices_left, self._at_price = left, 0

    def done(self) -> None:
        """Count a finished simulation."""
        self._simulations += 1
        self._at_price += 1

    def share(self, of_current: float) -> float:
        """Return the share of the search that is done, 0 to 1; it never falls. ``of_current`` is that of a simulation.

        >>> progress = Progress()
        >>> progress.next_price(4)
        >>> progress.share(0.0), progress.share(0.5)
        (0.0, 0.125)
        """
        each = max(self._simulations / max(self._prices, 1), 1.0)
        left = max(each - self._at_price, 1.0) + each * (self._prices_left - 1)
        self._share = max(self._share, min((self._simulations + of_current) / (self._simulations + left), 0.99))
        return self._share


class _Advising:
    def __init__(
        self,
        source: str | Path,
        overrides: Sequence[str] | Mapping[str, Any],
        keys: tuple[Varied, ...],
        formula: str,
        target: float,
        dear: tuple[str, ...],
        out: str | Path | None,
        root: str | Path | None,
        reporter: Reporter,
    ) -> None:
        self.keys, self.formula, self.target, self.dear, self.reporter = keys, formula, target, dear, reporter
        points = grid(overrides)
        if points.keys:
            raise ScenarioError(f"{points.keys[0]} has several values; give them to --vary")
        if both := [key.key for key in keys if key.key in points.fixed]:
            raise ScenarioError(f"{both[0]} is varied, and also set to {show(points.fixed[both[0]])}; remove one")
        if lost := [key.key for key in keys if key.key.partition(".")[0] == "failures"]:
            raise ScenarioError(f"--vary {lost[0]}: failures do not change AU; use rayio sweep, which compares goodput")
        if "seed" in (key.key for key in keys):
            raise ScenarioError("--vary seed: a seed is no setting; the search repeats with other seeds where it must")
        self.fixed = points.fixed
        self.load, self.base, of_failures = without_failures(loading(source), self.fixed)
        checks.check_simulated(self.base)
        self.names = tuple(key.key for key in keys)
        self.all, refused = choices(keys, self._plain, dear)
        self.notes = [*of_failures, *([InvalidSettings(len(refused), refused[0])] if refused else [])]
        self.steps = self._steps()
        self.root = base_folder(self.base, root)
        directory = SweepDirectory.at(out, f"advice/{self.base.name}", self.root, self._identity())
        self.trials = Trials(
            directory, engine="virtual", target=target, formula=formula, root=self.root, reporter=reporter
        )
        self.tried: dict[int, Choice] = {}
        self.progress = Progress()

    def _plain(self, values: tuple[Any, ...]) -> Scenario:
        """Return a setting's scenario as the user would run it."""
        return self.load({**self.fixed, **dict(zip(self.names, values, strict=True))})

    def _steps(self) -> int:
        """Return the steps per rank and epoch of every setting: enough for their longest window."""
        windows = [derive.window_steps(self._plain(choice.values)) for choice in self.all]
        steps = max(derive.steps_per_epoch(self.base), enough(max(windows)))
        return min(steps, self.base.train.cap or steps)

    def _grown(self, values: tuple[Any, ...]) -> Scenario:
        """Return the scenario that is simulated for a setting."""
        overrides = {**self.fixed, **dict(zip(self.names, values, strict=True))}
        return self.load({**overrides, "dataset.num_files": files_for(self.load(overrides), self.steps)})

    def _identity(self) -> dict[str, Any]:
        """Return what all settings share; a search with another goal or price resumes in the same directory."""
        content: dict[str, Any] = self.base.model_dump(mode="json")
        for key in (*self.names, "dataset.num_files"):
            *sections, last = key.split(".")
            holder: Any = content
            for section in sections:
                holder = holder.get(section) if isinstance(holder, dict) else None
            if isinstance(holder, dict):
                holder.pop(last, None)
        question = {"engine": "virtual", "swept keys": list(self.names), "formula": self.formula}
        return {**question, "steps": self.steps, "scenario": content}

    def run(self, check: str | None, address: str | None) -> Advised:
        """Search, check and write the tables; return the answer, after Ctrl-C a partial one."""
        best: Choice | None = None
        checked: Checked | None = None
        as_written: AsWritten | None = None
        bottleneck: Bottleneck | None = None
        is_finished = False
        try:
            with self.trials.directory:
                is_ordered = [key.is_ordered for key in self.keys]
                best = cheapest(self.all, is_ordered, self._reaches, self._au, self.progress.next_price)
            if best is None and (nearest := self._nearest()) is not None:
                self.reporter.live("finding the bottleneck", None)
                bottleneck = bottleneck_of(self.trials.tried[nearest].scenario, None, SILENT)
            if best is not None:
                as_written = self._as_written(best)
            self.reporter.done()
            if best is not None and check is not None:
                checked = self._check(best, check, address)
            is_finished = True
        except KeyboardInterrupt:
            self.reporter.done()
            path = self.trials.directory.path
            self.reporter.failed(f"interrupted; give the same command to resume: {path} has the simulations so far")
        self.reporter.done()
        answer = self._answer(best, checked, as_written, bottleneck, is_finished)
        if self.trials.rows:
            directory = self.trials.directory
            write_tables(Sweep(directory.path, self.base.name, "virtual", self.names, tuple(self.trials.rows)))
            directory.write(PAGE, page(answer).encode())
        return answer

    def _answer(
        self,
        best: Choice | None,
        checked: Checked | None,
        as_written: AsWritten | None,
        bottleneck: Bottleneck | None,
        is_finished: bool,
    ) -> Advised:
        made = [item for item in self.tried.items() if self._has_runs(item[0])]
        in_order = sorted(made, key=lambda item: (item[1].cost, item[1].places))
        if best is None:
            doubts = of_miss(self.trials.tried.get(self._nearest() or 0), self.target, self.formula)
        else:
            doubts = of_setting(self.trials.tried[self.all.index(best)], self.target)
        advised = None if best is None or blocking(doubts, SETTING) else self.all.index(best)
        on_front = front(
            [
                (number, choice.cost, au, number == advised)
                for number, choice in in_order
                if (au := self.trials.tried[number].mean(self.formula)) is not None
            ]
        )
        settings = {number: self._setting(number, choice, number in on_front) for number, choice in in_order}
        return Advised(
            directory=str(self.trials.directory.path),
            scenario=self.base.name,
            varied=self.names,
            goal=self.formula,
            target_au=self.target,
            priced_by=self.dear,
            possible=len(self.all),
            equally_priced=0 if advised is None else sum(self.all[advised].cost == each.cost for each in self.all),
            simulations=sum(len(trial.rows) for trial in self.trials.tried.values()),
            is_finished=is_finished,
            advice=None if advised is None else settings[advised],
            tried=tuple(settings.values()),
            bottleneck=bottleneck,
            check=checked,
            as_written=as_written if advised is not None else None,
            notes=worded(self._notes()),
            doubts=doubts,
        )

    def _has_runs(self, number: int) -> bool:
        """Return False for a setting whose first run was interrupted."""
        trial = self.trials.tried.get(number)
        return trial is not None and bool(trial.rows)

    def _nearest(self) -> int | None:
        """Return the setting with the highest AU; None if nothing was simulated."""
        known = {number: trial.mean(self.formula) for number, trial in self.trials.tried.items()}
        return max(
            (number for number, au in known.items() if au is not None), key=lambda n: known[n] or 0, default=None
        )

    def _reaches(self, choice: Choice) -> bool:
        number = self.all.index(choice)
        self.tried[number] = choice
        text = f"setting {len(self.tried)} of {len(self.all)} possible; {as_overrides(self.names, choice.values)}"

        def show_share(share: float) -> None:
            self.reporter.live(text, self.progress.share(share))

        show_share(0.0)
        trial = self.trials.try_out(number, self._grown(choice.values), show_share, choice.values)
        self.progress.done()
        return trial.status == HOLDS

    def _au(self, choice: Choice) -> float:
        """Return the AU of a setting that was tried, to a tenth of a point."""
        return round(self.trials.tried[self.all.index(choice)].mean(self.formula) or 0.0, 3)

    def _setting(self, number: int, choice: Choice, is_on_front: bool) -> Setting:
        trial = self.trials.tried[number]
        interval = trial.interval(self.formula)
        rates = [result.samples_per_second for result in trial.results if result.samples_per_second is not None]
        loader, demand = trial.scenario.loader, derive.total_read_demand(trial.scenario)
        sample = derive.batch_bytes(trial.scenario) / loader.batch_size
        return Setting(
            values=tuple(v if v is None or isinstance(v, (str, int, float, bool)) else show(v) for v in choice.values),
            status=trial.status,
            au=trial.mean(self.formula),
            au_low=None if interval is None else interval.low,
            au_high=None if interval is None else interval.high,
            runs=len(trial.rows),
            price=choice.price,
            bytes_per_second=sample * fmean(rates) if rates else None,
            needed_bytes_per_second=demand if demand < UNBOUNDED else None,
            is_on_front=is_on_front,
            left_out=left_out(self._plain(choice.values), self.base),
        )

    def _as_written(self, best: Choice) -> AsWritten | None:
        """Return the AU of a setting in the scenario's own epochs; None if they have as many steps as the search."""
        scenario = self._plain(best.values)
        own = derive.steps_per_epoch(scenario)
        if own >= self.steps:
            return None
        self.reporter.live(f"simulating the setting with {own} steps per epoch", None)
        try:
            with TemporaryDirectory(prefix="rayio-") as folder:
                au = au_of(simulate(scenario, out=Path(folder) / "run", root=folder).result, self.formula)
        except RayioError:
            return None
        return AsWritten(
            steps=own, searched_steps=self.steps, au=au, reaches=au is not None and au + ROUNDING >= self.target
        )

    def _check(self, best: Choice, engine: str, address: str | None) -> Checked:
        """Return the result of running the advised setting once, as the user would."""
        scenario = self._plain(best.values)
        path = self.trials.directory.free("check", scenario.stores)
        run = run_one(scenario, engine=engine, address=address, out=path, root=self.root, reporter=self.reporter)
        au = au_of(run.result, self.formula)
        reaches = au is not None and au >= self.target
        return Checked(engine=engine, directory=path, au=au, reaches=reaches, doubts=of_result(run.result))

    def _notes(self) -> Iterator[SizingNote]:
        yield from self.notes
        yield StepsSimulated(self.steps, derive.steps_per_epoch(self.base))
        if ordered := tuple(key.key for key in self.keys if key.is_ordered):
            yield MoreIsNotWorse(ordered)
        for a, low in self.tried.items():
            for b, high in self.tried.items():
                if self._is_below(low, high) and self._has_more(a, b):
                    better, worse = (as_overrides(self.names, choice.values) for choice in (low, high))
                    yield MoreIsWorse(better, worse)
        trials = self.trials.tried.values()
        if undecided := sum(trial.status == UNDECIDED and bool(trial.rows) for trial in trials):
            yield UndecidedSettings(undecided)
        yield from map(SimulationFailed, sorted({str(trial.error) for trial in trials if trial.error}))

    def _is_below(self, a: Choice, b: Choice) -> bool:
        pairs = zip(a.places, b.places, (key.is_ordered for key in self.keys), strict=True)
        return a.places != b.places and all(x <= y if is_ordered else x == y for x, y, is_ordered in pairs)

    def _has_more(self, a: int, b: int) -> bool:
        """Return True if setting a has a higher AU than b and their intervals do not overlap."""
        means = [self.trials.tried[number].mean(self.formula) for number in (a, b)]
        intervals = [self.trials.tried[number].interval(self.formula) for number in (a, b)]
        halves = [0.0 if interval is None else (interval.high - interval.low) / 2 for interval in intervals]
        return means[0] is not None and means[1] is not None and means[0] - halves[0] > means[1] + halves[1]
