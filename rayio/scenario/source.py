"""The sources of scenarios: a file or a packaged name, read into mappings with file and line."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from rayio.errors import ScenarioError
from rayio.files import read_regular
from rayio.schema.fields import show, unless_secret
from rayio.units import format_bytes

#: Keys from the top of a scenario; an entry of a list is ``[0]``, ``[1]`` …
KeyPath = tuple[str, ...]


def step(node: Any, key: str) -> tuple[Any] | tuple[()]:
    """Return the value at a key of a mapping, or at an entry of a list, alone in a tuple; empty without one.

    >>> step({"a": 3}, "a"), step([5, 6], "[1]"), step([5, 6], "[2]"), step(3, "a")
    ((3,), (6,), (), ())
    """
    if isinstance(node, Mapping):
        return (node[key],) if key in node else ()
    if isinstance(node, (list, tuple)) and (entry := re.fullmatch(r"\[(\d{1,6})\]", key)):
        return tuple(node[int(entry[1]) : int(entry[1]) + 1])
    return ()


@dataclass(frozen=True)
class Layer:
    """The keys of one file or one override, with their lines."""

    data: dict[str, Any]
    #: The file's name in messages.
    label: str
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    #: The file itself; none for an override.
    path: Path | None = None
    #: The dotted key of an override; empty for a file.
    override: KeyPath = ()

    def at(self, path: KeyPath) -> Any:
        """Return the value of this layer at ``path``."""
        node: Any = self.data
        for key in path:
            node = node[key]
        return node

    def depth(self, path: KeyPath) -> int:
        """Return the number of keys of ``path``, from the top, that this layer has."""
        node: Any = self.data
        for number, key in enumerate(path):
            if not (inner := step(node, key)):
                return number
            node = inner[0]
        return len(path)

    def where(self, path: KeyPath) -> str:
        """Return file and line of a value, or of the nearest mapping around it."""
        lines = [self.lines[path[:n]] for n in range(self.depth(path), 0, -1) if path[:n] in self.lines]
        return f"{self.label}:{lines[0]}" if lines else self.label

    def line(self, path: KeyPath) -> int:
        """Return the line of a value, or of the nearest mapping around it; 0 without one."""
        _, _, line = self.where(path).removeprefix(self.label).rpartition(":")
        return int(line or 0)


MAX_BYTES = 256 << 10
#: The most values of a file, with the values of each alias: a few lines of aliases can expand to billions.
MAX_VALUES = 10_000
MAX_DEPTH = 40
#: Tags of numbers: as keys they are text, such as those of ``train.speeds.ranks``.
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


#: Further errors of PyYAML for invalid values: ``0x``, ``!!bool maybe``, ``!!timestamp soon``.
UNREADABLE = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)


#: The reason for which text with half a character is refused.
TORN = "a text has half of a character, which no file can hold"


def is_torn(text: str) -> bool:
    """Return True if a text has half of a character, which YAML's escapes can make and no file can have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class UnfitError(yaml.MarkedYAMLError):
    """An error for refused YAML: duplicate keys, keys that are not text, recursive values."""


class _Lines(dict[KeyPath, int]):
    """The lines of keys; ``seen`` counts the values so far, at most ``most``.

    ``known`` has how many values are in a node, and at which depth it was looked through.
    """

    def __init__(self, most: int = MAX_VALUES) -> None:
        super().__init__()
        self.most = most
        self.seen = 0
        self.known: dict[int, tuple[int, int]] = {}


#: A whole number that YAML 1.1 reads to the base of 8.
_OCTAL = re.compile(r"[-+]?0[0-7_]*[0-7][0-7_]*")


def _lines(node: yaml.Node, path: KeyPath, inside: set[int], lines: _Lines, *, kept: bool = True) -> None:
    """Record the line of every key and list entry where ``kept``, refusing on the way what no scenario may have.

    ``inside`` has the ids of the nodes that this one is in.
    """
    values, depth = lines.known.get(id(node), (0, -1))
    is_known = not kept and len(inside) <= depth  # an alias of what was looked through: a bomb has millions
    lines.seen += 1 + (values if is_known else 0)
    if lines.seen > lines.most:
        problem = f"more than {lines.most} values, aliases counted as what they stand for"
        raise UnfitError(problem=problem, problem_mark=node.start_mark)
    if id(node) in inside:
        raise UnfitError(problem="an alias that contains itself", problem_mark=node.start_mark)
    if len(inside) > MAX_DEPTH:
        raise UnfitError(problem=f"nested too deeply: more than {MAX_DEPTH} levels", problem_mark=node.start_mark)
    if isinstance(node, yaml.ScalarNode) and is_torn(node.value):
        raise UnfitError(problem=TORN, problem_mark=node.start_mark)
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:int" and _OCTAL.fullmatch(node.value):
        meant = str(int(node.value.replace("_", ""), 10))
        name = f"{'.'.join(map(show, path))}: " if path else ""
        problem = f"{name}{show(node.value)} begins with 0, which makes it octal in YAML; write {meant}"
        raise UnfitError(problem=problem, problem_mark=node.start_mark)
    if is_known or not isinstance(node, yaml.CollectionNode):
        return
    before = lines.seen
    inside.add(id(node))
    if isinstance(node, yaml.MappingNode):
        _lines_of_keys(node, path, inside, lines, kept=kept)
    else:
        for number, child in enumerate(node.value):
            if kept:
                lines[(*path, f"[{number}]")] = child.start_mark.line + 1
            _lines(child, (*path, f"[{number}]"), inside, lines, kept=kept)
    inside.discard(id(node))
    lines.known[id(node)] = lines.seen - before, len(inside)


def _lines_of_keys(node: yaml.MappingNode, path: KeyPath, inside: set[int], lines: _Lines, *, kept: bool) -> None:
    seen: set[Hashable] = set()
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            _lines(value, path, inside, lines, kept=False)
            continue
        if key.tag in _NUMBERS:
            key.tag = "tag:yaml.org,2002:str"
        if key.tag != "tag:yaml.org,2002:str":
            shown = show(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            raise UnfitError(problem=f"key {shown} must be text; quote it", problem_mark=key.start_mark)
        if is_torn(key.value):
            raise UnfitError(problem=TORN, problem_mark=key.start_mark)
        if key.value in seen:
            name = ".".join(map(show, (*path, key.value)))
            raise UnfitError(problem=f"{name} is given twice", problem_mark=key.start_mark)
        seen.add(key.value)
        if kept:
            lines[(*path, key.value)] = key.start_mark.line + 1
        _lines(value, (*path, key.value), inside, lines, kept=kept)


#: Text that libyaml reads otherwise than PyYAML: tabs, ``?``, tags, controls, marks of order, directives, comments
#: behind ``|`` and ``>``, an entry of a list, or a document, that begins on the next line.
_UNLIKE = re.compile(r"[\t\r?!\x7f-\xa0\u2028\u2029\ufeff]|^%|[|>][^\n]*#|(?:^|[ -])-(?: *| +#.*)$", re.MULTILINE)


def _composed(text: str) -> tuple[yaml.SafeLoader | yaml.CSafeLoader, yaml.Node | None]:
    """Return the node of YAML text, None if it has none, with its loader.

    libyaml takes a fourteenth of the time; PyYAML reads what the two read otherwise, and whatever has an error.
    """
    if yaml.__with_libyaml__ and not _UNLIKE.search(text):
        fast = yaml.CSafeLoader(text)
        with suppress(yaml.YAMLError):
            return fast, fast.get_single_node()
    slow = yaml.SafeLoader(text)
    return slow, slow.get_single_node()


def _constructed(text: str, lines: _Lines, *, kept: bool = True) -> Any:
    """Return the value of YAML text within the limits; the lines of its keys go into ``lines`` where ``kept``."""
    try:
        loader, node = _composed(text)
        if node is None:
            return None
        _lines(node, (), set(), lines, kept=kept)
        return loader.construct_document(node)
    except RecursionError:
        raise UnfitError(problem="nested too deeply") from None


def plain(text: str, most: int = MAX_VALUES) -> Any:
    """Return a value from YAML text, with the limits of a scenario's file and at most ``most`` values.

    Raises:
        UnfitError: its ``problem`` says what nothing here may have.
        yaml.YAMLError: not YAML, nor do those of ``UNREADABLE`` mean anything else.
    """
    return _constructed(text, _Lines(most), kept=False)


#: What a scenario's file has, for the message that it is empty.
NEEDS = "a scenario needs name, dataset and train, or extends"


def parse(text: str, label: str, path: Path | None = None, needs: str = NEEDS) -> Layer:
    """Return the layer of YAML text; ``needs`` is what the file should have, for messages.

    Raises:
        ScenarioError: one line with file, line and what is wrong.
    """
    lines = _Lines()
    try:
        data = _constructed(text, lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{label}:{mark.line + 1}" if mark else label
        raise ScenarioError(f"{where}: {_problem(error)}") from None
    except yaml.YAMLError as error:
        raise ScenarioError(f"{label}: not YAML: {str(error).splitlines()[0]}") from None
    except UNREADABLE:
        raise ScenarioError(f"{label}: not YAML: a number or date that cannot be") from None
    if data is None:
        raise ScenarioError(f"{label}: is empty; {needs}")
    if not isinstance(data, dict):
        keys = "name, dataset, train, ..." if needs == NEEDS else "keys"
        raise ScenarioError(f"{label}: must be a mapping with {keys}, not {show(data)}")
    return Layer(data, label, lines, path)


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = " ".join(str(error.problem or error.context).split())
    if isinstance(error, UnfitError):
        return problem
    if isinstance(error, yaml.composer.ComposerError) and "another document" in problem:
        return "more than one document; a scenario is one"
    if isinstance(error, yaml.scanner.ScannerError):
        return f"not YAML: {problem} (does a value need quotes?)"
    return f"not YAML: {problem}"


def read(path: Path, label: str, needs: str = NEEDS) -> Layer:
    """Return the layer of a scenario file; ``needs`` is what the file should have, for messages.

    Raises:
        ScenarioError: the file cannot be read, or is not a mapping in YAML.
    """
    try:
        content = read_regular(path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ScenarioError(f"{label}: is larger than {format_bytes(MAX_BYTES)}, so it is no scenario")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        near = {p.stem: p.name for p in path.parent.glob("*.y*ml")} if path.parent.is_dir() else {}
        raise ScenarioError(f"{label}: no such file{_hint(path.stem, near)}") from None
    except IsADirectoryError:
        raise ScenarioError(f"{label}: is a folder; name the scenario file in it") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{label}: not text in UTF-8 (byte {error.start})") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScenarioError(f"{label}: cannot be read: {reason}") from None
    return parse(text, label, path, needs)


def _hint(name: str, names: Mapping[str, str]) -> str:
    """Return a hint to the name that is most like one; ``names`` has them by what is compared."""
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {names[near[0]]}?" if near else ""


def packaged_folder() -> Path:
    """Return the folder of the shipped scenarios: in an installed package, or next to ``rayio/`` in a checkout."""
    package = Path(str(files("rayio")))
    installed = package / "scenarios"
    return installed if installed.is_dir() else package.parent / "scenarios"


def packaged() -> dict[str, str]:
    """Return the names of the shipped scenarios, sorted, each with the comment in its first line."""
    return {path.stem: _description(path) for path in sorted(packaged_folder().glob("*.yaml"))}


def _is_file(path: Path) -> bool:
    """Return True if a path leads to a file; False for an impossible name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _description(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        match = re.match(r"#\s*(.*\S)", lines.readline())
    return match[1] if match else ""


def _label(path: Path) -> str:
    text = str(path) if str(path).isprintable() else repr(str(path))
    return text if len(text) <= 300 else text[:297] + "..."


def find(source: str | Path, beside: Path | None = None) -> tuple[Path, str]:
    """Return the file of a path or packaged name, and its label for messages.

    A name without folder and ``.yaml`` is a packaged one. A path is relative to the folder ``beside``, if given.

    Raises:
        ScenarioError: no scenario is named so.
    """
    text = str(source)
    is_name = isinstance(source, str) and re.fullmatch(r"[^/\\]+", text) and not text.endswith((".yaml", ".yml"))
    if is_name and _is_file(path := packaged_folder() / f"{text}.yaml"):
        return path, path.name
    path = beside / text if beside is not None else Path(text)
    label = _label(path)
    if is_name and not _is_file(path):
        names = [*packaged()]
        hint = _hint(text, {name: name for name in names}) or "; rayio scenarios lists all names"
        shown = repr(text if len(text) <= 80 else text[:77] + "...")
        raise ScenarioError(f"no scenario is named {shown}{hint} (a path ends in .yaml)")
    return path, label


def refuse_repeated(overrides: Iterable[str], remedy: str = "") -> None:
    """Refuse a key that overrides ``key=value`` give twice: only one of the values could count.

    ``remedy`` follows "give it once"; ``{}`` in it stands for the key.

    Raises:
        ScenarioError: it has the key and both values.
    """
    given: dict[str, str] = {}
    for key, equals, value in (text.partition("=") for text in overrides):
        name, shown = key.strip(), show(unless_secret(key, value.strip()))
        if equals and name in given:
            raise ScenarioError(
                f"{name} is given twice, as {given[name]} and {shown}; give it once{remedy.format(name)}"
            )
        given[name] = shown
