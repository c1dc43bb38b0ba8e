"""When files below a folder are in use, by any process, as the kernel tells it (inotify, Linux)."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from pathlib import Path

CLOSED_WRITTEN, CLOSED, OPENED, CREATED, FOLDER = 0x08, 0x10, 0x20, 0x100, 0x40000000
HEAD = struct.Struct("iIII")  # watch, mask, cookie, length of the name


class Uses:
    """The uses of files below ``folder``, from now on: how they are opened and closed.

    Single requests are not watched, because that would disturb what is measured.
    """

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init()
        self._folders = dict[int, Path]()
        self._used = self._wrote = self.wrote = self._is_open = False
        self._watch(folder)

    def wait(self, quiet: float, *, at_most: float) -> bool:
        """Wait for a use, and until ``quiet`` seconds after its last file; return False after ``at_most``.

        ``wrote`` says whether that use wrote.
        """
        ends = time.monotonic() + at_most
        while time.monotonic() < ends:
            if select.select([self._descriptor], [], [], quiet)[0]:
                time.sleep(quiet / 4)  # to wake for each event alone would disturb it, too
                self._take()
            elif self._used and not self._is_open:
                self.wrote, self._used, self._wrote = self._wrote, False, False
                return True
        return False

    def close(self) -> None:
        """Stop to watch."""
        os.close(self._descriptor)

    def _watch(self, folder: Path) -> None:
        mask = CLOSED_WRITTEN | CLOSED | OPENED | CREATED
        watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
        if watch < 0:
            raise OSError(ctypes.get_errno(), f"{folder}: cannot be watched")
        self._folders[watch] = folder

    def _take(self) -> None:
        """Take the events that are there."""
        events, place = os.read(self._descriptor, 1 << 16), 0
        while place < len(events):
            watch, mask, _, length = HEAD.unpack_from(events, place)
            name = events[place + HEAD.size : place + HEAD.size + length].rstrip(b"\0")
            place += HEAD.size + length
            if not mask & FOLDER:
                self._used, self._is_open = True, bool(mask & OPENED)
                self._wrote |= bool(mask & CLOSED_WRITTEN)
            elif mask & CREATED:  # what was written there before is not told
                self._used = self._wrote = True
                self._watch(self._folders[watch] / os.fsdecode(name))
