"""Where the bytes of a run came from, held against the kernel: files evicted before, and files in memory."""

from __future__ import annotations

import os
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from pages_of_files import forget, remember, skip_unless_on_a_device
from tries import tried_again

import rayio
from rayio.errors import ScenarioError, StorageError
from rayio.machine import pages
from rayio.machine.mounts import mount_of, mounts_here
from rayio.model.ledger import Tally
from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.model.sighting import Sighting, each_once, look, warnings
from rayio.records.hosts import Fetched, Host, Mount
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.report.text.summary import fetched_line, summary
from rayio.reporter import Reporter
from rayio.scenario.load import load
from rayio.session.fetched import fetched, source_notes
from rayio.storage.base import Moved

#: What may be fetched besides: pages of programs, when they are first needed, and what formats describe their files by.
A_LITTLE = 4 << 20

#: 48 samples of 150 kB in all, which two ranks read in 6 steps each.
SMALL: dict[str, Any] = {
    "dataset.num_files": 48,
    "dataset.samples_per_file": 1,
    "dataset.sample_bytes": "150 kB",
    "loader.batch_size": 4,
    "loader.num_workers": 2,
    "train.compute": "1 ms",
    "train.epochs": 1,
    "checkpoint": "none",
}

FORMATS: dict[str, dict[str, Any]] = {
    "npz": {"dataset.format": "npz"},
    "hdf5": {"dataset.format": "hdf5", "dataset.samples_per_file": 6, "dataset.num_files": 8},
    "tfrecord": {"dataset.format": "tfrecord", "dataset.samples_per_file": 6, "dataset.num_files": 8},
    "parquet": {"dataset.format": "parquet"},
}


class Heard(Reporter):
    """What was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")


def run(root: Path, overrides: dict[str, Any], out: str = "run", reporter: Reporter | None = None) -> rayio.Run:
    return rayio.run(
        "unet3d-small", SMALL | overrides, engine="local", root=root, out=root / out, reporter=reporter or Reporter()
    )


def files_of(root: Path) -> list[Path]:
    return [path for path in (root / "data").rglob("*") if path.is_file()]


def found(run: rayio.Run) -> Fetched:
    assert run.result.fetched is not None
    return run.result.fetched


def resident(file: Path) -> int | None:
    with file.open("rb") as opened:
        return pages.by_mincore(opened.fileno())


@pytest.mark.parametrize("form", FORMATS)
@tried_again
def test_what_was_evicted_comes_from_the_device_and_what_is_in_memory_does_not(tmp_path: Path, form: str) -> None:
    skip_unless_on_a_device(tmp_path)
    rayio.generate("unet3d-small", SMALL | FORMATS[form], root=tmp_path)
    nbytes = sum(file.stat().st_size for file in files_of(tmp_path))
    forget(*files_of(tmp_path))
    cold = found(run(tmp_path, FORMATS[form], "cold"))
    assert cold.delivered_bytes == 48 * 150_000
    assert cold.read_bytes >= cold.delivered_bytes
    assert cold.fetched_bytes is not None
    assert cold.delivered_bytes <= cold.fetched_bytes <= nbytes + A_LITTLE
    assert cold.page_cache_share == max(0.0, 1 - cold.fetched_bytes / cold.read_bytes) < 0.5
    remember(*files_of(tmp_path))
    warm = found(run(tmp_path, FORMATS[form], "warm"))
    assert (warm.delivered_bytes, warm.read_bytes) == (cold.delivered_bytes, cold.read_bytes)
    assert warm.fetched_bytes is not None
    assert warm.fetched_bytes < A_LITTLE
    assert warm.page_cache_share == 1 - warm.fetched_bytes / warm.read_bytes
    assert (warm.source, warm.page_cache, warm.unevicted_bytes) == ("device", "use", None)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("page_cache", ["drop", "direct"])
@tried_again
def test_without_the_page_cache_every_epoch_comes_from_the_device(tmp_path: Path, form: str, page_cache: str) -> None:
    skip_unless_on_a_device(tmp_path)
    overrides = FORMATS[form] | {"storage.page_cache": page_cache, "train.epochs": 2, "loader.num_workers": 1}
    told = found(run(tmp_path, overrides))
    assert told.delivered_bytes == 2 * 48 * 150_000
    assert told.fetched_bytes is not None
    assert told.fetched_bytes >= told.delivered_bytes
    if page_cache == "direct" or form == "npz":  # of files that are read in parts, the kernel may be reading ahead
        assert not any(map(resident, files_of(tmp_path)))


@pytest.mark.parametrize("page_cache", ["drop", "direct"])
@tried_again
def test_checkpoints_are_on_the_device_and_not_in_memory(tmp_path: Path, page_cache: str) -> None:
    skip_unless_on_a_device(tmp_path)
    checkpoint = {"checkpoint": {"every": {"steps": 3}, "path": "saved", "model": {"bytes": "3 MB"}, "fsync": False}}
    run(tmp_path, checkpoint | {"storage.page_cache": page_cache})
    saved = [path for path in (tmp_path / "saved").rglob("*.bin") if path.is_file()]
    assert [path.stat().st_size for path in saved] == [3_000_000] * 2
    assert not any(map(resident, saved))


@pytest.mark.parametrize(("workers", "page_cache"), [(0, "drop"), (2, "drop"), (2, "use")])
@tried_again
def test_the_workers_of_pytorch_count_too(tmp_path: Path, workers: int, page_cache: str) -> None:
    pytest.importorskip("torch")
    skip_unless_on_a_device(tmp_path)
    rayio.generate("unet3d-small", SMALL, root=tmp_path)
    (remember if page_cache == "drop" else forget)(*files_of(tmp_path))
    torch = {"loader.kind": "torch", "loader.num_workers": workers, "cluster.ranks_per_node": 1}
    told = found(run(tmp_path, torch | {"storage.page_cache": page_cache}))
    assert told.delivered_bytes == 48 * 150_000
    assert told.fetched_bytes is not None
    assert told.delivered_bytes <= told.fetched_bytes <= told.read_bytes + A_LITTLE


def test_it_is_said_first_everywhere(tmp_path: Path) -> None:
    skip_unless_on_a_device(tmp_path)
    ended = run(tmp_path, {"storage.page_cache": "drop"})
    first = summary(ended.result).splitlines()[2]
    assert first.startswith("  from device ")
    assert "MiB read" in first
    explained = explain(ended.path, simulate=False)
    assert Fetched.of_json(explained["fetched"]) == ended.result.fetched
    page = Path(report(ended.path)).read_text()
    assert escape(fetched_line(ended.result.fetched)) in page[: page.index('data-key="au"')]
    assert ended.result.hosts is not None
    (host,) = ended.result.hosts
    mount = host.mounts[0]
    assert ended.directory.info["hosts"] == [host.as_json()]
    for text in (host.name, host.kernel, mount.type, mount.device, mount.options):
        assert text in page


def test_modelled_storage_fetches_nothing_that_could_be_counted(tmp_path: Path) -> None:
    ended = rayio.simulate("unet3d-small", SMALL | {"storage.page_cache": "drop"}, out=tmp_path / "run")
    assert ended.result.fetched is None
    assert ended.result.hosts is None
    assert any(note.startswith("storage.page_cache=drop: no effect") for note in ended.result.notes)


def test_a_dataset_that_fits_into_memory_is_warned_of_before_it_is_read(tmp_path: Path) -> None:
    skip_unless_on_a_device(tmp_path)
    heard = Heard()
    ended = run(tmp_path, {}, reporter=heard)
    (warned,) = (text for text in heard.said if text.startswith("warning: "))
    assert "storage.page_cache=drop" in warned
    assert ended.result.fetched is not None
    is_known = ended.result.fetched.page_cache_share is not None
    assert (warned.removeprefix("warning: ") in ended.result.notes) != is_known, "else it is a doubt, with its share"
    assert any(doubt.code == "page_cache" for doubt in ended.result.doubts or ()) == is_known
    dropping = Heard()
    run(tmp_path, {"storage.page_cache": "drop"}, "again", dropping)
    assert not [text for text in dropping.said if "warning" in text]


def host(memory: int, type: str = "ext4", name: str = "a") -> Host:
    mount = Mount(key="dataset.path", point="/", type=type, device="/dev/sda")
    return Host(name=name, memory_bytes=memory, memory_limit_bytes=None, mounts=(mount,))


def plan(**overrides: Any) -> Plan:
    dotted = {"dataset.num_files": 100, "dataset.sample_bytes": "1 MiB", "dataset.path": "/data/x"} | overrides
    return plan_of(load("unet3d-small", dotted), modelled=False)


@pytest.mark.parametrize(
    ("memories", "enough"),
    [([101 << 20], "505 MiB of data"), ([51 << 20, 51 << 20], "510 MiB of data"), ([99 << 20], None), ([0], None)],
)
def test_enough_is_five_times_the_memory_of_the_hosts(memories: list[int], enough: str | None) -> None:
    hosts = [host(memory, name=str(number)) for number, memory in enumerate(memories)]
    said = warnings(plan(), "/", hosts)
    assert bool(said) == (enough is not None)
    assert all(enough in text for text in said if enough)
    assert not warnings(plan(**{"storage.page_cache": "drop"}), "/", hosts)
    assert not warnings(plan(**{"storage.page_cache": "direct"}), "/", hosts)
    assert not warnings(plan(**{"dataset.path": "s3://b/x"}), "/", hosts)


def test_a_limit_of_memory_counts_where_it_is_lower() -> None:
    limited = replace(host(1 << 40), memory_limit_bytes=50 << 20)
    assert not warnings(plan(), "/", [limited])


def test_a_file_system_in_memory_is_said_to_be_one(tmp_path: Path) -> None:
    (said,) = warnings(plan(), "/", [host(1 << 10, "tmpfs")])
    assert "tmpfs, which is memory" in said
    mount = mount_of("/dev/shm", mounts_here())
    if mount is None or mount.source != "memory" or not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm is no file system in memory here")
    data = Path(f"/dev/shm/rayio-{tmp_path.name}-{os.getpid()}")
    try:
        ended = run(tmp_path, {"dataset.path": str(data), "storage.page_cache": "drop"})
        told = found(ended)
        assert (told.source, told.fetched_bytes, told.page_cache_share) == ("memory", 0, 1.0)
        assert fetched_line(told).endswith("the file system is in memory")
        assert any("stayed in the page cache" in note for note in ended.result.notes)
        with pytest.raises(StorageError, match=r"storage.page_cache=direct: this file system \(tmpfs\) has no direct"):
            run(tmp_path, {"dataset.path": str(data), "storage.page_cache": "direct"}, "direct")
        assert not (tmp_path / "direct").exists()
    finally:
        for file in sorted(data.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        if data.exists():
            data.rmdir()


@pytest.mark.parametrize("page_cache", ["drop", "direct"])
def test_object_stores_have_no_page_cache_to_drop(tmp_path: Path, page_cache: str) -> None:
    with pytest.raises(ScenarioError, match=f"^storage.page_cache={page_cache} does not apply to s3://b/d"):
        run(tmp_path, {"dataset.path": "s3://b/d", "storage.page_cache": page_cache})
    assert not (tmp_path / "run").exists()


def sighting(name: str, sent: dict[str, int], *mounts: tuple[str, str, str]) -> Sighting:
    of = tuple(Mount(key=key, point=point, type=type, device="filer:/x") for key, point, type in mounts)
    return Sighting(Host(name=name, mounts=of), sent)


def tally(asked: int, fetched: int | None, unevicted: int | None = 0) -> Tally:
    return Tally(0, nbytes=asked, moved=Moved(asked, fetched, unevicted))


def test_what_servers_sent_is_summed_over_hosts_and_unknown_where_one_does_not_say() -> None:
    wanted = plan()
    nfs = ("dataset.path", "/mnt", "nfs4")
    before = [sighting("a", {"/mnt": 100, "/else": 5}, nfs), sighting("b", {"/mnt": 50}, nfs)]
    after = [sighting("b", {"/mnt": 350}, nfs), sighting("a", {"/mnt": 500, "/else": 9}, nfs)]
    told = fetched(wanted, "/", [tally(1000, None), tally(400, None)], before, after)
    assert told is not None
    assert (told.source, told.read_bytes, told.fetched_bytes, told.page_cache_share) == ("server", 1400, 700, 0.5)
    for lost in (after[:1], []):
        told = fetched(wanted, "/", [tally(1000, None)], before, lost)
        assert told is not None
        assert (told.fetched_bytes, told.page_cache_share) == (None, None)
        assert "unknown" in fetched_line(told)


def test_nothing_is_guessed() -> None:
    wanted = plan()
    device, other = ("dataset.path", "/a", "ext4"), ("dataset.path", "/a", "xfs")
    one = fetched(wanted, "/", [tally(10, 4), tally(10, None)], [sighting("a", {}, device)], [])
    assert one is not None
    assert (one.source, one.fetched_bytes, one.page_cache_share) == ("device", None, None)
    both = [sighting("a", {}, device), sighting("b", {}, other)]
    two = fetched(wanted, "/", [tally(10, 4), tally(10, 4)], both, [])
    assert two is not None
    assert (two.source, two.fetched_bytes, two.page_cache_share) == ("device", 8, 0.6)
    mixed = fetched(wanted, "/", [tally(10, 4)], [both[0], sighting("c", {}, ("dataset.path", "/", "tmpfs"))], [])
    assert mixed is not None
    assert mixed.source == "unknown"
    assert fetched(wanted, "/", [Tally(0)], both, []) is None
    more = fetched(wanted, "/", [tally(10, 90)], both, [])  # it was read ahead for nothing
    assert more is not None
    assert more.page_cache_share == 0.0


def test_what_could_not_be_evicted_is_said() -> None:
    dropping = plan(**{"storage.page_cache": "drop"})
    hosts = [sighting("a", {}, ("dataset.path", "/a", "ext4"))]
    assert source_notes(fetched(dropping, "/", [tally(10, 10, 0)], hosts, []), is_partial=False) == []
    (said,) = source_notes(
        fetched(dropping, "/", [tally(10, 10, 4096), tally(10, 10, 4096)], hosts, []), is_partial=False
    )
    assert said.startswith("storage.page_cache=drop: 8 KiB stayed in the page cache")
    (said,) = source_notes(fetched(dropping, "/", [tally(10, 10, None)], hosts, []), is_partial=False)
    assert "does not report" in said
    assert source_notes(fetched(plan(), "/", [tally(10, 10, 4096)], hosts, []), is_partial=False) == []


def test_processes_of_one_host_see_it_once(tmp_path: Path) -> None:
    here = look(plan(**{"dataset.path": str(tmp_path)}), tmp_path)
    assert each_once([here, here, sighting("b", {})]) == [here, sighting("b", {})]
    assert here.host.mounts[0].key == "dataset.path"
