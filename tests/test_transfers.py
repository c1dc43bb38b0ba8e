"""The throughput of checkpoints: of a device of known rates, and of real files from memory or from the device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rayio.analyze import gate
from rayio.analyze.transfers import READ, WRITTEN, transfers
from rayio.records.transfers import Transfers
from rayio.report.text.summary import transfer_rows
from rayio.session.conclude import with_spans
from rayio.session.execute import run
from rayio.session.result import Run
from rayio.units import format_bytes
from scenarios import scenario, simulated

MIB = 1 << 20


def saving(writers: Any, *, bandwidth: str = "1000 GB/s", restore: str = "newest", **more: Any) -> Any:
    """Checkpoints of 40 MB on connections of 100 MB/s, at the third and the sixth step of two ranks."""
    model = {"first_byte": "0 s", "connection_bandwidth": "100 MB/s", "bandwidth": bandwidth, "scope": "cluster"}
    section = {
        "every": {"steps": 3}, "path": "ck", "model": {"bytes": "40 MB"}, "writers": writers, "request_bytes": "1 GB",
        "restore": restore, "fsync": False,
    }  # fmt: skip
    return scenario(checkpoint=section, storage__model=model, train__epochs=1, train__steps=6, **more)


@pytest.mark.parametrize(
    ("writers", "bandwidth", "files", "whole", "rank"),
    [
        # one file of 40 MB at 100 MB/s
        ("rank_zero", "1000 GB/s", 1, 100e6, 100e6),
        # two files of 20 MB at the same time
        ("sharded", "1000 GB/s", 2, 200e6, 100e6),
        # two of 40 MB share 50 MB/s: the first is served after 0.8 s, the second after 1.6 s
        ("all_ranks", "50 MB/s", 2, 50e6, None),
        # four of 10 MB, all for rank 0
        ({"dedicated": 4}, "1000 GB/s", 4, 400e6, 400e6),
    ],
    ids=str,
)
def test_rates_are_those_of_the_device(
    writers: Any, bandwidth: str, files: int, whole: float, rank: float | None
) -> None:
    done = simulated(saving(writers, bandwidth=bandwidth))
    copies = 2 if writers == "all_ranks" else 1
    for names, number in ((WRITTEN, 2), (READ, 1)):
        moved = transfers(done.spans, names)
        assert moved is not None
        assert (moved.checkpoints, moved.files, moved.bytes) == (number, files * number, 40_000_000 * copies * number)
        assert moved.mib_per_second == pytest.approx(whole / MIB, rel=1e-3)
        assert moved.mib_per_second == pytest.approx(moved.bytes / moved.seconds / MIB)
        low, mean, high = (
            moved.slowest_rank, moved.mean_rank, moved.fastest_rank,
        )  # fmt: skip
        assert low is not None
        assert mean is not None
        assert high is not None
        if rank is not None:
            assert (low, mean, high) == pytest.approx((rank / MIB,) * 3, rel=1e-3)
        elif names is READ:  # of two checkpoints, either rank may be first
            assert low == pytest.approx(40e6 / 1.6 / MIB, rel=1e-2)
            assert high == pytest.approx(40e6 / 0.8 / MIB, rel=1e-2)
            assert mean == pytest.approx((low + high) / 2)


@pytest.mark.parametrize("writers", ["rank_zero", "sharded"])
def test_saving_of_a_simulation_takes_as_long_as_its_ranks_were_held(writers: str) -> None:
    """Costs of a checkpoint (fsync, messages) come after the model's time: ranks wait for both."""
    costs = {"checkpoint": "250 ms", "checkpoint_bytes": "80 MB"}
    result, spans = with_spans(saving(writers, costs=costs, restore="none"))
    table = spans.to_pandas()
    of_ranks = table[(table["name"] == "checkpoint") & (table["role"] == "rank")]
    held = of_ranks.groupby("step")["duration_ns"].max()
    saved = result.saved
    assert saved is not None
    assert saved.seconds == pytest.approx(held.sum() / 1e9, rel=1e-6)
    assert saved.mib_per_second == pytest.approx(80 / saved.seconds * 1e6 / MIB)
    assert saved.mean_rank is not None
    own = 40e6 if writers == "rank_zero" else 20e6
    assert saved.mean_rank == pytest.approx(own / (own / 100e6 + 0.125) / MIB, rel=1e-3)


def test_without_checkpoints_there_is_no_throughput() -> None:
    assert transfers(simulated().spans, WRITTEN) is None
    assert transfers(simulated(saving("sharded", restore="none")).spans, READ) is None


def test_the_summary_names_both_rates(tmp_path: Path) -> None:
    done = run(saving("sharded"), engine="virtual", root=tmp_path, out="run")
    rows = {name: (value, remark) for name, value, remark in transfer_rows(done.result)}
    assert {name: value for name, (value, _) in rows.items()} == {"saving": "190.7 MiB/s", "restoring": "190.7 MiB/s"}
    saved, restored = done.result.saved, done.result.restored
    assert saved is not None
    assert restored is not None
    assert rows["saving"][1].endswith(f"{saved.checkpoints} checkpoints of {format_bytes(saved.bytes)} in all")
    assert rows["restoring"][1].endswith(f"{restored.checkpoints} checkpoint, {format_bytes(restored.bytes)} read")
    text = done.summary()
    assert "saving" in text
    assert "restoring" in text
    assert done.result.restored is not None
    assert done.result.restored.fetched is None
    assert gate.restored(done.result) is None


def on_files(root: Path, out: str, **keys: Any) -> Run:
    section = {"every": {"steps": 6}, "path": "ck", "model": {"bytes": "8 MB"}, "request_bytes": "1 MB"}
    wanted = scenario(
        checkpoint=section | {"restore": keys.pop("restore", "none")}, dataset__path="data", train__compute="1 ms",
        train__epochs=1, train__steps=6, **keys,
    )  # fmt: skip
    return run(wanted, engine="local", root=root, out=out)


def restored(done: Run) -> Transfers:
    assert done.result.restored is not None
    return done.result.restored


def test_a_checkpoint_read_from_memory_is_said_and_one_from_the_device_is_not(tmp_path: Path) -> None:
    on_files(tmp_path, "saved")
    warm = on_files(tmp_path, "warm", restore="newest")
    sources = restored(warm).fetched
    assert sources is not None
    if sources.source not in ("device", "other"):
        pytest.skip(f"reads are not counted here: {sources.source}")
    assert sources.page_cache_share is not None
    assert sources.page_cache_share > 0.99
    (doubt,) = [each for each in warm.result.doubts or () if each.code == gate.RESTORED_FROM_MEMORY]
    assert doubt.sentence.startswith(
        "100.0 % of the restored bytes came from the page cache, so restoring measures memory"
    )
    assert doubt.sentence in warm.summary()
    for file in (tmp_path / "ck").rglob("*.bin"):  # evicted here, not by rayio
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    cold = on_files(tmp_path, "cold", restore="newest")
    sources = restored(cold).fetched
    assert sources is not None
    assert sources.page_cache_share is not None
    assert sources.page_cache_share < 0.05
    assert gate.RESTORED_FROM_MEMORY not in {each.code for each in cold.result.doubts or ()}
    assert "of the restored bytes" not in cold.summary()


@pytest.mark.parametrize(("every", "number"), [({"epochs": 1}, 3), ({"steps": 1}, 12)], ids=str)
@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_ranks_with_fewer_steps_save_parts_of_the_same_checkpoints(
    tmp_path: Path, every: Any, number: int, engine: str
) -> None:
    """Seven samples are four steps of one rank and three of the other; both save at the same time."""
    keys = {"loader__drop_last": False, "loader__batch_size": 1, "dataset__num_files": 7, "train__epochs": 3}
    section = {"every": every, "path": "ck", "model": {"bytes": "2 MB"}, "writers": "sharded"}
    wanted = scenario(checkpoint=section, dataset__path="data", train__compute="1 ms", **keys)
    if engine == "virtual":
        model = {"first_byte": "0 s", "connection_bandwidth": "100 MB/s", "bandwidth": "100 MB/s", "scope": "cluster"}
        wanted = scenario(checkpoint=section, storage__model=model, **keys)
    done = run(wanted, engine=engine, root=tmp_path, out="run")
    saved = done.result.saved
    assert saved is not None
    assert (saved.checkpoints, saved.files) == (number, 2 * number)
    if engine == "local":
        assert len([*(tmp_path / "ck").glob("epoch-*")]) == number
    elif every == {"epochs": 1}:  # both ranks share the device from the same moment on
        assert saved.mib_per_second == pytest.approx(100e6 / MIB, rel=0.02)
