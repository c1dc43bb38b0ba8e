"""Standard streams that whoever started the command has closed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def open_streams() -> None:
    """Open the closed ones of the three standard streams on the null device.

    Else files of the run would get their numbers, and what is printed would go into those.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        with suppress(OSError):
            os.fstat(number)
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor != number:  # one that was closed meanwhile
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115
