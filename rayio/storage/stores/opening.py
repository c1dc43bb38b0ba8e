"""Stores: trees of files by name; the scheme of an address selects the implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from rayio import kinds
from rayio.errors import ScenarioError, StorageError
from rayio.registry import Registry
from rayio.storage.address import not_utf8, scheme_of, shown

if TYPE_CHECKING:
    from rayio.machine.mounts import Source
    from rayio.storage.stores.counted import Traffic

#: The values of ``storage.page_cache``.
PageCache = Literal["use", "drop", "direct"]

#: The ``gap`` of object stores: the default of object_store's ``get_ranges``.
GAP_BYTES = 1 << 20

#: Bytes of a part of an upload to an object store, and parts in flight; smaller objects are put in one request.
PART_BYTES, PARTS = 8 << 20, 4

#: Writes the content of a file. It may be called again after a failed attempt.
Fill = Callable[[BinaryIO], object]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of stores. They have no credentials: a store takes these from its environment."""

    #: Options by scheme; other schemes use their defaults.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Seed of the jitter between attempts.
    seed: int = 0
    #: Access to files of mounted file systems: through the page cache, with eviction before and after, or past it.
    page_cache: PageCache = "use"


DEFAULTS = Settings()


class Store(Protocol):
    """Files below one address, by names with forward slashes; each appears whole or not at all.

    Calls block. Several threads may use a store.

    >>> store = open("data/not-yet")
    >>> store.exists, store.is_local
    (False, True)
    """

    @property
    def address(self) -> str:
        """The address as a user writes it, without credentials."""

    @property
    def is_local(self) -> bool:
        """True if files are in a mounted file system, so that :meth:`local` costs nothing."""

    @property
    def is_file(self) -> bool:
        """True if the address is a file, not a folder."""

    @property
    def exists(self) -> bool:
        """True if the address exists.

        Raises:
            StorageError: the system refuses.
        """

    @property
    def source(self) -> Source:
        """The source of bytes read, and so how they are counted."""

    @property
    def is_direct(self) -> bool:
        """True if reads bypass this machine's page cache."""

    def full(self, name: str) -> str:
        """Return a file's address, for messages."""

    def open(self, name: str, traffic: Traffic) -> BinaryIO:
        """Open a file for reading, with random access; requests are counted in ``traffic``.

        Raises:
            DataError: there is no such file.
            StorageError: the system refuses.
        """

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file; None if it is missing.

        Raises:
            StorageError: the system refuses.
        """

    def write(
        self, name: str, fill: Fill, *, traffic: Traffic | None = None, fsync: bool = False, doing: str = "writing"
    ) -> None:
        """Store the output of ``fill`` as one file, atomically, in place of a file of that name.

        With ``traffic`` it is streamed: ``fill`` only appends, each of its calls is a request of that size if the
        system supports any size, and all are counted. Without, ``fill`` may seek. ``fsync`` makes the file durable.
        ``doing`` names the activity in messages. :meth:`prepare` comes first only if :attr:`is_local`.

        Raises:
            StorageError: no space, no permission, or the system refuses.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Store a small file if there is none of its name; of several writers of different contents one gets True.

        Object stores without conditional puts give it to each. :meth:`prepare` comes first as for :meth:`write`.

        Raises:
            StorageError: no space, no permission, or the system refuses.
        """

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return names and sizes of the files directly in a folder, without unfinished ones.

        Raises:
            StorageError: the system refuses.
        """

    def entries(self) -> list[str]:
        """Return names of all files and folders directly at the address; empty if it does not exist.

        Raises:
            StorageError: the system refuses.
        """

    def leads_out(self, folder: str) -> bool:
        """Return True if links lead a folder below the address outside; nothing is written or removed there."""

    def tidy(self, folder: str = "") -> None:
        """Remove unfinished files of dead writers in a folder, if they can be recognised."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if it is missing."""

    def remove(self, name: str) -> None:
        """Remove a file; no-op if it is missing."""

    def remove_all(self) -> None:
        """Remove everything below the address, as far as possible."""

    def prepare(self, doing: str = "writing", folder: str = "") -> None:
        """Create the folder, or a folder in it, and check that it is writable.

        Raises:
            StorageError: it is not.
        """

    def free_bytes(self) -> int | None:
        """Return the free bytes; None if unknown."""

    def local(self, name: str) -> Path:
        """Return a path of this machine with the file's content; only if :attr:`is_local`."""


class Scheme(Protocol):
    """A factory of the stores of a scheme.

    A scheme with options names their class in ``options``: a section whose every key has a default, in the scenario's
    section ``storage``. Its ``check(address)`` may refuse an address before any request.

    Three attributes describe the system: ``has_fsync``, if files are durable only after fsync; ``has_page_cache``, if
    reads pass this machine's page cache; and ``gap``, if one request for two ranges of a file at most that many bytes
    apart is better than two. By default they are False and 0.

    >>> STORES["s3"].options().timeout
    30.0
    """

    def __call__(self, address: str, options: Any, settings: Settings) -> Store:
        """Return the store of an address; ``options`` are the scheme's, or None."""


#: Factories of stores by scheme.
STORES: Registry[Scheme] = kinds.STORAGES


def has_fsync(address: str) -> bool:
    """Return True if files at an address are durable only after fsync."""
    return bool(getattr(STORES[scheme_of(address)], "has_fsync", False))


def has_page_cache(address: str) -> bool:
    """Return True if reads from an address pass this machine's page cache."""
    return bool(getattr(STORES[scheme_of(address)], "has_page_cache", False))


def gap_at(address: str) -> int:
    """Return how close ranges of a file at an address are one request; 0 for never, and for modelled datasets."""
    scheme = scheme_of(address)
    return int(getattr(STORES[scheme], "gap", 0)) if scheme in STORES else 0


def upload_parts_at(address: str) -> int:
    """Return how many parts of a large upload to an address are in flight; 1 where files are written in order."""
    scheme = scheme_of(address)
    return int(getattr(STORES[scheme], "upload_parts", 1)) if scheme in STORES else 1


def open(address: str | Path, settings: Settings = DEFAULTS) -> Store:
    """Return the store of an address, without a request.

    Example:
        >>> open("/data/unet3d").address
        '/data/unet3d'

    Raises:
        StorageError: no storage serves the address's scheme, or a path is not UTF-8.
    """
    text = str(address)
    if (name := not_utf8(shown(text))) is not None:
        raise StorageError(f"{name}: the path is not UTF-8, so no record can name it; choose another path")
    try:
        scheme = STORES[scheme_of(text)]
    except ScenarioError as error:
        if scheme_of(text) in STORES:  # registered but not usable
            raise StorageError(f"{text}: {error}") from None
        others = ", ".join(sorted(f"{name}://" for name in STORES))
        raise StorageError(f"{text}: no storage serves {scheme_of(text)}://; give a path, or one of {others}") from None
    options = settings.options.get(scheme_of(text))
    kind = getattr(scheme, "options", None)
    return scheme(text, _shared(kind, settings) if options is None and kind is not None else options, settings)


def _shared(kind: Any, settings: Settings) -> Any:
    """Return the options of a scheme that no key is given for alone: with those that it shares with other schemes."""
    given = {
        key: getattr(options, key)
        for options in settings.options.values()
        for key in options.model_fields_set
        if key in kind.model_fields
    }
    return kind(**given)


def with_option(error: StorageError, what: str, option: str) -> StorageError:
    """Return a store's refusal with the command's option that chooses another place."""
    text = str(error)
    if "another path" in text:
        return StorageError(f"{what} {text.replace('another path', f'another {option}')}")
    return StorageError(f"{what} {text}; choose another {option}")
