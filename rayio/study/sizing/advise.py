"""The cheapest setting that reaches a goal, found with few simulations, and run for real where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayio.analyze.filled import enough, short_of
from rayio.errors import ScenarioError
from rayio.records.sizing import HOLDS, UNDECIDED, Advised, Checked, Setting
from rayio.reporter import SILENT, Reporter
from rayio.scenario import checks, derive
from rayio.scenario.load import loading
from rayio.scenario.model import Scenario
from rayio.schema.fields import show
from rayio.session.dataset import base_folder
from rayio.session.execute import run as run_one
from rayio.storage.address import is_path, join
from rayio.study.sizing.prices import DEAR, Choice, Varied, cheapest, choices, said, varied
from rayio.study.sizing.questions import files_for
from rayio.study.sizing.trials import AU, AU_DLIO, Trials, au_of
from rayio.study.sweeps.points import grid
from rayio.study.sweeps.sweep_directory import SweepDirectory
from rayio.study.sweeps.sweep_files import write
from rayio.study.sweeps.swept import Sweep


def advise(
    source: str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    vary: str,
    reach: str = "au=0.9",
    price: str = ",".join(DEAR),
    check: str | None = None,
    address: str | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> Advised:
    """Find the cheapest setting of some keys that reaches a goal, with few simulations.

    >>> found = rayio.advise("unet3d-small", ["train.epochs=1"], vary="loader.num_workers=1..4", out="advice/small")
    >>> found.advice.values, found.possible
    ((1,), 4)

    Args:
        source: path or packaged name of a scenario.
        overrides: ``section.key=value`` texts, or a mapping of dotted keys to values.
        vary: keys and their values: ``loader.num_workers=1..16`` (more is taken not to be worse, so few of them are
            simulated), ``dataset.format=npz|tfrecord`` (alternatives, each of them is).
        reach: ``au=0.9``, or ``au_dlio=0.9`` by DLIO's formula.
        price: what is dear, first the dearest: of readers, memory and nodes.
        check: ``ray`` or ``local``: run what was found once, on the storage that is there.
        address: Ray cluster to use for that, see :func:`rayio.run`.
        out: directory of the simulations, one that is there goes on; None is ``advice/<name>`` below ``root``.
        root: folder from which relative paths start.
        reporter: who is told how it goes.

    Raises:
        ScenarioError: the scenario, a key, a value or the goal cannot be.
        StorageError: the directory holds another search, or cannot be written.
    """
    formula, target = _goal(reach)
    dear = tuple(name.strip() for name in price.split(","))
    if strange := [name for name in dear if name not in DEAR] or [n for k, n in enumerate(dear) if n in dear[:k]]:
        raise ScenarioError(f"--price {price}: {strange[0]}: give each of {', '.join(DEAR)} at most once")
    if check not in (None, "ray", "local"):
        raise ScenarioError(f"--check {check}: must be ray or local")
    dear = (*dear, *(name for name in DEAR if name not in dear))
    search = _Advising(source, overrides, varied(vary), formula, target, dear, out, root, reporter)
    return search.run(check, address)


def _goal(reach: str) -> tuple[str, float]:
    """Read what is to be reached."""
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
    """How far a search along prices is: what is still asked is guessed from what a price has taken so far."""

    def __init__(self) -> None:
        self._made = self._asked = self._at_price = 0
        self._prices_left = 1
        self._share = 0.0

    def ask(self, left: int) -> None:
        """Know that another price is asked; so many are left, this one included."""
        self._asked += 1
        self._prices_left, self._at_price = left, 0

    def done(self) -> None:
        """Know that a simulation has ended."""
        self._made += 1
        self._at_price += 1

    def share(self, of_one: float) -> float:
        """The share of the whole search that is done, with a part of one more simulation; it never falls.

        >>> progress = Progress()
        >>> progress.ask(4)
        >>> progress.share(0.0), progress.share(0.5)
        (0.0, 0.125)
        """
        each = max(self._made / max(self._asked, 1), 1.0)
        left = max(each - self._at_price, 1.0) + each * (self._prices_left - 1)
        self._share = max(self._share, min((self._made + of_one) / (self._made + left), 0.99))
        return self._share


class _Advising:
    """One call of :func:`advise`."""

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
        asked = grid(overrides)
        if asked.keys:
            raise ScenarioError(f"{asked.keys[0]} has several values; give them to --vary")
        if both := [one.key for one in keys if one.key in asked.fixed]:
            raise ScenarioError(f"{both[0]} is varied, and given as {show(asked.fixed[both[0]])}: leave it out")
        self.fixed, self.load = asked.fixed, loading(source)
        self.base = self.load(self.fixed)
        checks.check_simulated(self.base)
        self.names = tuple(one.key for one in keys)
        self.all, refused = choices(keys, self._plain, dear)
        self.notes = [f"{len(refused)} settings cannot be: {refused[0]}"] if refused else []
        self.steps = self._steps()
        self.root = base_folder(self.base, root)
        place = join(self.root, str(out) if out is not None else f"advice/{self.base.name}")
        if not is_path(place):
            raise ScenarioError(f"not yet: --out {place}: the runs are kept in a folder; their datasets may be there")
        directory = SweepDirectory.open(Path(place), self._identity())
        self.trials = Trials(
            directory, engine="virtual", target=target, formula=formula, root=self.root, reporter=reporter
        )
        self.tried: dict[int, Choice] = {}
        self.progress = Progress()

    def _plain(self, values: tuple[Any, ...]) -> Scenario:
        """A setting as the user would run it."""
        return self.load({**self.fixed, **dict(zip(self.names, values, strict=True))})

    def _steps(self) -> int:
        """Steps per rank and epoch, the same of every setting: enough for the longest window among them."""
        windows = [derive.window_steps(self._plain(one.values)) for one in self.all]
        self._wanted_steps = enough(max(windows))
        steps = max(derive.steps_per_epoch(self.base), self._wanted_steps)
        return min(steps, self.base.train.steps or steps)

    def _grown(self, values: tuple[Any, ...]) -> Scenario:
        """The scenario that is simulated of a setting."""
        overrides = {**self.fixed, **dict(zip(self.names, values, strict=True))}
        return self.load({**overrides, "dataset.num_files": files_for(self.load(overrides), self.steps)})

    def _identity(self) -> dict[str, Any]:
        """What all settings share; another goal or price goes on with the simulations that are there."""
        content: dict[str, Any] = self.base.model_dump(mode="json")
        for key in (*self.names, "dataset.num_files"):
            *sections, last = key.split(".")
            holder: Any = content
            for section in sections:
                holder = holder.get(section) if isinstance(holder, dict) else None
            if isinstance(holder, dict):
                holder.pop(last, None)
        asked = {"engine": "virtual", "swept keys": list(self.names), "formula": self.formula}
        return {**asked, "steps": self.steps, "scenario": content}

    def run(self, check: str | None, address: str | None) -> Advised:
        """Search, check, and write the tables; after Ctrl-C, what was found until then."""
        best: Choice | None = None
        checked: Checked | None = None
        is_finished = False
        try:
            with self.trials.directory:
                best = cheapest(self.all, [one.is_ordered for one in self.keys], self._reaches, self.progress.ask)
            self.reporter.done()
            if best is not None and check is not None:
                checked = self._check(best, check, address)
            is_finished = True
        except KeyboardInterrupt:
            self.reporter.done()
            path = self.trials.directory.path
            self.reporter.say(f"the simulations are kept in {path}; the same command goes on there")
        self.reporter.done()
        if self.trials.rows:
            path = self.trials.directory.path
            write(Sweep(path, self.base.name, "virtual", self.names, tuple(self.trials.rows)))
        tried = sorted(self.tried.items(), key=lambda one: one[1].cost)
        return Advised(
            directory=str(self.trials.directory.path),
            scenario=self.base.name,
            varied=self.names,
            goal=self.formula,
            target_au=self.target,
            priced_by=self.dear,
            possible=len(self.all),
            simulations=sum(len(trial.rows) for trial in self.trials.tried.values()),
            is_finished=is_finished,
            advice=None if best is None else self._setting(self.all.index(best), best),
            tried=tuple(self._setting(number, choice) for number, choice in tried),
            check=checked,
            notes=tuple(self._notes()),
        )

    def _reaches(self, choice: Choice) -> bool:
        number = self.all.index(choice)
        self.tried[number] = choice
        text = f"setting {len(self.tried)} of {len(self.all)} that there are; {said(self.names, choice.values)}"

        def tell(share: float) -> None:
            self.reporter.live(text, self.progress.share(share))

        tell(0.0)
        trial = self.trials.try_out(number, self._grown(choice.values), tell, choice.values)
        self.progress.done()
        return trial.status == HOLDS

    def _setting(self, number: int, choice: Choice) -> Setting:
        trial = self.trials.tried[number]
        found = trial.interval(self.formula)
        return Setting(
            values=tuple(v if v is None or isinstance(v, (str, int, float, bool)) else show(v) for v in choice.values),
            status=trial.status,
            au=trial.mean(self.formula),
            au_low=None if found is None else found.low,
            au_high=None if found is None else found.high,
            runs=len(trial.rows),
            price=choice.price,
        )

    def _check(self, best: Choice, engine: str, address: str | None) -> Checked:
        """Run the advised setting once, as the user would."""
        place, number = self.trials.directory.path / "check", 0
        while place.exists():
            number += 1
            place = place.with_name(f"check-{number}")
        made = run_one(
            self._plain(best.values), engine=engine, address=address, out=place, root=self.root, reporter=self.reporter
        )
        au = au_of(made.result, self.formula)
        return Checked(engine=engine, directory=str(place), au=au, reaches=au is not None and au >= self.target)

    def _notes(self) -> list[str]:
        notes = [*self.notes]
        notes.append(f"every setting was simulated with {self.steps} steps of each rank an epoch")
        notes += short_of(self.steps, self._wanted_steps)
        ordered = [one.key for one in self.keys if one.is_ordered]
        if ordered:
            notes.append(
                f"more of {', '.join(ordered)} is taken not to be worse; write the values with | to have each tried"
            )
        for a, one in self.tried.items():
            for b, other in self.tried.items():
                if self._is_below(one, other) and self._has_more(a, b):
                    notes.append(
                        f"it is not so everywhere: AU is larger with {said(self.names, one.values)} than with "
                        f"{said(self.names, other.values)}"
                    )
        undecided = [n for n, trial in self.trials.tried.items() if trial.status == UNDECIDED]
        if undecided:
            notes.append(
                f"{len(undecided)} settings are undecided: their 95 % interval has the goal in it; they are not advised"
            )
        broken = {trial.error for trial in self.trials.tried.values() if trial.error}
        return [*notes, *(f"a setting could not be simulated: {error}" for error in sorted(map(str, broken)))]

    def _is_below(self, a: Choice, b: Choice) -> bool:
        pairs = zip(a.places, b.places, (one.is_ordered for one in self.keys), strict=True)
        return a.places != b.places and all(x <= y if is_ordered else x == y for x, y, is_ordered in pairs)

    def _has_more(self, a: int, b: int) -> bool:
        """Whether one has the larger AU, by more than both are unsure of."""
        means = [self.trials.tried[number].mean(self.formula) for number in (a, b)]
        found = [self.trials.tried[number].interval(self.formula) for number in (a, b)]
        halves = [0.0 if one is None else (one.high - one.low) / 2 for one in found]
        return means[0] is not None and means[1] is not None and means[0] - halves[0] > means[1] + halves[1]
