"""Files of other programs that stand for a scenario: ``dlio:workload.yaml``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rayio.errors import ScenarioError
from rayio.kinds import FOREIGN
from rayio.scenario.source import Layer, refuse_repeated

#: A dotted key in the text of a source.
_NAME = re.compile(r"[a-z_]+(?:\.[a-z0-9_]+)+")


@dataclass(frozen=True, slots=True)
class Converted:
    """The keys of a scenario from such a file.

    ``sources`` has the keys of the other program by dotted key. ``changed`` and ``idle`` have a line for each key that
    acts otherwise than there, and for each without effect.
    """

    layer: Layer
    sources: Mapping[str, str]
    changed: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def named(self, line: str) -> str:
        """Return a line on keys of the scenario with those of the other program behind them.

        >>> Converted(Layer({}, ""), {"loader.batch_size": "reader.batch_size"}).named("loader.batch_size=7: too many")
        'loader.batch_size=7: too many (in that file: reader.batch_size)'
        """
        shown = [source for key, source in self.sources.items() if re.search(rf"(?<![\w.]){re.escape(key)}=", line)]
        names = dict.fromkeys(name for source in shown for name in _NAME.findall(source))
        return f"{line} (in that file: {', '.join(names)})" if names else line

    def remarks(self) -> list[str]:
        """Return all remarks, a line each."""
        return [*(f"differs: {line}" for line in self.changed), *(f"no effect: {line}" for line in self.idle)]

    def in_words(self) -> str:
        """Return how many keys are remarked on."""
        return f"{len(self.changed)} of its keys act otherwise here, {len(self.idle)} have no effect"


#: From overrides in the other program's form (key and value, None without one) to the keys of a scenario.
Opened = Callable[[Sequence[tuple[str, Any]]], Converted]


class Foreign(Protocol):
    """A kind of file."""

    def is_own(self, key: str) -> bool:
        """Return True if an override is in the other program's form, by its text before ``=``."""

    def open(self, path: Path, label: str) -> Opened:
        """Read a file once.

        Raises:
            ScenarioError: it cannot be read.
        """


def kind_of(source: object) -> tuple[Foreign, str] | None:
    """Return the kind of a name such as ``dlio:workload.yaml``, and the file's path; None for any other name.

    Raises:
        ScenarioError: nothing follows the prefix.
    """
    prefix, colon, path = source.partition(":") if isinstance(source, str) else ("", "", "")
    if not colon or prefix not in FOREIGN:
        return None
    if not path.strip():
        raise ScenarioError(f"{prefix}: names no file; write {prefix}:FILE")
    return FOREIGN[prefix], path


def split(kind: Foreign, overrides: Sequence[str] | Mapping[str, Any]) -> tuple[list[tuple[str, Any]], Any]:
    """Return the overrides in the other program's form as text and value, and the others as they were.

    Raises:
        ScenarioError: a key is given twice.
    """
    if isinstance(overrides, Mapping):
        own = [(key, value) for key, value in overrides.items() if kind.is_own(str(key))]
        return own, {key: value for key, value in overrides.items() if not kind.is_own(str(key))}
    texts = [overrides] if isinstance(overrides, str) else [*overrides]
    refuse_repeated(texts)
    own = [(text, None) for text in texts if kind.is_own(text.partition("=")[0])]
    return own, [text for text in texts if not kind.is_own(text.partition("=")[0])]


def converted(source: object, overrides: Sequence[str] | Mapping[str, Any]) -> Converted | None:
    """Return the keys of a scenario from a file of another program; None for a scenario's own file or name.

    Raises:
        ScenarioError: the file is invalid, or has keys that are refused.
    """
    if (named := kind_of(source)) is None:
        return None
    kind, path = named
    return kind.open(Path(path), path)(split(kind, overrides)[0])
