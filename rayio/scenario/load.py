"""From YAML, ``extends`` and overrides to a Scenario, or to a line that names the error."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rayio.errors import ContradictionError, ScenarioError
from rayio.scenario import checks, external
from rayio.scenario.complaints import choices_of, explain, one_of
from rayio.scenario.foreign import Foreign, kind_of, split
from rayio.scenario.model import Scenario
from rayio.scenario.source import (
    MAX_DEPTH,
    MAX_VALUES,
    TORN,
    UNREADABLE,
    KeyPath,
    Layer,
    UnfitError,
    find,
    is_torn,
    packaged,
    plain,
    read,
    refuse_repeated,
)
from rayio.schema.choice import Choice, options_of
from rayio.schema.fields import show

__all__ = ["build", "load", "packaged"]

#: Mappings whose keys exclude each other: a file or the overrides together replace one, and do not merge with it.
ALTERNATIVES: frozenset[KeyPath] = frozenset({("checkpoint", "every"), ("train", "evaluate", "every")})


#: The kind of compute times that is written without its name.
TABLE = "by_batch_size"
#: The distribution whose values are in a file.
MEASURED = "empirical"

#: What holds other values.
CONTAINERS = (Mapping, list, tuple, set, frozenset)


def load(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = (), root: str | Path = ""
) -> Scenario:
    """Return a scenario by path, packaged name or keys, with its bases and with overrides in order.

    Overrides are texts ``section.key=value`` (the value in YAML) or a mapping of dotted keys to values. Mappings merge
    key by key; scalars, lists and mappings of another ``kind`` replace what was there. Relative paths of external
    datasets start from ``root``, or from the working directory.

    Raises:
        ScenarioError: one line with file, key path, value and what is allowed.
    """
    return loading(source, root)(overrides)


def loading(
    source: str | Path | Mapping[str, Any], root: str | Path = ""
) -> Callable[[Sequence[str] | Mapping[str, Any]], Scenario]:
    """Read a scenario's files once; return a function that applies overrides to them (see :func:`load`).

    Raises:
        ScenarioError: one line with file, key path, value and what is allowed.
    """
    if (named := kind_of(source)) is not None:
        return _foreign(*named, str(root))
    if isinstance(source, Mapping):
        label = "scenario"
        layers = [Layer(dict(bounded(source, label)), label)]
    else:
        path, label = find(source)
        layers = _chain(path, label, ())
    return lambda overrides: _build([*layers, *(_override(pair, label) for pair in pairs(overrides))], str(root))


def _foreign(kind: Foreign, path: str, root: str) -> Callable[[Sequence[str] | Mapping[str, Any]], Scenario]:
    """Read a file of another program once; return a function that applies overrides in its form and in ours."""
    opened = kind.open(Path(path), path)

    def load_with(overrides: Sequence[str] | Mapping[str, Any]) -> Scenario:
        own, others = split(kind, overrides)
        made = opened(own)
        try:
            return _build([made.layer, *(_override(pair, path) for pair in pairs(others))], root)
        except ScenarioError as error:
            lines = [made.named(line) for line in error.problems]
            raise one_of(type(error), lines, lines) from None

    return load_with


def build(data: Mapping[str, Any], label: str = "scenario") -> Scenario:
    """Return the scenario of a mapping as from YAML; ``label`` names it in messages.

    Raises:
        ScenarioError: one line with key path, value and what is allowed.
    """
    return _build([Layer(dict(bounded(data, label)), label)])


def _build(layers: Sequence[Layer], root: str = "") -> Scenario:
    label = next(layer.label for layer in reversed(layers) if not layer.override)
    data: dict[str, Any] = {}
    for layer in _with_alternatives(layers):
        _refuse_to_descend_into_a_scalar(data, layer)
        data = merge(data, layer.data)
    try:
        scenario = Scenario.model_validate(external.completed(data, Scenario.model_validate, root))
    except ValidationError as error:
        raise explain(error, data, layers) from None
    if contradictions := [f"{label}: {line}" for line in checks.contradictions(scenario)]:
        raise one_of(ContradictionError, contradictions, contradictions)
    return scenario


def _with_alternatives(layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yield the layers; an override in :data:`ALTERNATIVES` has the keys of overrides before it, too.

    So two keys that exclude each other are refused, as in a file.
    """
    given: dict[KeyPath, dict[KeyPath, Any]] = {path: {} for path in ALTERNATIVES}
    for layer in layers:
        path = layer.override
        holder = path if path in ALTERNATIVES else path[:-1]
        if holder in ALTERNATIVES and (path != holder or isinstance(layer.at(path), Mapping)):
            given[holder][path] = layer.at(path) if path == holder else {path[-1]: layer.at(path)}
            whole = dict(itertools.chain.from_iterable(each.items() for each in given[holder].values()))
            layer = replace(layer, data=_nested(holder, whole))
        yield layer


def _chain(path: Path, label: str, below: tuple[tuple[Path, str], ...]) -> list[Layer]:
    here = _real(path)
    if here in [file for file, _ in below]:
        circle = " -> ".join([name for _, name in below] + [label])
        raise ScenarioError(f"{below[-1][1]}: extends={label}: goes round in a circle: {circle}")
    layer = beside(read(path, label))
    if "extends" not in layer.data:
        return [layer]
    base = layer.data["extends"]
    where = layer.where(("extends",))
    if not isinstance(base, str) or not base.strip():
        raise ScenarioError(f"{where}: extends={show(base)}: must be a path or the name of one packaged scenario")
    own = {key: value for key, value in layer.data.items() if key != "extends"}
    try:
        base_path, base_label = find(base, beside=path.parent)
        if not os.path.lexists(base_path):
            raise ScenarioError(f"{base_label}: no such file")
    except ScenarioError as error:
        raise ScenarioError(f"{where}: extends={show(base)}: {error}") from None
    below = (*below, (here, label))
    return [*map(_inherited, _chain(base_path, base_label, below)), Layer(own, label, layer.lines, path)]


def _inherited(base: Layer) -> Layer:
    """Return the keys of a base without its published facts, which belong to that workload alone."""
    return replace(base, data={key: value for key, value in base.data.items() if key != "published"})


def beside(layer: Layer) -> Layer:
    """Return a file's layer with the files of measured values below its folder; an override's are below the cwd."""
    if layer.path is None:
        return layer
    return replace(layer, data=_below(layer.data, Path(layer.path).parent))


def _below(value: Any, folder: Path) -> Any:
    if not isinstance(value, Mapping):
        return value
    names_values = value.get("kind", MEASURED) == MEASURED and isinstance(value.get("file"), str)
    inner = {key: _below(each, folder) for key, each in value.items()}
    return inner | {"file": str(folder / value["file"])} if names_values else inner


def _real(path: Path) -> Path:
    """Return the path with links followed; an impossible path is unchanged, and reading it fails."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return path


def merge(base: Any, over: Any, path: KeyPath = ()) -> Any:
    """Return ``base`` with ``over``: mappings merge key by key, other values and mappings of other kinds replace."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping) or path in ALTERNATIVES:
        return over
    merged = dict(base)
    if len(path) == 1 and (choices := choices_of(path[0])):
        merged = without_options_of_others(choices, merged, over)
    elif _kind(over, base) != _kind(base):
        return over
    for key, value in over.items():
        merged[key] = merge(base[key], value, (*path, key)) if key in base else value
    return merged


def _kind(written: Mapping[str, Any], otherwise: Mapping[str, Any] | None = None) -> Any:
    """Return the kind of a mapping; without one, that of ``otherwise``."""
    if TABLE in written:
        return TABLE
    return written["kind"] if "kind" in written else None if otherwise is None else _kind(otherwise)


def without_options_of_others(
    choices: tuple[Choice, ...], base: dict[str, Any], over: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``base`` without the options of kinds that ``over`` replaces, except options of both kinds."""
    for choice in choices:
        if choice.key in over and choice.key in base and over[choice.key] != base[choice.key]:
            before, now = (options_of(choice.kind(at[choice.key])).model_fields for at in (base, over))
            base = {key: value for key, value in base.items() if key not in before or key in now}
    return base


def pairs(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return overrides as dotted keys and values.

    Raises:
        ScenarioError: a text has no ``=``, a key is given twice, or a value is beyond the limits of files.
    """
    if isinstance(overrides, Mapping):
        return [(str(key), bounded(value, f"override {key}")) for key, value in overrides.items()]
    made, texts = [], [overrides] if isinstance(overrides, str) else [*overrides]
    refuse_repeated(texts)
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ScenarioError(f"override {text}: no '='; write section.key=value, such as loader.batch_size=8")
        made.append((key.strip(), parsed(value, f"override {key.strip()}")))
    return made


def parsed(text: str, where: str) -> Any:
    """Return a value from YAML, with the limits of files; invalid YAML, such as ``>= 0.9``, is text.

    Raises:
        ScenarioError: it has no end, or more values or levels than one may have; the line begins with ``where``.
    """
    try:
        return plain(text)
    except UnfitError as error:
        raise ScenarioError(f"{where}={show(text)}: {error.problem}") from None
    except (yaml.YAMLError, *UNREADABLE):
        return text


def bounded(value: Any, where: str) -> Any:
    """Return a copy of a program's value, which may be recursive or huge, within the same limits.

    Raises:
        ScenarioError: ``where`` is what its line begins with.
    """
    left, level = MAX_VALUES, [value]
    for _ in range(MAX_DEPTH):
        left -= len(level)
        if left < 0:
            raise ScenarioError(f"{where}: more than {MAX_VALUES} values")
        if any(isinstance(node, str) and is_torn(node) for node in level):
            raise ScenarioError(f"{where}: {TORN}")
        inner = [
            [*node, *node.values()] if isinstance(node, Mapping) else node
            for node in level
            if isinstance(node, CONTAINERS)
        ]
        level = [*itertools.islice(itertools.chain.from_iterable(inner), left + 1)]
        if not level:
            return value
    raise ScenarioError(f"{where}: nested too deeply: more than {MAX_DEPTH} levels")


def _override(pair: tuple[str, Any], label: str) -> Layer:
    name, value = pair
    label, path = f"{label}: override", tuple(name.split("."))
    if not all(path):
        raise ScenarioError(f"{label}: {name}={show(value)}: write section.key=value, such as loader.batch_size=8")
    if path[0] == "extends":
        raise ScenarioError(f"{label}: {name}={show(value)}: only a file can extend another")
    if path[0] == "expect" and len(path) > 2:  # the dots are the metric's own
        path = (path[0], ".".join(path[1:]))
    return Layer(_nested(path, value), label, override=path)


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def _refuse_to_descend_into_a_scalar(data: Mapping[str, Any], layer: Layer) -> None:
    """Refuse ``train.compute.mean=3`` if ``train.compute`` is a plain time: it would replace it silently."""
    node: Any = data
    for depth, key in enumerate(layer.override):
        if isinstance(node, (str, int, float, list)) and node != "none":
            name, holder = ".".join(layer.override), ".".join(layer.override[:depth])
            value = show(layer.at(layer.override))
            reason = f"{holder} is {show(node)}, not a mapping; give {holder}={{...}}"
            raise ScenarioError(f"{layer.label}: {name}={value}: {reason}")
        node = node.get(key) if isinstance(node, Mapping) else None
