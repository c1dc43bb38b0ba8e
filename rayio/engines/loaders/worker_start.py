"""The first import of a PyTorch worker process: it silences errors after its rank has ended.

A worker that is spawned, or forked by a server, reads its task from its rank. If the rank has ended, Python would print
a traceback on the terminal of a finished command. So would the server on Ctrl-C before its imports are complete.
"""

from __future__ import annotations

import pickle
import signal
import sys
from multiprocessing import spawn
from types import TracebackType

#: Errors of reading from an ended process; the last one: its lock is gone.
OF_THE_GONE = (EOFError, ConnectionError, pickle.UnpicklingError, FileNotFoundError)


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not (issubclass(kind, OF_THE_GONE) and _was_being_told(trace)):
        sys.__excepthook__(kind, error, trace)


def _was_being_told(trace: TracebackType | None) -> bool:
    last = None
    while trace is not None:
        if trace.tb_frame.f_code is spawn._main.__code__:
            last = trace
        trace = trace.tb_next
    return last is not None and "self" not in last.tb_frame.f_locals


sys.excepthook = _say
signal.signal(signal.SIGINT, signal.SIG_IGN)
