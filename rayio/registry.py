"""A registry is a mapping that explains itself: choosing an implementation is indexing by its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from traceback import walk_tb
from typing import Any, Generic, TypeVar

from rayio.errors import RayioError, ScenarioError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Implementations by name: those built in, and those that packages add in the entry-point group ``rayio.<group>``.

    Both are references (``package.module:thing``) until they are first used, so that whoever knows a name need not
    import what it stands for. Packages are asked only for names that are not built in: start-up pays nothing for them.

    Args:
        group: what the entries are, as the entry-point group has it.
        entries: references to what is built in, in the order in which names are listed.
        later: names that are documented and not built: they are refused as such.
        title: the group in words, where they differ.
        needs: attributes that an entry must have to be of use.
        makes: whether an entry that is a class stands for one object of it, and not for itself.
    """

    def __init__(
        self,
        group: str,
        entries: Mapping[str, str],
        *,
        later: tuple[str, ...] = (),
        title: str = "",
        needs: tuple[str, ...] = (),
        makes: bool = False,
    ) -> None:
        self.group = group
        self.title = title or group
        self.later = later
        self._references = dict(entries)
        self._needs = needs
        self._makes = makes
        self._found: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """The implementation registered under this name.

        Raises:
            ScenarioError: nothing has it, or the package that adds it cannot be used; one line says which and why.
        """
        try:
            return self._found[name]
        except KeyError:
            return self._found.setdefault(name, self._resolve(name))

    def _resolve(self, name: str) -> T:
        if name in self._references:
            module, _, attribute = self._references[name].partition(":")
            return self._made(getattr(import_module(module), attribute))
        points = [point for point in self._installed() if point.name == name]
        if not points:
            shown = name if len(name) <= 80 else f"{name[:77]}..."
            raise ScenarioError(f"no {self.title} named {shown!r}; there are {', '.join(sorted(self))}")
        if len({point.value for point in points}) > 1:
            packages = " and ".join(sorted({_package(point) for point in points}))
            raise ScenarioError(f"{self.title} {name!r} is in {packages}; uninstall one of them")
        whose = f"{self.whose(name)} ({points[0].value})"
        try:
            thing = self._made(points[0].load())
        except Exception as error:  # whatever another package's code raises as it is imported
            reason = " ".join(str(error).split()) or "no reason given"
            raise ScenarioError(f"{whose} cannot be used: {type(error).__name__}: {reason}") from error
        if missing := [attribute for attribute in self._needs if not hasattr(thing, attribute)]:
            raise ScenarioError(f"{whose} cannot be used: it has no {' and no '.join(missing)}")
        return thing

    @contextmanager
    def answerable(self, name: str) -> Iterator[None]:
        """Run what another package's entry does: an error that is not ours then names that package.

        Raises:
            ScenarioError: what it did raise something else.
        """
        try:
            yield
        except RayioError:
            raise
        except Exception as error:
            if name not in self or name in self._references:
                raise
            reason = " ".join(str(error).split()) or "no reason given"
            raise ScenarioError(
                f"{self.whose(name)} failed: {type(error).__name__}: {reason}; tell its authors, or use another"
            ) from error

    def whose(self, name: str) -> str:
        """An entry with the package that adds it, for messages; one of ours by its name alone."""
        points = [] if name in self._references else [one for one in self._installed() if one.name == name]
        return f"{self.title} {name!r}" + "".join(f" of {_package(point)}" for point in points[:1])

    def _made(self, thing: Any) -> T:
        made: T = thing() if self._makes and isinstance(thing, type) else thing
        return made

    def hidden(self, name: str) -> list[str]:
        """Packages that add an entry by a name of ours, which nobody gets to see."""
        points = [one for one in self._installed() if one.name == name and one.value != self._references.get(name)]
        return sorted({_package(point) for point in points}) if name in self._references else []

    def _installed(self) -> list[EntryPoint]:
        return _all_installed().get(f"rayio.{self.group}", [])

    def __contains__(self, name: object) -> bool:
        return name in self._references or any(point.name == name for point in self._installed())

    def __iter__(self) -> Iterator[str]:
        """Every name that can be chosen, those built in first."""
        yield from dict.fromkeys([*self._references, *sorted(point.name for point in self._installed())])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def built_in(self) -> tuple[str, ...]:
        """Names of what is not another package's."""
        return (*self._references,)

    def usable(self) -> dict[str, T]:
        """Every implementation that can be imported, by name."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except ScenarioError:
                if name in self._references:
                    raise
        return found


def fault_of(error: BaseException) -> str:
    """Say whose fault an error is that is no user's: ours, or a package's whose kinds were at work as it was raised."""
    at_work = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
    points = [point for group in _all_installed().values() for point in group]
    packages = {point.module.partition(".")[0]: point for point in points}
    found = next((packages[name] for name in reversed(at_work) if name in packages and name != "rayio"), None)
    return "our fault" if found is None else f"fault of {_package(found)}"


def _all_installed() -> dict[str, list[EntryPoint]]:
    return _installed(tuple((folder, _changed(folder)) for folder in sys.path))


@lru_cache(maxsize=4)
def _installed(folders: tuple[tuple[str, int], ...]) -> dict[str, list[EntryPoint]]:
    """Find what packages add, by group: once for the folders that Python looks into, as they are. It reads them all."""
    found = entry_points()
    return {group: [*found.select(group=group)] for group in found.groups if group.startswith("rayio.")}


def _changed(folder: str) -> int:
    """When something came into a folder or left it (ns); 0 where there is none."""
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _package(point: EntryPoint) -> str:
    dist = point.dist
    return f"package {dist.name} {dist.version}" if dist is not None else f"module {point.module}"
