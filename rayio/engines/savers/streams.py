"""The files that PyTorch's writers and readers see: requests of one size, timed."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter_ns as _now
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.reads import scratch
from rayio.errors import DataError, ScenarioError
from rayio.model.verified import REMEDY
from rayio.storage.real import Filled, random_bytes

T = TypeVar("T")

#: Bytes that a small read of an archive's directory fetches, so that each is no separate request.
WINDOW = 64 << 10


class _Timed(io.RawIOBase):
    """A file whose requests have at most so many bytes, with the time in them and the first error."""

    def __init__(self, file: Any, request_bytes: int) -> None:
        self._file = file
        self._most = request_bytes
        #: Time in requests (ns).
        self.spent = 0
        self.error: Exception | None = None

    def _call(self, function: Callable[[], T]) -> T:
        began = _now()
        try:
            return function()
        except Exception as error:  # the library may raise another one in its place
            self.error = self.error or error
            raise
        finally:
            self.spent += _now() - began


class Written(_Timed):
    """A file that is appended to in requests of one size, the last one smaller.

    Of what is longer than a request only the ends are copied, into memory that the thread uses again: new memory costs
    as much as writing it.
    """

    def __init__(self, file: Any, request_bytes: int) -> None:
        super().__init__(file, request_bytes)
        self._waiting, self._held = scratch(request_bytes), 0
        self._position = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._position

    def write(self, buffer: Any) -> int:
        """Take some bytes and write all whole requests; return their number."""
        view = memoryview(buffer).cast("B")
        self._position += (length := len(view))
        if self._held or length < self._most:
            view = view[self._hold(view) :]
        while len(view) >= self._most:
            self._send(view[: self._most])
            view = view[self._most :]
        if len(view):
            self._hold(view)
        return length

    def _hold(self, view: memoryview) -> int:
        """Keep bytes for the next request, as many as it has room for; return their number."""
        begin, self._held = self._held, min(self._most, self._held + len(view))
        self._waiting[begin : self._held] = view[: self._held - begin]
        added = self._held - begin
        if self._held == self._most:
            self.finish()
        return added

    def finish(self) -> None:
        """Write what is left."""
        held, self._held = self._held, 0
        if held:
            self._send(self._waiting[:held])

    def _send(self, part: memoryview) -> None:
        """Write a request. After an error nothing is written any more."""
        while len(part) and self.error is None:
            if not (length := self._call(partial(self._file.write, part))):
                raise OSError(errno.EIO, "the file takes no bytes")
            part = part[length:]


class Read(_Timed):
    """A file that is read."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, and return the position."""
        position: int = self._call(lambda: self._file.seek(offset, whence))
        return position

    def tell(self) -> int:
        """Return the position."""
        position: int = self._file.tell()
        return position

    def readinto(self, buffer: Any) -> int:
        """Read at most one request; return its bytes."""
        part = memoryview(buffer)[: self._most]
        return self._call(lambda: self._file.readinto(part)) or 0


def saved(file: BinaryIO, request_bytes: int, save: Callable[[BinaryIO], None]) -> Filled:
    """Write a file with ``save``, in requests of ``request_bytes``."""
    stream, began = Written(file, request_bytes), _now()
    try:
        save(cast(BinaryIO, stream))
        stream.finish()
    except BaseException as error:  # torch.distributed.checkpoint's own is no Exception
        raise (stream.error or error) from None
    if stream.error is not None:
        raise stream.error
    return Filled(stream.tell(), _now() - began - stream.spent)


def loaded(path: str, file: BinaryIO, request_bytes: int, what: str, load: Callable[[BinaryIO], T]) -> tuple[T, int]:
    """Read a file with ``load``; return its value and the time without its requests (ns).

    Raises:
        DataError: the library refuses the file; ``what`` names the library's function.
    """
    raw, began = Read(file, request_bytes), _now()
    stream = io.BufferedReader(raw, min(WINDOW, request_bytes))
    try:
        value = load(stream)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # as above
        if raw.error is not None:
            raise raw.error from None
        raise DataError(f"{path}: {what} refuses it: {_reason(error)}; {REMEDY}") from None
    finally:
        stream.detach()
    return value, _now() - began - raw.spent


def _reason(error: BaseException) -> str:
    """Return the first line of an error; of several ranks' errors, of the first rank's."""
    for wrapped, _ in getattr(error, "failures", {}).values():
        error = wrapped
        break
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:200]


class States:
    """The states of a process: one array, as long as the largest that was needed, whose content repeats."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._array: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._period = 0

    def of(self, num_bytes: int, period: int) -> NDArray[np.uint8]:
        """Return a state of ``num_bytes`` that repeats after ``period``; nobody writes into it."""
        with self._lock:
            if len(self._array) < num_bytes or self._period != period:
                self._array, self._period = np.empty(0, np.uint8), period  # the shorter one is freed first
                content = np.frombuffer(random_bytes(max(1, min(period, num_bytes))), np.uint8)
                self._array = np.resize(content, num_bytes)
            return self._array[:num_bytes]

    def clear(self) -> None:
        """Free the memory, once nobody uses what was returned."""
        with self._lock:
            self._array = np.empty(0, np.uint8)


STATES = States()


@lru_cache(maxsize=1)
def torch_version() -> str:
    """Return PyTorch's version, without the name of its build; empty where it is not installed."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return ""


def check_torch(engine: str) -> None:
    """Refuse an engine without PyTorch.

    Raises:
        ScenarioError: it is not installed.
    """
    if not torch_version():
        raise ScenarioError(
            f"checkpoint.engine={engine}: PyTorch is not installed here; run pip install 'rayio[torch]', or use "
            "checkpoint.engine=raw"
        )
