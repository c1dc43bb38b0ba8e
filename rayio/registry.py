"""A registry is a dict that explains itself: choosing an implementation is indexing by its name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from rayio.errors import ScenarioError

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """Implementations by name; packages add theirs through the entry-point group ``rayio.<kind>``.

    Entry points are read only when a name is missing, so start-up pays nothing for them.
    """

    def __init__(self, kind: str, entries: dict[str, T] | None = None) -> None:
        super().__init__(entries or {})
        self.kind = kind

    def __missing__(self, name: str) -> T:
        for point in entry_points(group=f"rayio.{self.kind}"):
            if point.name == name:
                self[name] = point.load()
                return self[name]
        raise ScenarioError(f"no {self.kind} named {name!r}; there are {', '.join(sorted(self.names()))}")

    def names(self) -> Iterator[str]:
        """Every name that can be chosen, built in or installed."""
        yield from self
        yield from (point.name for point in entry_points(group=f"rayio.{self.kind}") if point.name not in self)
