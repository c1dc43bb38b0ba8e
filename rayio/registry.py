"""Registries: mappings from names to implementations, built in or from other packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import import_module
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rayio.errors import RayioError, ScenarioError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to implementations: built in, or of packages with entry points in ``rayio.<group>``.

    Implementations are references (``package.module:thing``), imported on first use. Entry points are read only for
    names that are not built in.

    Args:
        group: the name of the kind, as in the entry-point group.
        entries: references to built-in implementations, in the order of listings.
        later: documented names that are not built yet; they are refused with ``not yet``.
        title: the kind in messages, where it differs from ``group``.
        needs: attributes that every implementation must have.
        makes: whether a class among the entries is instantiated.
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
        if built := [name for name in later if name in entries]:
            raise ValueError(f"{group} {built[0]!r} is built: remove it from later")
        self.group = group
        self.title = title or group
        self.later = later
        self._references = dict(entries)
        self._needs = needs
        self._makes = makes
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """Return the implementation of this name.

        Raises:
            ScenarioError: the name is unknown, or its package cannot be used.
        """
        try:
            return self._loaded[name]
        except KeyError:
            return self._loaded.setdefault(name, self._resolve(name))

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
        except Exception as error:  # another package's import may raise anything
            reason = " ".join(str(error).split()) or "no reason given"
            raise ScenarioError(f"{whose} cannot be used: {type(error).__name__}: {reason}") from error
        if missing := [attribute for attribute in self._needs if not hasattr(thing, attribute)]:
            raise ScenarioError(f"{whose} cannot be used: it has no {' and no '.join(missing)}")
        return thing

    def answerable(self, name: str) -> AbstractContextManager[None]:
        """Run code of an entry; an unexpected error of another package's entry then names that package.

        Raises:
            ScenarioError: the other package's code raised something other than a `RayioError`.
        """
        return _Answerable(self, name)

    def whose(self, name: str) -> str:
        """Return an entry's name for messages, with the package that adds it unless built in."""
        points = [] if name in self._references else [point for point in self._installed() if point.name == name]
        return f"{self.title} {name!r}" + "".join(f" of {_package(point)}" for point in points[:1])

    def _made(self, thing: Any) -> T:
        made: T = thing() if self._makes and isinstance(thing, type) else thing
        return made

    def hidden(self, name: str) -> list[str]:
        """Return the packages whose entry of this name is hidden by a built-in one."""
        builtin = self._references.get(name)
        points = [point for point in self._installed() if point.name == name and point.value != builtin]
        return sorted({_package(point) for point in points}) if name in self._references else []

    def _installed(self) -> list[EntryPoint]:
        return _all_installed().get(f"rayio.{self.group}", [])

    def __contains__(self, name: object) -> bool:
        return name in self._references or any(point.name == name for point in self._installed())

    def __iter__(self) -> Iterator[str]:
        """Iterate over all names, built-in ones first."""
        yield from dict.fromkeys([*self._references, *sorted(point.name for point in self._installed())])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def built_in(self) -> tuple[str, ...]:
        """The built-in names."""
        return (*self._references,)

    def usable(self) -> dict[str, T]:
        """Return the implementations that can be imported, by name."""
        usable = {}
        for name in self:
            try:
                usable[name] = self[name]
            except ScenarioError:
                if name in self._references:
                    raise
        return usable


class _Answerable:
    """A block that runs code of a registry's entry; a class, because points of a sweep enter hundreds of them."""

    __slots__ = ("_name", "_registry")

    def __init__(self, registry: Registry[Any], name: str) -> None:
        self._registry, self._name = registry, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, RayioError) or not isinstance(error, Exception):
            return
        registry, name = self._registry, self._name
        if name not in registry or name in registry.built_in:
            return
        reason = " ".join(str(error).split()) or "no reason given"
        raise ScenarioError(
            f"{registry.whose(name)} failed: {type(error).__name__}: {reason}; tell its authors, or use another"
        ) from error


def fault_of(error: BaseException) -> str:
    """Return whose fault an unexpected error is, for messages: ours, or that of a package in its traceback."""
    at_work = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
    points = [point for group in _all_installed().values() for point in group]
    packages = {point.module.partition(".")[0]: point for point in points}
    culprit = next((packages[name] for name in reversed(at_work) if name in packages and name != "rayio"), None)
    return "our fault" if culprit is None else f"fault of {_package(culprit)}"


def _all_installed() -> dict[str, list[EntryPoint]]:
    return _installed(tuple((folder, _changed(folder)) for folder in sys.path))


@lru_cache(maxsize=4)
def _installed(folders: tuple[tuple[str, int], ...]) -> dict[str, list[EntryPoint]]:
    """Return the entry points of packages, by group; cached for unchanged folders of ``sys.path``."""
    from importlib.metadata import entry_points  # a tenth of what `rayio --help` takes

    points = entry_points()
    return {group: [*points.select(group=group)] for group in points.groups if group.startswith("rayio.")}


def _changed(folder: str) -> int:
    """Return when a folder's entries last changed (ns); 0 for a missing folder."""
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _package(point: EntryPoint) -> str:
    dist = point.dist
    return f"package {dist.name} {dist.version}" if dist is not None else f"module {point.module}"
