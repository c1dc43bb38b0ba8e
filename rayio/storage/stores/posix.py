"""Real storage in a mounted file system (local, NFS, Lustre): buffered reads, atomic writes, counted requests."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from time import perf_counter_ns
from typing import Any, BinaryIO, cast

from rayio.errors import StorageError
from rayio.files import open_regular, read_regular, replacing
from rayio.machine.mounts import Source
from rayio.machine.pages import evict
from rayio.storage.address import path_of
from rayio.storage.base import FSYNC, OPEN, READ, AtOnce
from rayio.storage.stores.counted import WINDOW_BYTES, CountedFile, Timed, Traffic
from rayio.storage.stores.entries import PARTIAL, link_new, remove_orphan, size_of, unfinished_of
from rayio.storage.stores.filling import filling
from rayio.storage.stores.opening import DEFAULTS, Fill, PageCache, Settings
from rayio.storage.stores.paged import Appended, DirectWriter, mounted_at, open_file, read_direct, watched
from rayio.storage.stores.refusals import refusal, write_refusal

#: How often a new file's folder may be removed before the file is opened, until that is an error.
REMOVALS = 100


class PosixFile(CountedFile):
    """A file of a mounted file system, open for reading; its size is that at opening.

    ``page_cache`` selects access through the page cache, with eviction before and after, or past it.

    Raises:
        DataError: the file is missing.
        StorageError: the operating system refuses to open or to read it.
    """

    __slots__ = ("_descriptor", "_is_bare", "page_cache")

    def __init__(self, path: Path | str, traffic: Traffic, name: str = "", page_cache: PageCache = "use") -> None:
        super().__init__(str(path), traffic, name)
        self.page_cache = page_cache
        #: True if a read is a single call to the kernel, for the speed of small files.
        self._is_bare = page_cache != "direct" and not traffic.is_watched
        self._descriptor = -1
        start = perf_counter_ns()
        try:
            if page_cache == "direct":
                self._descriptor = open_file(path, os.O_RDONLY, direct=True)
                self._size = os.fstat(self._descriptor).st_size
            else:
                self._descriptor, self._size = open_regular(self.shown, os.O_RDONLY)
        except OSError as error:
            raise refusal(error, path, "reading") from error
        self._opened(start)
        if page_cache == "drop":
            traffic.stayed(evict(self._descriptor))

    def fetch(self, position: int, buffer: Any) -> int:
        """Read from ``position`` into ``buffer`` in one request; the position stays."""
        traffic = self.traffic
        if not self._is_bare or traffic.ahead is not None:
            return super().fetch(position, buffer)
        began = perf_counter_ns() if traffic.is_itemised else 0
        try:
            length = os.preadv(self._descriptor, (buffer,), position)
        except OSError as error:
            raise refusal(error, self.shown, "reading") from error
        if began:
            traffic.add(READ, began, self._number, self._thread, position, length)
        traffic.requests += 1
        traffic.nbytes += length
        return length

    def window(self, position: int, size: int) -> tuple[int, bytes]:
        """Return the start and bytes of a window with ``size`` bytes from ``position`` on, fetched if new."""
        if not self._is_bare or self.traffic.ahead is not None:
            return super().window(position, size)
        for start, window in self._windows:
            if start <= position and position + size <= start + len(window):
                return start, window
        start = max(0, min(position, self._size - WINDOW_BYTES))
        traffic = self.traffic
        began = perf_counter_ns() if traffic.is_itemised else 0
        try:
            window = os.pread(self._descriptor, WINDOW_BYTES, start)
        except OSError as error:
            raise refusal(error, self.shown, "reading") from error
        if began:
            traffic.add(READ, began, self._number, self._thread, start, len(window))
        traffic.requests += 1
        traffic.nbytes += len(window)
        self._windows.append((start, window))
        return start, window

    def _fetch(self, position: int, buffer: Any) -> int:
        try:
            if self.page_cache == "direct":
                return read_direct(self._descriptor, position, buffer, self._size)
            if self.traffic.is_watched:
                nbytes = memoryview(buffer).nbytes
                return watched(self.traffic, self._descriptor, position, nbytes, lambda: self._read(position, buffer))
            return self._read(position, buffer)
        except OSError as error:
            raise refusal(error, self.shown, "reading") from error

    def _read(self, position: int, buffer: Any) -> int:
        return os.preadv(self._descriptor, (buffer,), position)

    def close(self) -> None:
        """Close the file."""
        super().close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                if self.page_cache == "drop":
                    self.traffic.stayed(evict(descriptor))
            finally:
                os.close(descriptor)

    def __del__(self) -> None:
        """Close the file if it is still open."""
        if self._descriptor >= 0:
            self.close()


class PosixStore:
    """A :class:`rayio.storage.stores.opening.Store` in a mounted file system. Absolute names stay absolute."""

    is_local = True
    has_fsync = has_page_cache = True

    def __init__(self, address: str | Path, options: object = None, settings: Settings = DEFAULTS) -> None:
        self.root = path_of(address)
        #: Prefix of a file's name, as text: joining paths costs as much as reading a small file.
        self._before = "" if self.root == Path() else f"{self.root}/".replace("//", "/")
        self.page_cache = settings.page_cache
        #: Folders known to be inside.
        self._inside: set[str] = set()

    @property
    def address(self) -> str:
        """The folder's path."""
        return str(self.root)

    @property
    def is_file(self) -> bool:
        """True if the path exists and is no folder."""
        return self.exists and not self.root.is_dir()

    @property
    def exists(self) -> bool:
        """True if the path exists."""
        try:
            return self.root.exists()
        except OSError as error:
            raise refusal(error, self.root, "reading") from error

    @property
    def is_direct(self) -> bool:
        """True if reads and writes bypass the page cache."""
        return self.page_cache == "direct"

    @cached_property
    def source(self) -> Source:
        """The source of bytes read, by the type of the file system."""
        return mounted_at(self.root).source

    def full(self, name: str) -> str:
        """Return a file's path as text."""
        return str(self.root / name)

    def local(self, name: str) -> Path:
        """Return a file's path."""
        return self.root / name

    def open(self, name: str, traffic: Traffic) -> BinaryIO:
        """Open a file for reading."""
        path = name if name.startswith("/") else self._before + name
        return cast(BinaryIO, PosixFile(path, traffic, name, self.page_cache))

    def filling(self) -> AtOnce | None:
        """Return a function that opens, reads and closes a file in one call; None if reads are more than that."""
        if self.page_cache != "use" or type(self).open is not PosixStore.open:
            return None
        return filling(self._before)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file."""
        path = self.root / name
        try:
            return read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refusal(error, path, "reading") from error

    def write(
        self, name: str, fill: Fill, *, traffic: Traffic | None = None, fsync: bool = False, doing: str = "writing"
    ) -> None:
        """Write under another name, then rename; ``fsync`` covers the file and then its folder.

        With ``traffic`` the store's page-cache setting applies; eviction forces the file to the device first, whatever
        ``fsync`` is. Other files are evicted when they are forced to the device. Subfolders are created; the store's
        folder is created only by :meth:`prepare`, so that a vanished one is reported.
        """
        path = self.root / name
        if self.leads_out(name.rpartition("/")[0]):
            raise StorageError(
                f"{path.parent}: is a link that leads out of {self.root}, where nothing is written; remove the link"
            )
        unfinished = unfinished_of(path)
        timed = Timed(traffic or Traffic(), name)
        is_dropped = traffic is not None and self.page_cache == "drop"
        try:
            with replacing(path, unfinished), ExitStack() as stack:
                if traffic is None:
                    file: BinaryIO = stack.enter_context(self._new(name, lambda: unfinished.open("xb", 1 << 20)))
                    fill(file)
                    file.flush()
                else:
                    file = stack.enter_context(self._stream(name, unfinished, fill, timed))
                if fsync or is_dropped:
                    timed.call(FSYNC, lambda: os.fsync(file.fileno()))
                if is_dropped or (fsync and self.page_cache != "use"):
                    timed.traffic.stayed(evict(file.fileno()))
            if fsync or is_dropped:
                timed.call(FSYNC, lambda: sync_folder(path.parent))
        except OSError as error:
            raise write_refusal(error, path, doing) from error

    def create(self, name: str, content: bytes) -> bool:
        """Write under another name, then link; where there are no hard links, write a file that is new."""
        path = self.root / name
        unfinished = unfinished_of(path)
        try:
            with self._new(name, lambda: unfinished.open("xb")) as file:
                file.write(content)
            return link_new(unfinished, path)
        except OSError as error:
            raise write_refusal(error, path, "writing") from error
        finally:
            with suppress(OSError):
                unfinished.unlink()

    def _new(self, name: str, opened: Callable[[], BinaryIO]) -> BinaryIO:
        """Open a new file in its folder, which is created, again if another writer found it empty and removed it."""
        folder = (self.root / name).parent
        for attempt in range(REMOVALS + 1):
            try:
                if not folder.is_dir() and (self.root.is_dir() or Path(name).is_absolute()):
                    folder.mkdir(parents=True, exist_ok=True)
                return opened()
            except (FileNotFoundError, FileExistsError):  # the latter if it was there, and then was not
                if attempt == REMOVALS or not self.root.is_dir():
                    raise
        raise AssertionError

    def _stream(self, name: str, path: Path, fill: Fill, timed: Timed) -> BinaryIO:
        """Return a new file, still open, to which ``fill`` has appended; each call is one request."""
        is_direct = self.is_direct
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL

        def opened() -> BinaryIO:
            return cast(BinaryIO, os.fdopen(open_file(path, flags, direct=is_direct), "wb", buffering=0))

        file = self._new(name, lambda: timed.call(OPEN, opened))
        timed.traffic.opens += 1
        try:
            raw = DirectWriter(file.fileno()) if is_direct else file
            fill(cast(BinaryIO, Appended(raw, timed)))
            if isinstance(raw, DirectWriter):
                raw.finish()
        except BaseException:
            file.close()
            raise
        return file

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return names and sizes of the finished files in a folder."""
        place = self.root / folder
        sizes: dict[str, int] = {}
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if not entry.name.endswith(PARTIAL) and (size := size_of(entry)) is not None:
                        sizes[entry.name] = size
        except FileNotFoundError:
            pass
        except OSError as error:
            raise refusal(error, error.filename or place, "reading") from error
        return sizes

    def entries(self) -> list[str]:
        """Return the names of all entries of the folder."""
        try:
            return [entry.name for entry in self.root.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise refusal(error, self.root, "reading") from error

    def leads_out(self, folder: str) -> bool:
        """Return True if links or ``..`` lead a folder outside; an absolute one is accepted."""
        if folder in ("", ".") or folder.startswith("/"):
            return False
        if folder not in self._inside:
            home, place = os.path.realpath(self.root), os.path.realpath(self.root / folder)
            if os.path.commonpath([home, place]) != home:
                return True
            self._inside.add(folder)
        return False

    def tidy(self, folder: str = "") -> None:
        """Remove unfinished files of ended writers on this host; writers on other hosts may still be running."""
        if self.leads_out(folder):
            return
        with suppress(OSError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                if entry.name.endswith(PARTIAL):
                    remove_orphan(Path(entry.path))

    def size(self, name: str) -> int | None:
        """Return the bytes of a file."""
        path = self.root / name
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refusal(error, path, "reading") from error

    def remove(self, name: str) -> None:
        """Remove a file."""
        path = self.root / name
        if self.leads_out(name.rpartition("/")[0]):
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise refusal(error, path, "removing it") from error

    def remove_all(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def prepare(self, doing: str = "writing", folder: str = "") -> None:
        """Create the folder; refuse one that is not writable."""
        try:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise StorageError(f"{self.root}: cannot create a folder there; choose another path") from error
            raise refusal(error, self.root, doing) from error
        if not os.access(self.root, os.W_OK):
            if os.statvfs(self.root).f_flag & os.ST_RDONLY:
                raise refusal(OSError(errno.EROFS, os.strerror(errno.EROFS)), self.root, doing)
            raise StorageError(f"{self.root}: no permission to write there; choose another path")

    def free_bytes(self) -> int | None:
        """Return the free bytes at the folder, even if it does not exist yet."""
        here = self.root
        while not here.exists() and here != here.parent:
            here = here.parent
        try:
            usage = shutil.disk_usage(here)
        except OSError:
            return None
        return usage.free if usage.total else None  # file systems without blocks report 0 of 0


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
