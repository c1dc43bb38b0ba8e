"""Tests of what another program decides: the kernel's page cache, or who gets a processor when."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

TRIES = 5


def tried_again(test: Callable[..., None]) -> Callable[..., None]:
    """Give a test several tries, each in a folder of its own; a fault of ours fails in all of them.

    A kernel that is short of memory takes pages back at any moment, and a busy machine stops a process anywhere.
    """

    @functools.wraps(test)
    def tries(**given: Any) -> None:
        for number in range(TRIES):
            (folder := given["tmp_path"] / f"try-{number}").mkdir()
            try:
                test(**given | {"tmp_path": folder})
                break
            except AssertionError:
                if number == TRIES - 1:
                    raise

    return tries
