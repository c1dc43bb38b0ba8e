"""What a process imports first that is to be a worker of PyTorch's: of a rank that has gone, it says not a word.

A worker that is spawned or forked by a server reads what it is to do from its rank. Where that ended meanwhile, Python
prints the traceback of whatever the worker met in its place, on the terminal of a command that is over. So does the
server, which does not ignore a terminal's Ctrl-C before it has imported all that it was told to.
"""

from __future__ import annotations

import pickle
import signal
import sys
from multiprocessing import spawn
from types import TracebackType

#: What reading from a process that has ended comes to; the last: a lock that ended with it.
OF_THE_GONE = (EOFError, ConnectionError, pickle.UnpicklingError, FileNotFoundError)


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback, unless there is nobody left to hear it."""
    if not (issubclass(kind, OF_THE_GONE) and _was_being_told(trace)):
        sys.__excepthook__(kind, error, trace)


def _was_being_told(trace: TracebackType | None) -> bool:
    """Say whether a worker was still reading what it is to do."""
    last = None
    while trace is not None:
        if trace.tb_frame.f_code is spawn._main.__code__:
            last = trace
        trace = trace.tb_next
    return last is not None and "self" not in last.tb_frame.f_locals


sys.excepthook = _say
signal.signal(signal.SIGINT, signal.SIG_IGN)
