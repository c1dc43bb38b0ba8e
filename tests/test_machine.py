"""What the kernel says of a machine: texts as kernels write them, and the pages of real files."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from pages_of_files import on_a_device
from tries import tried_again

from rayio.machine import counters, host, mounts, pages

MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
23 27 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=24684084k
90 27 0:45 / /mnt/nfs rw,relatime shared:9 master:2 - nfs4 filer.lab:/export/a\040b rw,vers=4.2,sec=sys,addr=10.0.0.7
91 27 0:46 / /mnt/scratch rw - lustre 10.1.0.1@o2ib:10.1.0.2@o2ib:/flash/users rw,flock,checksum
92 27 0:47 / /mnt/win rw - cifs //files/share rw,username=ann,password=hunter2,credentials=/root/.smb
93 27 0:48 / /mnt/ceph rw - ceph 10.2.0.1:6789,10.2.0.2:6789:/ rw,name=admin,secret=AQBd,secretfile=/etc/ceph/s
94 27 0:49 / /mnt/my\040disk rw - fuse.juicefs JuiceFS:vol rw,user_id=0
95 27 0:50 / /mnt/dav rw - fuse https://ann:hunter2@dav.lab/x rw
96 27 8:1 / /mnt/nfs rw - xfs /dev/sda1 rw
97 27 0:60 / /box rw - overlay overlay rw,lowerdir=/l/1:/l/2,upperdir=/u,workdir=/w,index=off
not a mount
"""

MOUNTSTATS = r"""device rootfs mounted on / with fstype rootfs
device proc mounted on /proc with fstype proc
device filer.lab:/export/a\040b mounted on /mnt/my\040nfs with fstype nfs4 statvers=1.1
    opts:	rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,hard,proto=tcp,addr=10.0.0.7
    age:	5302
    impl_id:	name='',domain='',date='0,0'
    caps:	caps=0x3fffbfff,wtmult=512,dtsize=1048576,bsize=0,namlen=255
    nfsv4:	bm0=0xfdffbfff,bm1=0xf9be3e,bm2=0x68800,acl=0x3,sessions,pnfs=not configured,lease=90,lease_expired=0
    sec:	flavor=1,pseudoflavor=1
    events:	51 1026 0 12 28 20 1213 264 0 257 0 256 13 0 8 253 0 5 0 0 256 0 0 0 0 0 0
    bytes:	734003200 1048576 4096 0 268435456 1048576 65536 256
    RPC iostats version: 1.1  p/v: 100003/4 (nfs)
    xprt:	tcp 0 0 2 0 11 1053 1053 0 1082 0 2 40 30
    per-op statistics
            NULL: 1 1 0 44 24 4 0 4 0
            READ: 256 256 0 55296 268462080 0 88 91 0
device tmpfs mounted on /dev/shm with fstype tmpfs
""".replace("\n    ", "\n\t")

LUSTRE = """snapshot_time             1700000123.456789012 secs.nsecs
start_time                1700000000.000000000 secs.nsecs
elapsed_time              123.456789012 secs.nsecs
req_waittime              40 samples [usecs] 151 2822 30233 40012345
req_active                40 samples [reqs] 1 8 90 300
read_bytes                25 samples [bytes] 4096 4194304 104857600 439804651110400
write_bytes               3 samples [bytes] 4096 1048576 2101248 1099511627776
ost_read                  25 samples [usecs] 300 2822 21000 30012345
obd_ping                  12 samples [usecs] 140 340 2600 600000
"""


def test_a_mount_is_found_with_server_type_and_options_and_without_secrets() -> None:
    table = mounts.parse_mountinfo(MOUNTINFO)
    assert len(table) == 11
    found = {m.device: (m.server, m.type, m.source) for m in table}
    assert found["filer.lab:/export/a b"] == ("filer.lab", "nfs4", "server")
    assert found["10.1.0.1@o2ib:10.1.0.2@o2ib:/flash/users"] == ("10.1.0.1@o2ib:10.1.0.2@o2ib", "lustre", "server")
    assert found["//files/share"] == ("files", "cifs", "other")
    assert found["10.2.0.1:6789,10.2.0.2:6789:/"] == ("10.2.0.1:6789,10.2.0.2:6789", "ceph", "other")
    assert found["/dev/vda"] == (None, "ext4", "device")
    assert found["tmpfs"] == (None, "tmpfs", "memory")
    assert found["JuiceFS:vol"] == (None, "fuse.juicefs", "other")
    for secret in ("hunter2", "AQBd", "/root/.smb", "/etc/ceph/s", "lowerdir"):
        assert secret not in str(table)
    (windows,) = (m for m in table if m.type == "cifs")
    assert windows.options == "rw,username=ann,password=***,credentials=***"


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("/data/x", "/dev/vda"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shmx/y", "/dev/vda"),
        ("/mnt/my disk/x/y", "JuiceFS:vol"),
        ("/mnt/nfs/train", "/dev/sda1"),  # mounted over the other
        ("/", "/dev/vda"),
    ],
)
def test_the_mount_of_a_path_is_the_deepest_and_of_two_at_one_place_the_last(path: str, device: str) -> None:
    mount = mounts.mount_of(path, mounts.parse_mountinfo(MOUNTINFO))
    assert mount is not None
    assert mount.device == device


@pytest.mark.skipif(shutil.which("findmnt") is None, reason="findmnt(8) is not installed")
def test_the_mount_of_a_folder_is_what_findmnt_says(tmp_path: Path) -> None:
    said = subprocess.run(
        ["findmnt", "-nro", "TARGET,FSTYPE,SOURCE", "-T", tmp_path], capture_output=True, text=True, check=True
    )  # fmt: skip
    mount = mounts.mount_of(tmp_path / "not" / "yet", mounts.mounts_here())
    assert mount is not None
    point, kind, device = said.stdout.split()
    assert (mount.point, mount.type) == (point, kind)
    assert device.startswith(mount.device)


def test_nfs_says_what_the_server_sent_not_what_programs_read() -> None:
    assert counters.parse_mountstats(MOUNTSTATS) == {"/mnt/my nfs": 268435456}
    assert counters.parse_mountstats("device x mounted on /y with fstype nfs\n\tbytes:\t1 2 3\n") == {}


def test_lustre_says_what_the_servers_of_a_mount_sent() -> None:
    assert counters.parse_lustre_stats(LUSTRE) == {"read_bytes": 104857600, "write_bytes": 2101248}
    (mount,) = (m for m in mounts.parse_mountinfo(MOUNTINFO) if m.type == "lustre")
    stats = {
        "flash-OST0000-osc-ffff8e1c": LUSTRE,
        "flash-OST0001-osc-ffff8e1c": LUSTRE.replace(" 104857600 ", " 1000 "),
        "flash-OST0002-osc-ffff8e1c": "snapshot_time 1 secs.nsecs\n",  # nothing was asked of it yet
        "home-OST0000-osc-ffff8e1c": LUSTRE,
    }
    assert counters.lustre_read(mount, stats) == 104858600
    assert counters.lustre_read(mount, {"home-OST0000-osc-ffff8e1c": LUSTRE}) is None


def test_io_counters_of_a_process_without_a_line_say_nothing() -> None:
    assert counters.parse_io(b"rchar: 1\nwchar: 2\nread_bytes: 77\ncancelled_write_bytes: 0\n") == 77
    assert counters.parse_io(b"rchar: 1\n") is None


@tried_again
def test_what_a_thread_fetches_counts_for_it_alone(tmp_path: Path) -> None:
    file = on_a_device(tmp_path, 8 << 20)
    seen: dict[str, int] = {}

    def read(name: str) -> None:
        before = counters.fetched_by_this_thread()
        file.read_bytes()
        after = counters.fetched_by_this_thread()
        assert before is not None
        assert after is not None
        seen[name] = after - before

    read("first")  # its pages left when it was made
    before = counters.fetched_by_this_thread()
    for name in ("warm", "evicted"):
        if name == "evicted":
            with file.open("rb") as opened:
                assert pages.evict(opened.fileno()) == 0
        thread = threading.Thread(target=read, args=(name,))
        thread.start()
        thread.join()
    a_little = 1 << 20  # pages of programs may be fetched as well, when they are first needed
    assert 8 << 20 <= seen["first"] < (8 << 20) + a_little
    assert seen["warm"] < a_little
    assert 8 << 20 <= seen["evicted"] < (8 << 20) + a_little
    after = counters.fetched_by_this_thread()
    assert before is not None
    assert after is not None
    assert after - before < a_little


@tried_again
def test_pages_are_counted_alike_by_both_calls_and_leave_when_told(tmp_path: Path) -> None:
    file = on_a_device(tmp_path, (1 << 20) + 5)
    with file.open("rb") as opened:
        number = opened.fileno()
        assert pages.resident(number) == pages.by_mincore(number) == 0
        opened.read()
        assert pages.resident(number) == pages.by_mincore(number) == (1 << 20) + pages.PAGE
        assert pages.resident(number, 4096, 8192) == pages.by_mincore(number, 4096, 8192) == 8192
        assert pages.evict(number) == 0
        assert pages.by_mincore(number) == 0


@tried_again
def test_pages_that_were_just_written_leave_too(tmp_path: Path) -> None:
    file = on_a_device(tmp_path, 4096)
    file.write_bytes(os.urandom(1 << 20))
    with file.open("rb") as opened:
        assert pages.resident(opened.fileno()) == 1 << 20
        assert pages.evict(opened.fileno()) == 0


def test_pages_of_a_file_in_memory_stay() -> None:
    folder = Path("/dev/shm")
    mount = mounts.mount_of(folder, mounts.mounts_here())
    if mount is None or mount.source != "memory" or not os.access(folder, os.W_OK):
        pytest.skip("/dev/shm is no file system in memory here")
    file = folder / f"rayio-test-{os.getpid()}"
    try:
        file.write_bytes(bytes(1 << 20))
        with file.open("rb") as opened:
            assert pages.evict(opened.fileno()) == 1 << 20
    finally:
        file.unlink()


def test_limits_of_control_groups_are_looked_for_in_the_own_group_and_above() -> None:
    files = host.parse_groups("9:name=systemd:/\n4:cpu,memory:/a/b\n0::/a/b\n")
    assert files == [
        "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/a/b/memory.max",
        "/sys/fs/cgroup/a/memory.max",
        "/sys/fs/cgroup/memory.max",
    ]


def test_a_host_is_described_as_the_system_has_it(tmp_path: Path) -> None:
    found = host.describe({"dataset.path": tmp_path / "not" / "there"})
    assert found.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found.name == os.uname().nodename
    assert found.kernel == f"Linux {os.uname().release}"
    assert 0 < found.cache_bytes <= found.memory_bytes
    (mount,) = found.mounts
    about = os.statvfs(tmp_path)
    assert mount.key == "dataset.path"
    assert mount.capacity_bytes == about.f_blocks * about.f_frsize
    assert Path(mount.point).stat().st_dev == tmp_path.stat().st_dev
    assert type(found).of_json(found.as_json()) == found
