"""Stores: trees of files by name, wherever they are. Which implementation serves an address follows from its scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from rayio import kinds
from rayio.errors import ScenarioError, StorageError
from rayio.registry import Registry
from rayio.storage.address import scheme_of

if TYPE_CHECKING:
    from rayio.machine.mounts import Source
    from rayio.storage.stores.counted import Traffic

#: The values of ``storage.page_cache``.
PageCache = Literal["use", "drop", "direct"]

#: Writes the content of a file. It may be called again when an attempt to store it failed.
Fill = Callable[[BinaryIO], object]


@dataclass(frozen=True, slots=True)
class Settings:
    """How stores are reached. Credentials are never here: a store takes them from its environment."""

    #: The options of schemes, by the scheme's name; a scheme that is not here is reached as its defaults say.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What the jitter between attempts is drawn from.
    seed: int = 0
    #: How files of mounted file systems are read and written: through the page cache, with their pages evicted before
    #: and after, or past it.
    page_cache: PageCache = "use"


DEFAULTS = Settings()


class Store(Protocol):
    """Files below one address, by names with forward slashes; each of them appears whole or not at all.

    Calls block. A store may be used by several threads.

    >>> store = open("data/not-yet")
    >>> store.exists, store.is_local
    (False, True)
    """

    @property
    def address(self) -> str:
        """The address, as a user writes it; credentials are never in it."""

    @property
    def is_local(self) -> bool:
        """Whether files are in a mounted file system, so that :meth:`local` costs nothing."""

    @property
    def is_file(self) -> bool:
        """Whether a file is in the place of the folder, so that nothing can be below the address."""

    @property
    def exists(self) -> bool:
        """Whether anything is at the address.

        Raises:
            StorageError: the system refuses.
        """

    @property
    def source(self) -> Source:
        """Where what is read comes from, and how that can be counted."""

    @property
    def is_direct(self) -> bool:
        """Whether what is read goes past the page cache of this machine."""

    def full(self, name: str) -> str:
        """A file's own address, for messages."""

    def open(self, name: str, traffic: Traffic) -> BinaryIO:
        """Open a file for reading, with random access; what is asked of the system is counted in ``traffic``.

        Raises:
            DataError: there is no such file.
            StorageError: the system refuses.
        """

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None where there is none.

        Raises:
            StorageError: the system refuses.
        """

    def write(
        self, name: str, fill: Fill, *, traffic: Traffic | None = None, fsync: bool = False, doing: str = "writing"
    ) -> None:
        """Store what ``fill`` writes as one file, replacing what had the name; all of it appears, or nothing.

        With ``traffic`` it is streamed: ``fill`` only appends, each of its calls is a request of that size where the
        system takes requests of any size, and all are counted. Without, ``fill`` may seek. ``fsync`` makes it durable
        where it would not be. ``doing`` is what messages call it.

        Raises:
            StorageError: no space, no permission, or the system refuses.
        """

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names and sizes of the files that lie directly in a folder; unfinished ones are left out.

        Raises:
            StorageError: the system refuses.
        """

    def entries(self) -> list[str]:
        """Names of all that lies directly at the address, files and folders; none where nothing is there.

        Raises:
            StorageError: the system refuses.
        """

    def leads_out(self, folder: str) -> bool:
        """Whether a folder below the address is, by links, outside of it: nothing is written or removed there."""

    def tidy(self, folder: str = "") -> None:
        """Remove what writers that are dead left unfinished in a folder, where that can be known."""

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""

    def remove_all(self) -> None:
        """Remove everything below the address, as far as that can be done."""

    def prepare(self, doing: str = "writing", folder: str = "") -> None:
        """Make the place, or a folder in it, be there, and make sure that it can be written.

        Raises:
            StorageError: it cannot.
        """

    def free_bytes(self) -> int | None:
        """Bytes that are free; None where nobody knows."""

    def local(self, name: str) -> Path:
        """A path of this machine with the file's content; only where :attr:`is_local`."""


class Scheme(Protocol):
    """What opens the addresses of a scheme.

    One that has options says so by ``options``, the class of a section whose every key has a default: a scenario has
    them in its section ``storage``. By ``check(address)`` it may refuse an address before anything is asked of it.

    >>> STORES["s3"].options().timeout
    30.0
    """

    def __call__(self, address: str, options: Any, settings: Settings) -> Store:
        """Make the store of an address; ``options`` are the scheme's, None where it has none."""


#: Schemes and what opens their addresses.
STORES: Registry[Scheme] = kinds.STORAGES


def open(address: str | Path, settings: Settings = DEFAULTS) -> Store:
    """Open the store that an address names; nothing is asked of it yet.

    Example:
        >>> open("/data/unet3d").address
        '/data/unet3d'

    Raises:
        StorageError: no storage serves the address's scheme.
    """
    text = str(address)
    try:
        scheme = STORES[scheme_of(text)]
    except ScenarioError as error:
        if scheme_of(text) in STORES:  # it is there and cannot be used
            raise StorageError(f"{text}: {error}") from None
        others = ", ".join(sorted(f"{name}://" for name in STORES))
        raise StorageError(f"{text}: no storage serves {scheme_of(text)}://; give a path, or one of {others}") from None
    options = settings.options.get(scheme_of(text))
    defaults = getattr(scheme, "options", None)
    return scheme(text, defaults() if options is None and defaults is not None else options, settings)


def told(error: StorageError, what: str, option: str) -> StorageError:
    """Say what a store refused, and which option of a command chooses another place."""
    text = str(error)
    if "another path" in text:
        return StorageError(f"{what} {text.replace('another path', f'another {option}')}")
    return StorageError(f"{what} {text}; choose another {option}")
