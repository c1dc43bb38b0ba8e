"""Configurations as Hydra composes them, in the documented forms: defaults lists, groups, overrides, interpolations.

OmegaConf is not used: it needs a parser generator's run time, gives no lines for messages, and has no limits on
what a few lines of aliases or interpolations expand to. Here the limits are those of scenarios.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from rayio.errors import ScenarioError
from rayio.imports.interpolation import resolved
from rayio.scenario.complaints import one_of
from rayio.scenario.source import UNREADABLE, KeyPath, Layer, UnfitError, plain, read
from rayio.schema.fields import show, unless_secret

#: The most files of one configuration.
MAX_FILES = 200

_PACKAGE = re.compile(r"#\s*@package\s+(\S+)\s*")
#: A key of a mapping in Hydra's short form, which needs no space after its colon.
_SHORT = re.compile(r"([{,]\s*[A-Za-z_]\w*):(?=[^\s/])")


@dataclass(frozen=True)
class Composed:
    """A composed configuration: its values below ``workload``, and the layers that they came from."""

    data: dict[str, Any]
    #: The same values before interpolation.
    raw: dict[str, Any]
    layers: tuple[Layer, ...]
    #: Overrides that cannot be applied and values that cannot be interpolated: a line for each path.
    broken: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """Return the file and line of a value, or its override."""
        full = ("workload", *path)
        return max(reversed(self.layers), key=lambda layer: layer.depth(full)).where(full)


@dataclass(frozen=True)
class Override:
    """An override of Hydra's command line: ``++key=value``, ``+key=value``, ``key=value`` or ``~key``."""

    text: str
    sign: str
    key: str
    value: Any = None
    has_value: bool = True

    @property
    def shown(self) -> str:
        """The override as text, without secrets."""
        value = show(unless_secret(self.path[-1], self.value))
        return f"{self.text}={value}" if self.has_value else self.text

    @property
    def path(self) -> KeyPath:
        """The parts of the key."""
        return tuple(self.key.split("."))


def parse_override(text: str) -> Override:
    """Return an override of a command line.

    >>> parse_override("++workload.reader.read_threads=8").value
    8

    Raises:
        ScenarioError: it has no value, or no valid key.
    """
    sign = next(sign for sign in ("++", "+", "~", "") if text.startswith(sign))
    key, equals, value = text.removeprefix(sign).partition("=")
    if not equals and sign != "~":
        raise ScenarioError(f"override {show(text)}: no '='; write ++workload.section.key=value")
    return override_of(sign, key.strip(), _value(value, key), has_value=bool(equals))


def override_of(sign: str, key: str, value: Any, *, has_value: bool = True) -> Override:
    """Return an override of a key by a value.

    Raises:
        ScenarioError: the key is invalid.
    """
    if not re.fullmatch(r"[\w@/-]+(\.[\w-]+)*", key):
        raise ScenarioError(f"override {sign}{show(key)}: is no key; write ++workload.section.key=value")
    return Override(f"{sign}{key}", sign, key, value, has_value)


def _value(text: str, key: str) -> Any:
    if text.startswith(("{", "[")):
        text = _SHORT.sub(r"\1: ", text)
    try:
        return plain(text)
    except UnfitError as error:
        raise ScenarioError(f"override {show(key)}: {error.problem}") from None
    except (yaml.YAMLError, *UNREADABLE):
        return text


def compose(path: Path, label: str, overrides: Sequence[Override] = ()) -> Composed:
    """Return the configuration of a file with its defaults, overrides and interpolations.

    Raises:
        ScenarioError: one line with file, key and what is wrong.
    """
    composed = Files.open(path, label).compose(overrides)
    if lines := [*dict.fromkeys(composed.broken.values())]:
        raise one_of(ScenarioError, lines, lines)
    return composed


@dataclass
class Files:
    """A file and those of its defaults lists, each read once."""

    path: Path
    label: str
    #: Folder of absolute groups.
    root: Path
    first: Layer
    package: KeyPath
    cache: dict[Path, tuple[Layer, str]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, label: str) -> Files:
        """Read the first file.

        Raises:
            ScenarioError: it cannot be read, or is no configuration.
        """
        layer = read(path, label, needs="a workload of DLIO has sections such as dataset, reader and train")
        groups = [str(key) for entry in _entries(layer) if isinstance(entry, Mapping) for key in entry]
        is_whole = "workload" in layer.data or any(group.split()[-1].strip("/") == "workload" for group in groups)
        root = path.parent.parent if path.parent.name == "workload" and not is_whole else path.parent
        return cls(path, label, root, layer, () if is_whole else ("workload",))

    def compose(self, overrides: Sequence[Override]) -> Composed:
        """Return the configuration with these overrides, and a line for each that cannot be applied.

        Raises:
            ScenarioError: one line with file, key and what is wrong.
        """
        expanding = _Expanding(self, {item.key.strip("/"): item for item in overrides if not item.sign})
        layers = [*expanding.layers_of(self.path, self.label, self.package, ())]
        data: dict[str, Any] = {}
        for layer in layers:
            data = merged(data, layer.data)
        broken: dict[KeyPath, str] = {}
        for item in overrides:
            if item.key.strip("/") in expanding.used or item.path[0] == "hydra":
                continue
            try:
                layers.append(_applied(data, item, expanding.groups))
            except ScenarioError as error:
                broken[item.path] = str(error)
        workload = data.get("workload")
        where = f"{self.label}: workload"
        if not isinstance(workload, dict):
            raise ScenarioError(f"{where}={show(workload)}: must be a mapping with dataset, reader, train, ...")
        others = [key for key in data if key not in ("workload", "hydra")]
        if others:
            raise ScenarioError(f"{self.label}: {show(others[0])}: is outside of workload; remove it, or put it there")
        composed = Composed({}, workload, tuple(layers))
        values = resolved({"workload": workload}, lambda path: composed.where(path[1:]), broken)
        return replace(composed, data=values["workload"], broken={path[1:]: line for path, line in broken.items()})


def merged(base: Any, over: Any) -> Any:
    """Return ``base`` with ``over``: mappings merge key by key, other values replace."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{key: merged(base[key], value) if key in base else value for key, value in over.items()}}


def nested(path: KeyPath, value: Any) -> Any:
    """Return a value inside mappings of these keys."""
    for key in reversed(path):
        value = {key: value}
    return value


def _applied(data: dict[str, Any], item: Override, groups: Sequence[str]) -> Layer:
    """Apply an override to the data; return its layer."""
    where, path = f"override {item.text}", item.path
    if path[0] != "workload":
        known = f", or with a group ({', '.join(groups)})" if groups else ""
        raise ScenarioError(f"{where}: begins with none of DLIO's sections; write ++workload.section.key=value{known}")
    if len(path) == 1 and path[0] in groups:
        raise ScenarioError(f"{where}: a group of the defaults list takes no {item.sign}; write {path[0]}=NAME")
    if len(path) == 1:
        raise ScenarioError(f"{where}: chooses a workload, but the file is one; leave it out, or name another file")
    holder: Any = data
    for depth, key in enumerate(path[:-1]):
        inner = holder.get(key)
        if inner is None and item.sign in ("+", "++"):
            inner = holder[key] = {}
        if inner is None:
            raise ScenarioError(_nothing(where, holder, path, depth))
        if not isinstance(inner, dict):
            raise ScenarioError(f"{where}: {'.'.join(path[: depth + 1])} is {show(inner)}, not a mapping")
        holder[key] = dict(inner)
        holder = holder[key]
    last = path[-1]
    if item.sign in ("", "~") and last not in holder:
        raise ScenarioError(_nothing(where, holder, path, len(path) - 1))
    if item.sign == "+" and last in holder:
        raise ScenarioError(f"{where}: is there already; write ++{item.key} to replace it")
    if item.sign == "~":
        if item.has_value and holder[last] != item.value:
            raise ScenarioError(f"{where}: is {show(unless_secret(last, holder[last]))} there, so it is not removed")
        del holder[last]
        return Layer({}, where)
    holder[last] = merged(holder.get(last), item.value)
    return Layer(nested(path, item.value), where, override=path)


def _nothing(where: str, holder: Mapping[str, Any], path: KeyPath, depth: int) -> str:
    near = get_close_matches(path[depth], [str(key) for key in holder], n=1, cutoff=0.6)
    name = ".".join(path[: depth + 1])
    meant = f"; did you mean {'.'.join((*path[:depth], near[0]))}?" if near else ""
    return f"{where}: there is no {name}{meant} (++ adds a key)"


@dataclass
class _Expanding:
    """The expansion of defaults lists; ``chosen`` has the overrides of groups."""

    files: Files
    chosen: Mapping[str, Override]
    used: set[str] = field(default_factory=set)
    groups: list[str] = field(default_factory=list)
    number: int = 0

    def layers_of(
        self, path: Path, label: str, package: KeyPath, below: tuple[tuple[Path, str], ...]
    ) -> Iterator[Layer]:
        """Yield the layers of a file, each below its package, in the order of its defaults list."""
        real = path.resolve()
        if real in [other for other, _ in below]:
            circle = " -> ".join([*(name for _, name in below), label])
            raise ScenarioError(f"{below[-1][1]}: defaults: go round in a circle: {circle}")
        self.number += 1
        if self.number > MAX_FILES:
            raise ScenarioError(f"{self.files.label}: defaults: more than {MAX_FILES} files")
        layer, head = self._read(path, label)
        package = package if head in ("", "_group_") else () if head == "_global_" else tuple(head.split("."))
        entries = _entries(layer)
        own = {key: value for key, value in layer.data.items() if key != "defaults"}
        lines = {(*package, *keys): line for keys, line in layer.lines.items()}
        mine = Layer(nested(package, own), label, lines, path)
        overridden = {group: option for entry in entries for group, option in self._overridden(entry)}
        for number, entry in enumerate([*entries, *([] if "_self_" in entries else ["_self_"])]):
            if entry == "_self_":
                yield mine
                continue
            where = layer.where(("defaults", f"[{number}]"))
            for inner, name, inner_package, is_optional in self._files(entry, where, path, package, overridden):
                if not inner.is_file():
                    if is_optional:
                        continue
                    raise ScenarioError(f"{where}: defaults: {name}: no such file{_others(inner)}")
                yield from self.layers_of(inner, _beside(label, path, inner), inner_package, (*below, (real, label)))

    def _read(self, path: Path, label: str) -> tuple[Layer, str]:
        cached = self.files.cache.get(path)
        if cached is None:
            is_first = path == self.files.path
            needs = "a file of a defaults list has keys"
            layer = self.files.first if is_first else read(path, label, needs=needs)
            first = path.read_text(encoding="utf-8-sig").partition("\n")[0]
            match = _PACKAGE.fullmatch(first.strip())
            cached = self.files.cache[path] = (layer, match[1] if match else "")
        return cached

    @staticmethod
    def _overridden(entry: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(entry, Mapping):
            for key, option in entry.items():
                words = str(key).split()
                if words[0] == "override":
                    yield words[-1].strip("/"), option

    def _files(
        self, entry: Any, where: str, path: Path, package: KeyPath, overridden: Mapping[str, Any]
    ) -> Iterator[tuple[Path, str, KeyPath, bool]]:
        """Yield the files of an entry: path, name, package, and whether it may be missing."""
        if isinstance(entry, str):
            name, _, at = entry.partition("@")
            parts = name.strip("/").split("/")
            group, options = "/".join(parts[:-1]), [parts[-1]]
            words = [f"{'/' if name.startswith('/') else ''}{group}"]
        elif isinstance(entry, Mapping):
            key, chosen = next(iter(entry.items()))
            words = str(key).split()
            words[-1], _, at = words[-1].partition("@")
            group = words[-1].strip("/")
            if group.startswith("hydra") or words[0] == "override":
                return
            self.groups.append(group)
            chosen = overridden.get(group, chosen)
            if group in self.chosen:
                self.used.add(group)
                chosen = self.chosen[group].value
            options = [] if chosen is None else chosen if isinstance(chosen, list) else [chosen]
        else:
            raise _no_entry(where, entry)
        if words[:-1] not in ([], ["optional"]) or not all(isinstance(option, str) for option in options):
            raise _no_entry(where, entry)
        is_absolute = words[-1].startswith("/")
        inner_package = _package(at, package, () if is_absolute else package, group)
        for option in options:
            name = f"{group}/{option}".strip("/").removesuffix(".yaml")
            if ".." in name.split("/") or "\0" in name or len(name) > 200:
                raise ScenarioError(f"{where}: defaults: {show(name)}: leaves the folder of the configuration")
            folder = self.files.root if is_absolute else path.parent
            yield folder / f"{name}.yaml", name, inner_package, words[0] == "optional"


def _entries(layer: Layer) -> list[Any]:
    """Return the defaults list of a file; each mapping in it has one key."""
    entries = layer.data.get("defaults", [])
    where = layer.where(("defaults",))
    if not isinstance(entries, list):
        raise ScenarioError(f"{where}: defaults={show(entries)}: must be a list, such as [_self_, base]")
    if entries.count("_self_") > 1:
        raise ScenarioError(f"{where}: defaults: _self_ stands twice")
    for number, entry in enumerate(entries):
        words = [str(key).split() for key in entry] if isinstance(entry, Mapping) else [[entry]]
        if len(words) != 1 or not words[0]:
            raise _no_entry(layer.where(("defaults", f"[{number}]")), entry)
    return entries


def _no_entry(where: str, entry: Any) -> ScenarioError:
    return ScenarioError(f"{where}: defaults: {show(entry)}: must be _self_, a file's name or {{group: name}}")


def _package(at: str, here: KeyPath, base: KeyPath, group: str) -> KeyPath:
    if at == "_global_":
        return ()
    if at == "_here_":
        return here
    return (*base, *(at.split(".") if at else [part for part in group.split("/") if part]))


def _beside(label: str, path: Path, inner: Path) -> str:
    """Return the label of a file of a defaults list, in the form of the label of the file that names it."""
    folder = label.removesuffix(path.name)
    try:
        return f"{folder}{inner.relative_to(path.parent)}"
    except ValueError:
        return str(inner)


def _others(path: Path) -> str:
    names = sorted(other.stem for other in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    near = get_close_matches(path.stem, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f" ({path})"
