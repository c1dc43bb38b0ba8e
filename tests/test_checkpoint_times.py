"""Times of checkpoint files: a file takes what its thread takes, not what the writer waits for the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayio.model.env import Env
from rayio.model.env_checkpoints import Shard
from rayio.model.kernel import WallKernel
from rayio.model.savers import Raw
from rayio.model.stamp import Stamp
from rayio.place import Where
from rayio.storage import open as open_store
from rayio.storage import real
from rayio.storage.real import RealStorage
from rayio.trace.recorder import Recorder

AT = Where(0, 0, 0)


class Clock(WallKernel):
    """A clock that stands still but while a thread starts (10 ns), moves bytes (100) and has its answer taken (5)."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ns = 1000

    def now(self) -> int:
        return self.ns

    def move(self) -> None:
        self.ns += 100

    async def threaded(self, function: Callable[[], Any]) -> Any:
        self.ns += 10
        answer = function()
        self.ns += 5
        return answer


@pytest.mark.parametrize("work", [("write",), ("load", "verify")])
def test_a_file_takes_no_longer_than_its_requests(
    work: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, recorder = Clock(), Recorder()
    monkeypatch.setattr(real, "perf_counter_ns", clock.now)
    fill = lambda file, path, nbytes, period: Raw().fill(file, path, nbytes, period, Stamp("", path).content)  # noqa: E731
    storage = RealStorage(open_store(tmp_path), clock.threaded, fill=fill, note=clock.move)
    env = Env(clock, recorder, role="checkpoint_writer", index="0", node=0, storage=storage)
    shard = Shard("epoch-0000-step-00000000/shard-00000.bin", 300, 100, False, 0, 100)
    asyncio.run(env.write(shard, AT))
    if "load" in work:
        recorder.drain()
        monkeypatch.setattr(env, "moved", clock.move)
        clock.ns = 1000
        asyncio.run(env.load(shard, AT))
    table = recorder.drain()
    assert table is not None
    spans = [row for row in table.to_pylist() if row["name"] in work]
    ends = [span["start_ns"] + span["duration_ns"] for span in spans]
    assert (spans[0]["start_ns"], ends[-1], clock.ns) == (1010, 1310, 1315)
