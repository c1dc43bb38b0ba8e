"""Interpolations of a composed configuration: ``${a.b}``, ``${.b}``, ``${oc.env:NAME,default}``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from rayio.errors import ScenarioError
from rayio.scenario.source import MAX_DEPTH, MAX_VALUES, KeyPath, step
from rayio.schema.fields import show

#: An interpolation without another inside.
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_ESCAPED = "\\${"
#: Stands for an escaped interpolation meanwhile.
_KEPT = "\0{"
MAX_TEXT = 1 << 16


class EndlessError(ScenarioError):
    """A configuration that interpolates to too many values to go on."""


def resolved(
    root: dict[str, Any], where: Callable[[KeyPath], str], broken: dict[KeyPath, str] | None = None
) -> dict[str, Any]:
    """Return a copy of a configuration with the values of its interpolations; ``where`` gives the place of a key.

    With ``broken``, values that cannot be interpolated are None, and it gets a line for each.

    >>> resolved({"a": {"b": 3, "c": "${.b}", "d": "x-${a.b}"}}, str)
    {'a': {'b': 3, 'c': 3, 'd': 'x-3'}}

    Raises:
        ScenarioError: an interpolation has no target, contains itself, or has an unsupported form.
    """
    values: dict[str, Any] = _Resolving(root, where, broken).value((), root)
    return values


def is_interpolated(value: Any) -> bool:
    """Return True if a value is a text with an interpolation."""
    return isinstance(value, str) and "${" in value.replace(_ESCAPED, "")


class _Resolving:
    def __init__(
        self, root: dict[str, Any], where: Callable[[KeyPath], str], broken: dict[KeyPath, str] | None
    ) -> None:
        self.root, self.where, self.broken = root, where, broken
        self.inside: list[KeyPath] = []
        self.number = 0

    def value(self, path: KeyPath, raw: Any) -> Any:
        self.number += 1
        if self.number > MAX_VALUES:
            raise EndlessError(str(self._refused(path, f"more than {MAX_VALUES} values")))
        if isinstance(raw, Mapping):
            return {key: self.value((*path, str(key)), inner) for key, inner in raw.items()}
        if isinstance(raw, list):
            return [self.value((*path, f"[{number}]"), inner) for number, inner in enumerate(raw)]
        if not isinstance(raw, str) or "${" not in raw:
            return raw
        if path in self.inside:
            circle = " -> ".join(".".join(keys) for keys in (*self.inside[self.inside.index(path) :], path))
            raise self._refused(path, f"goes round in a circle: {circle}")
        if len(self.inside) > MAX_DEPTH:
            raise self._refused(path, f"more than {MAX_DEPTH} interpolations lead to it")
        self.inside.append(path)
        try:
            return self._text(path, raw)
        except EndlessError:
            raise
        except ScenarioError as error:
            if self.broken is None or len(self.inside) > 1:
                raise
            self.broken[path] = str(error)
            return None
        finally:
            self.inside.pop()

    def _text(self, path: KeyPath, raw: str) -> Any:
        text = raw.replace(_ESCAPED, _KEPT)
        while match := _INNERMOST.search(text):
            target = self._target(path, match[1])
            if match.span() == (0, len(text)) and not isinstance(target, str):
                return target
            if isinstance(target, (Mapping, list)):
                raise self._refused(path, f"{match[0]} is no single value, so it cannot be part of a text")
            inner = str(target).replace("${", _KEPT)
            text = f"{text[: match.start()]}{inner}{text[match.end() :]}"
            if len(text) > MAX_TEXT:
                raise self._refused(path, f"interpolates to more than {MAX_TEXT} characters")
        if "${" in text:
            raise self._refused(path, f"{show(raw)}: an interpolation is not closed; write ${{section.key}}")
        return text.replace(_KEPT, "${")

    def _target(self, path: KeyPath, expression: str) -> Any:
        expression = expression.strip()
        resolver, colon, argument = expression.partition(":")
        if colon and resolver == "oc.env":
            return self._environment(path, argument)
        if colon:
            raise self._refused(path, f"${{{expression}}}: rayio has no resolver {show(resolver)}; write its value")
        keys = [key for key in re.split(r"[.\[\]]+", expression.lstrip(".")) if key]
        if not keys:
            raise self._refused(path, f"${{{expression}}}: names no key; write ${{section.key}}")
        dots = len(expression) - len(expression.lstrip("."))
        starts = [path[: max(len(path) - dots, 0)]] if dots else [(), ("workload",)]
        for start in starts:
            at = (*start, *keys)
            if (target := self._at(at)) is not None:
                return self.value(*target)
        start = () if keys[0] == "workload" else starts[-1]
        raise self._refused(path, f"${{{expression}}}: there is no such key{self._near(start, keys)}")

    def _at(self, keys: KeyPath) -> tuple[KeyPath, Any] | None:
        node: Any = self.root
        path: KeyPath = ()
        for key in keys:
            if isinstance(node, str) and "${" in node:
                node = self.value(path, node)
            key = f"[{key}]" if isinstance(node, list) and key.isdigit() else key
            if not (inner := step(node, key)):
                return None
            node, path = inner[0], (*path, key)
        return path, node

    def _near(self, start: KeyPath, named: list[str]) -> str:
        keys = (*start, *named)
        for depth in range(len(keys) - 1, -1, -1):
            holder = self._at(keys[:depth])
            if holder is not None and isinstance(holder[1], Mapping):
                near = get_close_matches(keys[depth], [str(key) for key in holder[1]], n=1, cutoff=0.6)
                return f"; did you mean {'.'.join((*keys[:depth], near[0]))}?" if near else ""
        return ""

    def _environment(self, path: KeyPath, argument: str) -> Any:
        name, comma, default = argument.partition(",")
        value = os.environ.get(name.strip(), default.strip() if comma else None)
        if value is None:
            raise self._refused(path, f"${{oc.env:{argument}}}: the environment has no {show(name.strip())}")
        return value

    def _refused(self, path: KeyPath, reason: str) -> ScenarioError:
        return ScenarioError(f"{self.where(path)}: {'.'.join(path[1:] or path)}: {reason}")
