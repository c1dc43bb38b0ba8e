"""Every number has a bound, and what validate accepts, a simulation can begin: hostile values for every key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scenario_mutations import FULL, guarded

from rayio.engines.in_process import InProcess
from rayio.engines.virtual.clock import VirtualKernel
from rayio.errors import RayioError, ScenarioError
from rayio.kinds import LOADERS
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.scenario import checks, derive
from rayio.scenario.load import build, merge
from rayio.scenario.model import Scenario
from rayio.scenario.write import json_schema
from rayio.trace.recorder import Recorder

#: Sections of a small scenario with every key in it, and what they may be besides.
BASE: dict[str, Any] = yaml.safe_load(FULL) | {
    "dataset": {
        "path": "model://x", "format": "hdf5", "chunk": "64 KiB", "num_files": 64, "samples_per_file": 4,
        "sample_bytes": "100 kB", "eval": {"num_files": 8, "path": "model://e", "samples_per_file": 2},
    },
    "checkpoint": {
        "every": {"steps": 5}, "path": "model://c", "model": {"bytes": "500 MB"}, "writers": {"dedicated": 2},
        "asynchronous": True, "snapshot_bandwidth": "25 GB/s", "fsync": True, "request_bytes": "4 MiB",
    },
}  # fmt: skip
BASE["train"] = BASE["train"] | {
    "stragglers": {"ranks": [1], "factor": 1.5},
    "evaluate": {"every": {"epochs": 1}, "compute": "1 ms", "steps": 2, "batch_size": 2},
    "warmup_steps": 1,
}
BASE["loader"] = BASE["loader"] | {"io_depth": 2, "worker": "process"}
BASE["storage"] = BASE["storage"] | {"max_attempts": 3, "timeout": "10 s"}
BASE["costs"] = dict.fromkeys(
    ("lease", "put", "take", "transfer_latency", "barrier", "step", "checkpoint"), "1 us"
) | {"transfer_bandwidth": "1 GB/s", "put_bandwidth": "1 GB/s"}  # fmt: skip

#: What any key may be given: too little, too much, no number, no text, nothing, nested.
HOSTILE: tuple[Any, ...] = (
    0, 1, -1, 10**6, 2**31, 2**62, 2**63, 10**30, 0.5, 1e-300, 1e9, 1e308, math.nan, math.inf, -math.inf, "", " ",
    "x" * 5000, "a\x00b", "\ud800", "1e300 s", "900 PB", "1 B/s", "1 B", "0 s", "none", None, True, [], {}, [[1]],
    {"kind": "normal", "mean": 0, "stdev": "1e300 s"}, {"kind": "lognormal", "median": "1e9 s", "sigma": 10},
)  # fmt: skip


def keys(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from keys(value, (*path, key))


KEYS = [*keys(BASE)]

#: Roles up to which a simulation is begun here: each takes some KiB and some microseconds.
FEW_ROLES = 4000

#: Times that anybody may sleep before a simulation counts as begun.
BEGUN = 400


class _BegunError(Exception):
    """It has begun."""


class Counted(VirtualKernel):
    """A clock that stops after a while."""

    slept = 0

    def sleep_until(self, deadline: int) -> Any:
        self.slept += 1
        if self.slept > BEGUN:
            raise _BegunError
        return super().sleep_until(deadline)


def begin(scenario: Scenario) -> None:
    """Let a simulation of a scenario that was accepted begin; it may end in one line, and not otherwise."""
    assert all(math.isfinite(value) or name.endswith("read_demand") for name, value in checks.table(scenario).items())
    if [*checks.not_simulated(scenario)] or derive.num_roles(scenario) > FEW_ROLES:
        return
    plan = plan_of(scenario, modelled=True)
    kernel, tallies = Counted(), [Tally(rank) for rank in range(plan.world_size)]
    roles = InProcess(plan, kernel, Recorder(), tallies, costs=scenario.charges, loader=LOADERS["actors"])
    with suppress(_BegunError, RayioError):  # a line may end it: a time that was drawn is longer than clocks are
        kernel.run(roles.run())


def accepted(changes: Mapping[tuple[str, ...], Any]) -> Scenario | None:
    """Build the small scenario with keys changed, as overrides would; None where it is refused in one line."""
    data = BASE
    for path, value in changes.items():
        for key in reversed(path):
            value = {key: value}
        data = merge(data, value)
    try:
        return build(data)
    except ScenarioError as error:
        line = str(error)
        assert len(line.splitlines()) == 1
        assert line.isprintable(), line
        assert len(line) < 1000
        return None


def test_the_small_scenario_has_every_section_and_begins() -> None:
    begin(build(BASE))
    assert len(KEYS) > 80


#: Of so many values a key is given one here; the slow tier gives it all.
SHARE = 3


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_a_hostile_value_is_refused_in_one_line_or_begins(path: tuple[str, ...]) -> None:
    hostile(path, HOSTILE[KEYS.index(path) % SHARE :: SHARE])


@pytest.mark.slow
@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_so_is_every_other_hostile_value(path: tuple[str, ...]) -> None:
    hostile(path, HOSTILE)


def hostile(path: tuple[str, ...], values: Sequence[Any]) -> None:
    for value in values:
        with guarded():
            try:
                if (scenario := accepted({path: value})) is not None:
                    begin(scenario)
            except BaseException as error:
                error.add_note(f"{'.'.join(path)}={value!r}")
                raise


@settings(max_examples=40, derandomize=True)
@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(HOSTILE), min_size=2, max_size=4))
def test_so_are_several_together(changes: dict[tuple[str, ...], Any]) -> None:
    with guarded():
        if (scenario := accepted(changes)) is not None:
            begin(scenario)


def numbers(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every description of a number in a schema, with the keys on the way to it."""
    if schema.get("type") in ("integer", "number"):
        yield path, schema
    for word in ("anyOf", "allOf"):
        for inner in schema.get(word, ()):
            yield from numbers(inner, path)
    for word in ("properties", "$defs"):
        for key, inner in schema.get(word, {}).items():
            yield from numbers(inner, f"{path}.{key}")
    if isinstance(schema.get("items"), Mapping):
        yield from numbers(schema["items"], f"{path}[]")


def test_every_number_of_the_schema_has_a_bound_on_both_sides() -> None:
    found = [*numbers(json_schema())]
    assert len(found) > 60
    without = {
        path
        for path, number in found
        if not {"minimum", "exclusiveMinimum"} & {*number} or not {"maximum", "exclusiveMaximum"} & {*number}
    }
    assert not without
