"""Failures of a DataLoader that are not its data's: a worker that died, shared memory that ran out."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

from rayio.machine.oom import oom_kills, why_killed
from rayio.units import format_bytes

#: Seconds for the system to report a death: PyTorch notices the broken connection first, on a busy machine much sooner.
REPORT_SECONDS = 10.0
SHARED_MEMORY = "/dev/shm"
#: Errors of a connection to a process that is gone.
_OF_THE_GONE = (EOFError, ConnectionError, FileNotFoundError)
#: Errors of semaphores, which live in shared memory.
_OF_SEMAPHORES = (errno.ENOSPC, errno.ENOENT, errno.EROFS, errno.EACCES, errno.ENOSYS)


def means_death(error: BaseException) -> bool:
    """Return True if an error of DataLoader means that a worker is gone.

    >>> means_death(EOFError()), means_death(OSError(28, "No space left on device"))
    (True, False)
    """
    text = str(error)
    if text.startswith("Caught "):  # an error that a living worker sent
        return False
    return isinstance(error, _OF_THE_GONE) or "exited unexpectedly" in text


def death(processes: Sequence[Any], kills: int | None, seconds: float) -> str | None:
    """Return the worker that died and the cause; None if none has within some seconds.

    ``kills`` is :func:`~rayio.machine.oom.oom_kills` before.
    """
    ended = connection.wait([process.sentinel for process in processes], seconds) if processes else []
    for number, process in enumerate(processes):
        if process.sentinel in ended:
            process.join(1.0)
        if (code := process.exitcode) is not None:
            return f"DataLoader worker {number} (pid {process.pid}) died ({_cause(code, kills)})"
    return None


def _cause(code: int, kills: int | None) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    if name == "SIGBUS":
        return f"{name}: {_room()}"
    if name != "SIGKILL":
        return f"killed by {name}"
    return why_killed(kills, oom_kills()).replace("killed", f"killed by {name}", 1).replace(" by the kernel:", ":", 1)


def no_shared_memory(error: BaseException, *, starting: bool) -> str | None:
    """Return a line about missing shared memory if that is the cause of an error; else None.

    ``starting``: the error came as workers started, which makes semaphores in shared memory.
    """
    text = str(error)
    is_semaphore = starting and isinstance(error, OSError) and error.errno in _OF_SEMAPHORES and not error.filename
    if not (is_semaphore or "shared memory" in text or "/torch_" in text):
        return None
    return (
        f"loader.kind=torch: PyTorch's workers pass batches through shared memory, and {_room()}; make it larger "
        "(docker run --shm-size=8g, on Kubernetes an emptyDir with medium: Memory), lower loader.num_workers or "
        "loader.prefetch_factor, or use loader.num_workers=0"
    )


def _room() -> str:
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError as error:
        return f"{SHARED_MEMORY} cannot be used ({error.strerror})"
    if os.statvfs(SHARED_MEMORY).f_flag & os.ST_RDONLY or not os.access(SHARED_MEMORY, os.W_OK):
        return f"{SHARED_MEMORY} cannot be written"
    return f"{SHARED_MEMORY} is too small ({format_bytes(usage.free)} of {format_bytes(usage.total)} are free)"
