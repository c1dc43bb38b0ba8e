"""Changes that reduce a batch's requests or increase its requests in flight (see ``scenario/change.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from rayio.data.asked import requests_per_sample
from rayio.errors import RayioError
from rayio.kinds import ACCESSES, FORMATS
from rayio.scenario import checks
from rayio.scenario.change import Change, Run, with_keys
from rayio.scenario.loader import MAX_DEPTH
from rayio.schema.choice import options_of

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: A format is tried if it needs at most this share of the requests per sample; formats compared at most.
FEWER, MOST_FORMATS = 0.9, 8
#: Changes that remove the fixed cost of a request: fewer requests help only if one of these does.
OF_REQUESTS = ("latency = 0", "requests/s = ∞", "no throttling")
#: The changes after one of which those of ``dataset`` are tried.
AFTER = (*OF_REQUESTS, "opens/s = ∞")


def of_dataset(run: Run) -> Iterator[Change]:
    """Yield changes of ``dataset`` with modelled storage: other formats, the format's own, and deeper ``io_depth``."""
    if run.modelled is None:
        return
    scenario = run.scenario

    @cache
    def now() -> float:
        return requests_per_sample(scenario)

    own = FORMATS[scenario.dataset.format]
    others = () if scenario.dataset.external else (*_other_formats(scenario), *_own_changes(own, run))
    for change in others:
        yield replace(change, helps=("input",), after=OF_REQUESTS, effort=2, is_of_use=_has_fewer(change, now))
    for change in ACCESSES[scenario.loader.file_access].changes(run):
        yield replace(change, helps=("input",), after=AFTER, effort=1, is_of_use=_is_allowed(change))
    depth = 2 * scenario.loader.io_depth
    if depth <= MAX_DEPTH:
        yield Change(
            "io_depth × 2", kind="setting", to=with_keys("loader", io_depth=depth), key=f"loader.io_depth={depth}",
            helps=("input",), after=("latency = 0",), effort=1,
            is_of_use=lambda scenario: scenario.loader.io_depth < now() * scenario.loader.batch_size,
        )  # fmt: skip


def _own_changes(form: Any, run: Run) -> Iterator[Change]:
    yield from getattr(form, "changes", lambda run: ())(run)


def _other_formats(scenario: Scenario) -> Iterator[Change]:
    others = (
        (name, form)
        for name, form in FORMATS.usable().items()
        if name != scenario.dataset.format and getattr(form, "is_proposed", True)
    )
    for name, form in islice(others, MOST_FORMATS):
        to = with_keys("dataset", format=name, options=options_of(form)())
        yield Change(f"format {name}", kind="setting", to=to, key=f"dataset.format={name}")


def _is_allowed(change: Change) -> Callable[[Scenario], bool]:
    """Return a test that a changed scenario is valid: its files may not fit in memory."""

    def is_of_use(scenario: Scenario) -> bool:
        try:
            checks.check(change.to(scenario))
        except RayioError:
            return False
        return True

    return is_of_use


def _has_fewer(change: Change, now: Callable[[], float]) -> Callable[[Scenario], bool]:
    """Return a test that a changed dataset needs fewer requests per sample than ``now``."""

    def is_of_use(scenario: Scenario) -> bool:
        changed = change.to(scenario)
        try:
            checks.check(changed)
            with FORMATS.answerable(changed.dataset.format):
                return requests_per_sample(changed) < FEWER * now()
        except RayioError:
            return False

    return is_of_use
