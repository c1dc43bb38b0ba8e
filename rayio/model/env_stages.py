"""The part of a role's environment that reads and writes files of stages."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rayio.model.env_checkpoints import CheckpointEnv, Shard
from rayio.model.verified import verified, with_remedy
from rayio.place import Where
from rayio.storage.base import Opener, Requests, Served, Storage, from_front
from rayio.storage.uploads import sizes_of_writes

if TYPE_CHECKING:
    from rayio.model.verified import Verified

T = TypeVar("T")

#: What to do about a file of a stage that is damaged.
REMEDY = "remove the folder: a run generates its files again"


class StageEnv(CheckpointEnv):
    """The files of stages in an environment (``rayio.model.env.Env``)."""

    async def read_file(
        self, file: Shard, storage: Storage, address: tuple[int, int, int], at: Where
    ) -> Served[Verified | None]:
        """Read a file of a stage; ``address`` is that of its latencies. Real bytes are compared with what was written.

        Raises:
            DataError: the file is missing, too short, or has another byte.
        """
        sizes = sizes_of_writes(file.num_bytes, file.request_bytes)
        places = partial(from_front, file.path, sizes)
        requests = Requests(address, 1, sizes, places, file.num_bytes, is_ahead=False)
        loading = verified(file.path, file.num_bytes, file.request_bytes, file.period, remedy=REMEDY)
        start = self.kernel.now()
        served = await self._moved("stage_read", file, storage.read(requests, with_remedy(loading, REMEDY)), at)
        end = self.kernel.now()
        read = max(start, end - (served.value.compared if served.value is not None else 0))
        self.span("stage_read", start, read, at, nbytes=served.nbytes, requests=served.requests)
        if end > read:
            self.span("verify", read, end, at, nbytes=file.num_bytes)
        self.record_requests(served, at)
        return served

    async def write_file(self, file: Shard, at: Where) -> Served[None]:
        """Write a file of a stage; with ``fsync`` it is durable on return."""
        assert self.storage is not None
        start = self.kernel.now()
        writing = self.storage.write(file.path, file.num_bytes, file.request_bytes, fsync=file.fsync)
        served = await self._moved("stage_write", file, writing, at)
        self.span("stage_write", start, self.kernel.now(), at, nbytes=served.nbytes, requests=served.requests)
        self.record_requests(served, at)
        return served

    async def open_files(
        self, files: Sequence[Shard], storage: Storage, number: int, address: tuple[int, int, int], at: Where
    ) -> int:
        """Open files of a stage ``number`` times, in turn, without a read; return how often."""

        def load(opener: Opener) -> None:
            for place in range(number):
                opener(files[place % len(files)].path).close()

        start = self.kernel.now()
        requests = Requests(address, number, np.zeros(0, np.int64), known_bytes=0)
        served = await self._moved("stage_open", files[0], storage.read(requests, with_remedy(load, REMEDY)), at)
        self.span("stage_open", start, self.kernel.now(), at, requests=served.opens)
        self.record_requests(served, at)
        return served.opens

    async def _moved(self, name: str, file: Shard, call: Awaitable[Served[T]], at: Where) -> Served[T]:
        """Wait for a call to storage, as this role's activity."""
        start = self.kernel.now()
        before: Any = self.doing
        self.doing, self.file = (name, start, at, None), file.path
        try:
            served = await call
        except Exception as error:
            self.span(name, start, self.kernel.now(), at, status="error")
            self._record_failed(error, at)
            raise
        self.doing = before
        return served
