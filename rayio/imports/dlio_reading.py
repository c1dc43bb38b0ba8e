"""A workload of DLIO being read: its values by key, and all that is changed, has no effect or is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from rayio.imports.hydra import Composed
from rayio.imports.interpolation import is_interpolated
from rayio.kinds import DISTRIBUTIONS
from rayio.scenario.dlio_keys import ALL_SECTIONS, IDLE, KEYS, OLDER, REFUSED
from rayio.scenario.source import KeyPath
from rayio.schema.fields import listed, show, unless_secret

#: Credentials, whose values are never shown.
CREDENTIALS = ("storage.storage_options.access_key_id", "storage.storage_options.secret_access_key")
#: Keys whose values may be mappings.
_TIMES = ("train.computation_time", "evaluation.eval_time", "reader.preprocess_time", "checkpoint.ksm")


@dataclass
class Reading:
    """The values of a workload; ``out`` gets the keys of the scenario, each with the keys of DLIO that it is from."""

    composed: Composed
    out: dict[str, tuple[Any, str]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    #: Values by dotted key, and the paths where they stand.
    given: dict[str, Any] = field(default_factory=dict)
    places: dict[str, KeyPath] = field(default_factory=dict)
    #: Keys for which :meth:`refuse` was called.
    wrong: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Collect the given values; refuse unknown keys, and those without a value by overrides or interpolations."""
        self.refused += dict.fromkeys(self.composed.broken.values())
        self.wrong |= {_dotted(path) for path in self.composed.broken}
        for name, path, value in _leaves(self.composed.data):
            if name in KEYS:
                if value is not None:
                    self.given[name], self.places[name] = value, path
            else:
                self._unknown(name, path, value)
        self._beside_older()

    def _beside_older(self) -> None:
        """Refuse keys of a section that also stands under its older name, which alone counts, with another value."""
        for older, section in OLDER.items():
            if older not in self.composed.data:
                continue
            for name, path, value in _leaves({section: self.composed.data.get(section)}):
                if value is None or self.given.get(name) == value:
                    continue
                where = f"{self.composed.where(path)}: {name}={show(unless_secret(path[-1], value))}"
                if name in self.given:
                    theirs = f"{'.'.join(self.places[name])}={show(unless_secret(path[-1], self.given[name]))}"
                    self.refused.append(f"{where}: {theirs} is given too, and wins in DLIO; remove one of the two")
                else:
                    self.idle.append(f"{where}: {older} is given, and wins as in DLIO")

    def _unknown(self, name: str, path: KeyPath, value: Any) -> None:
        where, top = self.composed.where(path), name.partition(".")[0]
        written = ".".join(path)
        if name in ALL_SECTIONS or any(key.startswith(f"{name}.") for key in KEYS):
            if value is not None and value != {}:
                self.refused.append(f"{where}: {written}={show(value)}: must be a mapping")
            return
        near = get_close_matches(name, KEYS, n=1, cutoff=0.75)
        same = [key for key in KEYS if key.rpartition(".")[2] == name.rpartition(".")[2]]
        meant = f"; did you mean {(near or same)[0]}?" if near or same else ""
        if top not in ALL_SECTIONS and not meant:
            meant = f"; its sections are {', '.join(ALL_SECTIONS)}"
        self.refused.append(f"{where}: {written}={show(unless_secret(path[-1], value))}: is no key of DLIO{meant}")

    def line(self, name: str, text: str) -> str:
        """Return a line on a given key: its place, value and a text."""
        path, value = self.places[name], self.given[name]
        shown = "***" if name in CREDENTIALS else show(unless_secret(path[-1], value))
        return f"{self.composed.where(path)}: {'.'.join(path)}={shown}: {text}"

    def refuse(self, name: str, why: str) -> None:
        """Refuse a given key, once."""
        if name not in self.wrong:
            self.wrong.add(name)
            self.refused.append(self.line(name, why))

    def differs(self, name: str, text: str = "") -> None:
        """Note that a given key acts otherwise than in DLIO."""
        if name in self.given:
            self.changed.append(self.line(name, text or KEYS[name].why))

    def unused(self, name: str, text: str = "") -> None:
        """Note that a given key has no effect."""
        if name in self.given:
            self.idle.append(self.line(name, text or KEYS[name].why))

    def put(self, key: str, value: Any, *names: str) -> None:
        """Set a key of the scenario; ``names`` are DLIO's keys that it is from."""
        known = [name for name in names if name in self.given]
        source = ", ".join(known) if known else f"DLIO's default of {names[0]}" if names else ""
        self.out[key] = (value, source)

    def nested(self) -> dict[str, Any]:
        """Return the keys of the scenario as nested mappings."""
        data: dict[str, Any] = {}
        for key, (value, _) in self.out.items():
            holder = data
            *sections, last = key.split(".")
            for section in sections:
                holder = holder.setdefault(section, {})
            holder[last] = value
        return data

    def fates(self, passed: tuple[str, ...]) -> None:
        """Note keys without effect, and refuse those that are refused always; not those of ``passed``."""
        for name in self.given:
            if name in passed:
                continue
            if KEYS[name].fate == IDLE:
                self.unused(name)
            elif KEYS[name].fate == REFUSED:
                self.refuse(name, KEYS[name].why)

    def text(self, name: str, default: str) -> str:
        """Return a text; no other value is one."""
        value = self.given.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value).strip():
            self.refuse(name, "must be a text")
            return default
        return str(value).strip()

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """Return one of the allowed values; the default of a refused one."""
        value = self.given.get(name, default)
        if isinstance(value, str) and value.lower() in allowed:
            return value.lower()
        near = get_close_matches(str(value), allowed, n=1, cutoff=0.6)
        self.refuse(name, f"must be {listed(allowed)}" + (f"; did you mean {near[0]}?" if near else ""))
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.given.get(name, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            self.refuse(name, "must be True or False")
            return default
        return value

    def whole(self, name: str, default: int, least: int = 0) -> int:
        """Return a whole number of at least ``least``."""
        value = self.number(name, float(default), least)
        if name in self.wrong:
            return default
        if value != int(value):
            self.refuse(name, f"must be a whole number of at least {least}")
            return default
        given = self.given.get(name, default)
        return given if isinstance(given, int) else int(value)

    def number(self, name: str, default: float, least: float = 0) -> float:
        """Return a finite number of at least ``least``, also from text such as 1e-3."""
        if name not in self.given:
            return default
        value = as_number(self.given[name])
        if value is None or value < least:
            self.refuse(name, f"must be a number of at least {least:g}")
            return default
        return value

    def sizes(self, name: str) -> int | None:
        """Return the product of a list of whole numbers; None if it is not given or empty."""
        value = self.given.get(name, [])
        if not value:
            return None
        numbers = [as_number(entry) for entry in value] if isinstance(value, list) else [None]
        if any(number is None or number < 1 or number != int(number) for number in numbers):
            self.refuse(name, "must be a list of whole numbers of at least 1")
            return None
        return math.prod(int(number) for number in numbers if number is not None)

    def times(self, name: str, stdev_name: str | None) -> Any:
        """Return a time for the scenario: seconds, or a distribution."""
        value = self.given.get(name, 0)
        spread = self.number(stdev_name, 0.0) if stdev_name else 0.0
        if not isinstance(value, Mapping):
            mean = self.number(name, 0.0)
            return {"kind": "normal", "mean": mean, "stdev": spread} if spread else mean
        return self._distribution(name, value, spread)

    def _distribution(self, name: str, value: Mapping[str, Any], spread: float) -> Any:
        numbers = {str(key): as_number(number) for key, number in value.items() if key != "type"}
        kind = value.get("type", "normal" if numbers else "constant")
        wanted = {
            "normal": ("mean",), "uniform": ("min", "max"), "gamma": ("shape", "scale"), "exponential": ("scale",),
            "poisson": ("lam",), "constant": (),
        }.get(str(kind))  # fmt: skip
        if wanted is None:
            self.refuse(name, "type must be normal, uniform, gamma, exponential or poisson")
            return 0
        allowed = (*wanted, "stdev") if kind == "normal" else wanted
        if bad := [key for key, number in numbers.items() if key not in allowed or number is None or number < 0]:
            known = f"must be a number of at least 0, not {show(value[bad[0]])}"
            unknown = f"is no key of type {kind}; use {listed(allowed) if allowed else 'another type'}"
            self.refuse(name, f"{show(bad[0])} {known if bad[0] in allowed else unknown}")
            return 0
        if missing := [key for key in wanted if key not in numbers]:
            self.refuse(name, f"{missing[0]} is missing, for type {kind}")
            return 0
        if kind == "normal":
            stdev = numbers.get("stdev") or spread
            mean = numbers["mean"]
            return {"kind": "normal", "mean": mean, "stdev": stdev} if stdev else mean
        if kind == "uniform":
            if (numbers["min"] or 0) > (numbers["max"] or 0):
                self.refuse(name, "min must not be above max")
            return {"kind": "uniform", "low": numbers["min"], "high": numbers["max"]}
        if kind == "exponential":
            return {"kind": "exponential", "mean": numbers["scale"]}
        if kind not in DISTRIBUTIONS:
            if kind != "constant":
                self.refuse(name, f"not yet: type {kind}; use normal, uniform or exponential")
            return 0
        return {"kind": kind, **{OURS.get((str(kind), key), key): numbers[key] for key in wanted}}

    def is_from_environment(self, name: str) -> bool:
        """Return True if a value was written as an interpolation, such as ``${oc.env:NAME}``."""
        node: Any = self.composed.raw
        for key in self.places[name]:
            node = node.get(key) if isinstance(node, Mapping) else None
        return is_interpolated(node)


#: Parameters of distributions that have another name in a scenario.
OURS: dict[tuple[str, str], str] = {("poisson", "lam"): "mean"}


def as_number(value: Any) -> float | None:
    """Return a finite number, also from text such as ``1e-3``, which YAML takes for one; None for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < 1e18 else None


def _dotted(path: KeyPath) -> str:
    """Return the name of a key, with the current name of its section."""
    return ".".join((OLDER.get(path[0], path[0]), *path[1:])) if path else ""


def _leaves(data: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[str, KeyPath, Any]]:
    """Yield each value that is no section: its dotted key, the path where it stands, and the value."""
    if not path:
        data = {
            key: value for key, value in data.items() if not any(old in data and OLDER[old] == key for old in OLDER)
        }
    for key, value in data.items():
        here = (*path, str(key))
        name = _dotted(here)
        if name == "model" and isinstance(value, str):
            yield "model.name", here, value
        elif isinstance(value, Mapping) and name not in _TIMES and value:
            yield from _leaves(value, here)
        else:
            yield name, here, value
