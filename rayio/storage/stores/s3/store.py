"""Buckets as stores: ranged gets, puts in parts; every request is counted and every failed attempt recorded."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import SpooledTemporaryFile
from time import perf_counter_ns
from typing import Any, BinaryIO, Literal, TypeVar, cast

from rayio.errors import RayioError, StorageError
from rayio.machine.mounts import Source
from rayio.storage.base import WRITE
from rayio.storage.stores.counted import WINDOW_BYTES, CountedFile, Traffic
from rayio.storage.stores.opening import PART_BYTES, PARTS, Fill
from rayio.storage.stores.retrying import Budget, in_tries
from rayio.storage.stores.s3 import answers
from rayio.storage.stores.s3.bounds import WATCH
from rayio.storage.stores.s3.bucket import Options, Place
from rayio.storage.stores.s3.direct import Direct
from rayio.storage.stores.s3.getting import got, got_in_pieces
from rayio.storage.stores.s3.putting import Again, Appended, put_new, put_redirected

T = TypeVar("T")

#: Bytes of a body copied at a time.
PIECE_BYTES = 4 << 20
#: Requests of up to this size have one client.
SMALL_BYTES = 4 << 20
#: Size for which the time of reading an object of unknown size is limited.
WHOLE_BYTES = 256 << 20
#: Limits of a listing (about a million entries).
LISTING_BYTES, LISTING_SECONDS = 256 << 20, 600.0
#: Validity of a presigned address: as far as S3 lets clocks differ.
SIGNED = timedelta(minutes=15)


class S3File(CountedFile):
    """An object, read by ranged gets. Opening makes no request; the first answer has the size."""

    has_handle = False

    def __init__(self, store: S3Store, name: str, traffic: Traffic) -> None:
        super().__init__(store.full(name), traffic, name)
        self._store = store
        self._opened(perf_counter_ns())

    @property
    def size(self) -> int:
        """Bytes of the object; without an earlier answer this makes the planned request, or reads the first window."""
        ahead = self.traffic.ahead
        if self._size < 0 and (ahead is None or not ahead.look(self.name) or self._size < 0):
            position, self._position = self._position, 0
            buffer = bytearray(WINDOW_BYTES)
            self._windows.append((0, bytes(buffer[: self.readinto(buffer)])))
            self._position = position
        return self._size

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer`` in one request; beyond the object's end there is no request."""
        if not len(buffer) or 0 <= self._size <= self._position:
            return 0
        return super().readinto(buffer)

    def _fetch(self, position: int, buffer: Any) -> int:
        self._size, nbytes = self._store.get(self.name, position, memoryview(buffer).cast("B"), self.traffic)
        return nbytes


class S3Store:
    """A :class:`rayio.storage.stores.opening.Store` below a prefix of a bucket. Folders are prefixes of names."""

    is_local = False
    is_file = False
    is_direct = True
    source: Source = "network"

    def __init__(self, address: str, options: Options, seed: int) -> None:
        self.place = Place.of(address, options)
        #: The service's port: taking an address apart costs as much as all else that Python does for a request.
        self._port = self.place.port
        self.address = "/".join(part for part in (f"s3://{self.place.bucket}", self.place.prefix) if part)
        self.budget = Budget(options.max_attempts, seed)
        #: Clients by the size of their largest requests, as a power of 4 MiB.
        self._clients: dict[int, Any] = {}
        self._lock = threading.Lock()
        #: Gets that need no client.
        self.direct = Direct(self.place, partial(self._signed, "GET"))
        #: False until the first answer: a refused connection is then a wrong address, not an outage.
        self._has_answered = False
        #: True once a put was redirected.
        self._is_redirected = False

    def client(self, nbytes: int = 0) -> Any:
        """Return a client for requests and answers of up to ``nbytes``, created at first use."""
        if WATCH.is_forked:
            raise StorageError(
                f"{self.address}: this process was forked from one that has used s3:// already, and the client "
                "does not survive that; start workers with spawn or forkserver (loader.multiprocessing_context)"
            )
        power = 0 if nbytes <= SMALL_BYTES else math.ceil(math.log(nbytes / SMALL_BYTES, 4))
        if (known := self._clients.get(power)) is not None:
            return known
        with self._lock:
            if power not in self._clients:
                self._clients[power] = self.place.client(SMALL_BYTES * 4**power)
            return self._clients[power]

    def full(self, name: str) -> str:
        """Return an object's address."""
        return f"{self.address}/{name}"

    def local(self, name: str) -> Path:
        """Refuse: objects have no path."""
        raise StorageError(f"{self.full(name)} is no file of this machine")

    def call(
        self,
        request: Callable[[], T],
        name: str,
        doing: str,
        traffic: Traffic | None = None,
        nbytes: int = 0,
        seconds: float = math.inf,
    ) -> T:
        """Make a request, and repeat it while that may help and the budget lasts; failed attempts are recorded.

        ``nbytes`` is the size of the expected answer, ``seconds`` a limit of an attempt in addition to the client's.

        Raises:
            DataError: the object is missing.
            StorageError: the store refuses, or the budget is used up.
        """
        began = start = perf_counter_ns()
        for attempt in count(1):
            try:
                answer = WATCH.call(request, self._port, nbytes, seconds)
            except Exception as error:
                if isinstance(error, RayioError | TypeError | NameError | LookupError | ArithmeticError):
                    raise  # not about the request
                problem = answers.problem_of(error)
                is_hopeless = problem.code in answers.WRONG_ADDRESS and not self._has_answered
                self._has_answered = self._has_answered or problem.status > 0
                pause = self.budget.pause(attempt, name)
                if not problem.is_passing or is_hopeless or pause is None:
                    tries = in_tries(attempt, (perf_counter_ns() - began) / 1e9)
                    raise answers.error_of(problem, self.place, self.full(name).rstrip("/"), doing, tries) from None
                ending = traffic.ending if traffic is not None else threading.Event()
                if ending.wait(pause):
                    raise StorageError(f"{self.full(name)}: {doing} was given up, the run is ending") from None
                if traffic is not None:
                    traffic.add_retry(start, name, problem.what)
                start = perf_counter_ns()
            else:
                self._has_answered = True
                return answer
        raise AssertionError

    def get(self, name: str, position: int, buffer: memoryview, traffic: Traffic) -> tuple[int, int]:
        """Fill ``buffer`` from ``position`` on; return the object's size, and the bytes, fewer at its end."""
        request = partial(got, self.direct, self.client(len(buffer)), self.place.key(name), position, buffer)
        return self.call(request, name, "reading", traffic, len(buffer))

    def pour(
        self, name: str, position: int, nbytes: int, traffic: Traffic, take: Callable[[int, Any], None]
    ) -> tuple[int, int]:
        """Pass ``nbytes`` from ``position`` on to ``take``, in pieces with their offsets, as they arrive.

        A piece is valid until ``take`` returns. An attempt that is repeated passes them again.

        Returns:
            The object's size, and the bytes passed: fewer at its end.
        """
        request = partial(got_in_pieces, self.direct, self.client(nbytes), self.place.key(name), position, nbytes, take)
        return self.call(request, name, "reading", traffic, nbytes)

    def open(self, name: str, traffic: Traffic) -> BinaryIO:
        """Open an object for reading."""
        return cast(BinaryIO, S3File(self, name, traffic))

    def read(self, name: str) -> bytes | None:
        """Return the content of an object."""
        import obstore

        client, key = self.client(WHOLE_BYTES), self.place.key(name)

        def request() -> bytes | None:
            try:
                answer = obstore.get(client, key)
                return bytes(WATCH.call(answer.bytes, self._port, int(answer.meta["size"])))
            except FileNotFoundError as error:
                if answers.problem_of(error).code == "NoSuchBucket":
                    raise
                return None

        return self.call(request, name, "reading")

    def write(
        self, name: str, fill: Fill, *, traffic: Traffic | None = None, fsync: bool = False, doing: str = "writing"
    ) -> None:
        """Put an object, in parts if it is large; ``fsync`` adds nothing to a successful put.

        A failed attempt starts from the beginning. With ``traffic``, an object in parts counts as its parts and the two
        requests around them, in one row: the client does not report their times.
        """
        del fsync
        if traffic is None:
            with SpooledTemporaryFile(max_size=PART_BYTES) as content:
                fill(cast(BinaryIO, content))
                self._put(name, cast(BinaryIO, content), doing)
            return
        start = perf_counter_ns()
        nbytes = self._append(name, fill, doing, traffic)
        traffic.opens += 1
        traffic.nbytes += nbytes
        traffic.requests += 1 if nbytes <= PART_BYTES else 2 - (-nbytes // PART_BYTES)
        if traffic.is_itemised:
            traffic.add(WRITE, start, traffic.file(name), threading.get_native_id(), 0, nbytes)

    def create(self, name: str, content: bytes) -> bool:
        """Put a small object if there is none of its name; False if there is another one.

        Stores without conditional puts, or that redirect, take it in any case.
        """
        is_ours = self.call(partial(put_new, self.client(), self.place.key(name), content), name, "writing")
        if is_ours is None:
            self.write(name, lambda file: file.write(content))
        return is_ours is not False

    def _put(self, name: str, content: BinaryIO, doing: str, traffic: Traffic | None = None) -> int:
        import obstore

        client, key = self.client(PART_BYTES), self.place.key(name)
        nbytes = content.seek(0, os.SEEK_END)

        def request() -> None:
            content.seek(0)
            if self._is_redirected:
                put_redirected(self._signed("PUT", key), content, nbytes, self.place.timeout)
            elif nbytes <= PART_BYTES:
                obstore.put(client, key, content.read(), use_multipart=False)
            else:
                whole: Any = Again(content.fileno())
                obstore.put(client, key, whole, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS)

        def followed() -> None:
            try:
                request()
            except Exception as error:
                if self._is_redirected or not answers.problem_of(error).is_redirect:
                    raise
                self._is_redirected = True
                request()

        self.call(followed, name, doing, traffic)
        return nbytes

    def _append(self, name: str, fill: Fill, doing: str, traffic: Traffic) -> int:
        client, key = self.client(PART_BYTES), self.place.key(name)

        def request() -> int | Exception:
            content = Appended(client, key)
            try:
                fill(cast(BinaryIO, content))
                return content.finish()
            except Exception as error:
                if content.is_asking:
                    raise
                return error  # the writer's error, not the store's
            finally:
                content.abandon()

        def spooled() -> int:
            with SpooledTemporaryFile(max_size=PART_BYTES) as content:
                fill(cast(BinaryIO, content))
                return self._put(name, cast(BinaryIO, content), doing, traffic)

        def followed() -> int | Exception:
            if not self._is_redirected:
                try:
                    return request()
                except Exception as error:
                    if not answers.problem_of(error).is_redirect:
                        raise
                self._is_redirected = True
            return spooled()

        done = self.call(followed, name, doing, traffic)
        if isinstance(done, Exception):
            raise done
        return done

    def _signed(self, method: Literal["GET", "PUT"], key: str) -> str:
        """Return a presigned address for a request; it is as good as a credential, and never shown."""
        import obstore

        return self.place.url(key) if self.place.is_anonymous else str(obstore.sign(self.client(), method, key, SIGNED))

    def _listed(self, folder: str) -> Any:
        import obstore

        client, prefix = self.client(), self.place.key(folder)
        return self.call(
            lambda: obstore.list_with_delimiter(client, prefix or None), folder, "listing", None, LISTING_BYTES,
            LISTING_SECONDS,
        )  # fmt: skip

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return names and sizes of the objects directly in a folder."""
        return {entry["path"].rpartition("/")[2]: int(entry["size"]) for entry in self._listed(folder)["objects"]}

    def entries(self) -> list[str]:
        """Return the names of all entries directly below the address."""
        listed = self._listed("")
        paths = [*listed["common_prefixes"], *(entry["path"] for entry in listed["objects"])]
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    @property
    def exists(self) -> bool:
        """True if an object is below the address."""
        import obstore

        client, prefix = self.client(), self.place.key("")
        return self.call(lambda: any(obstore.list(client, prefix or None, chunk_size=1)), "", "listing")

    def leads_out(self, folder: str) -> bool:
        """Return False: there are no links."""
        return False

    def tidy(self, folder: str = "") -> None:
        """Do nothing: an incomplete object has no name."""

    def size(self, name: str) -> int | None:
        """Return the bytes of an object."""
        import obstore

        client, key = self.client(), self.place.key(name)

        def request() -> int | None:
            try:
                return int(obstore.head(client, key)["size"])
            except FileNotFoundError:
                return None

        return self.call(request, name, "looking for it")

    def remove(self, name: str) -> None:
        """Remove an object."""
        self._remove([self.place.key(name)], name)

    def _remove(self, keys: list[str], name: str) -> None:
        import obstore

        client = self.client()
        for first in range(0, len(keys), 1000):
            some = keys[first : first + 1000]
            self.call(partial(obstore.delete, client, some), name, "removing it")

    def remove_all(self) -> None:
        """Remove every object below the address; without a prefix nothing is removed."""
        import obstore

        if not self.place.prefix:
            return
        client, prefix = self.client(), f"{self.place.prefix}/"
        paths = self.call(
            lambda: [key["path"] for page in obstore.list(client, prefix) for key in page], "", "listing", None,
            LISTING_BYTES, LISTING_SECONDS,
        )  # fmt: skip
        self._remove([path for path in paths if path.startswith(prefix)], "")

    def prepare(self, doing: str = "writing", folder: str = "") -> None:
        """Check that the bucket exists and answers."""
        if not self._has_answered:
            self._listed(folder)

    def free_bytes(self) -> int | None:
        """Nobody knows."""
        return None
