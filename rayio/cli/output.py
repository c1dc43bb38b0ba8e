"""Standard output: text, or only JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rayio.records.record import Record


@contextlib.contextmanager
def only_json(as_json: bool) -> Iterator[None]:
    """Redirect what libraries print to standard error, so that standard output has only JSON."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        kept = None
    try:
        if kept is not None:
            os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def print_json(value: Record | Any) -> None:
    """Print a record or plain values as JSON."""
    plain = value.as_json() if isinstance(value, Record) else value
    print(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False))
