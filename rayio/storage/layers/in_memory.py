"""``loader.file_access: in_memory`` with ``held_by``: one worker reads the files, and others of its rank or node wait.

The first worker that needs the files reads them from storage, and hands their bytes on. A worker that was killed asks
again: it gets them without a request, or reads them if it was the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from rayio.schema.fields import Section
from rayio.storage.base import Opener, Requests, Served, Storage
from rayio.storage.layers.layer import Arrival, Kernel, Layer, Mount
from rayio.storage.stores.counted import CountedFile, Traffic

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

T = TypeVar("T")

#: The bytes of files by path; None in a model.
Contents = dict[str, NDArray[np.uint8]] | None
#: What is read together: a folder, and the rank that has it in memory, or -1 for a node.
Key = tuple[str, int]
#: A batch: rank, epoch and step.
Address = tuple[int, int, int]


@dataclass(frozen=True)
class InMemory(Layer):
    """Files that the workers of a rank or of a node have in memory together."""

    held_by: str
    modelled: bool

    name: ClassVar[str] = "in_memory"
    example: ClassVar[Any] = {
        "loader": {"file_access": "in_memory", "held_by": "node"},
        "cluster": {"ranks_per_node": 2},
    }
    sharing: ClassVar[Literal["", "node", "all"]] = "node"

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> InMemory | None:
        """Return the layer of a scenario whose workers share files in memory."""
        loader = scenario.loader
        held_by = getattr(loader.file_access_options, "held_by", "worker")
        return None if loader.file_access != cls.name or held_by == "worker" else cls(held_by, modelled)

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Let one worker read a dataset for the others."""
        return SharedFiles(storage, self, mount) if mount.is_dataset else storage

    def state(self, kernel: Kernel) -> Shelf:
        """Return the files that a node has in memory."""
        return Shelf(kernel)


class Shelf:
    """The files of a node in memory, and who reads those that are not there yet."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._contents: dict[Key, Contents] = {}
        self._readers: dict[Key, Address] = {}
        self._waiting: dict[Key, Arrival] = {}

    async def take(self, key: Key, by: Address) -> tuple[bool, Contents]:
        """Return True and the bytes as soon as they are there; False if the caller is the one to read them."""
        while key not in self._contents:
            if self._readers.setdefault(key, by) == by:
                return False, None
            if key not in self._waiting:
                self._waiting[key] = self.kernel.future(f"the files of {key[0]}, which another worker reads")
            await self._waiting[key]
        return True, self._contents[key]

    async def put(self, key: Key, contents: Contents) -> None:
        """Keep the bytes; every worker that waits for them continues."""
        self._contents[key] = contents
        if (waiting := self._waiting.pop(key, None)) is not None:
            waiting.set_result(None)

    def clear(self) -> None:
        """Forget all files: the node has gone."""
        self._contents.clear()
        self._readers.clear()


class SharedFiles:
    """Storage whose files are in memory once for several workers; of real storage each worker has one."""

    def __init__(self, storage: Storage, layer: InMemory, mount: Mount) -> None:
        self.storage = storage
        self.layer = layer
        self.folder = mount.path
        self.shelf: Shelf = mount.shared()
        #: The bytes of real files, once they are there.
        self.contents: Contents = None

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read and hand on, or wait for the bytes: in a model with the only batch of a worker that has requests."""
        key = (self.folder, requests.address[0] if self.layer.held_by == "rank" else -1)
        if self.layer.modelled:
            if not len(requests.nbytes):
                return await self.storage.read(requests, load)
            if (await self.shelf.take(key, requests.address))[0]:
                nothing = requests._replace(num_opens=0, nbytes=np.empty(0, np.int64), places=None, known_bytes=0)
                return await self.storage.read(nothing, load)
            served = await self.storage.read(requests, load)
            await self.shelf.put(key, None)
            return served
        if self.contents is None:
            _, self.contents = await self.shelf.take(key, requests.address)
        if (contents := self.contents) is not None:
            nothing = Requests(requests.address, 0, np.empty(0, np.int64), num_samples=requests.num_samples)
            return await self.storage.read(nothing, lambda _: load(_shared(contents)))
        shared: dict[str, NDArray[np.uint8]] = {}
        served = await self.storage.read(requests, lambda opener: load(_sharing(opener, shared)))
        self.contents = shared
        await self.shelf.put(key, shared)
        return served

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write without the others."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)


class _Sharing(CountedFile):
    """A file whose reader hands its bytes on."""

    __slots__ = ("contents", "file", "path")

    def __init__(self, file: CountedFile, path: str, contents: dict[str, NDArray[np.uint8]]) -> None:
        self.file, self.path, self.contents = file, path, contents
        super().__init__(file.shown, file.traffic, path)

    def share(self, content: memoryview) -> None:
        """Hand the bytes of the whole file on."""
        self.contents[self.path] = np.frombuffer(content, np.uint8)

    @property
    def size(self) -> int:
        return self.file.size

    def fetch(self, position: int, buffer: Any) -> int:
        return self.file.fetch(position, buffer)

    def close(self) -> None:
        self.file.close()
        super().close()


class _Shared(CountedFile):
    """A file that is in memory as a whole."""

    __slots__ = ("content",)

    def __init__(self, path: str, content: NDArray[np.uint8]) -> None:
        super().__init__(path, Traffic(), path)
        #: The bytes of the file.
        self.content = memoryview(cast(Any, content))

    @property
    def size(self) -> int:
        return len(self.content)


def _sharing(opener: Opener, contents: dict[str, NDArray[np.uint8]]) -> Opener:
    return lambda path, *kept: cast(BinaryIO, _Sharing(cast(CountedFile, opener(path, *kept)), path, contents))


def _shared(contents: dict[str, NDArray[np.uint8]]) -> Opener:
    return lambda path, *_: cast(BinaryIO, _Shared(path, contents[path]))
