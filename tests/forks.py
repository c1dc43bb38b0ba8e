"""Commands of rayio in forks of a process that has loaded rayio: a page's hundred commands need not load it each.

``python tests/forks.py SOCKET`` is that process; :func:`serving` starts it. ``python tests/calling.py SOCKET rayio
validate ...`` (standard library alone, a few milliseconds) hands its arguments, folder, environment and standard
streams over, and leaves with the exit code of the fork. A fork ends as a Python program does, but that it takes nothing
apart: what it has not loaded itself costs more to take apart (0.4 s of a processor) than most commands take.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NoReturn

#: What commands load when they need it. Not Ray, which reads the environment when it is loaded; not torch.
LOADED = (
    "duckdb", "h5py", "opentelemetry.trace", "pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet",
    "rayio.__main__", "rayio.cli", "rayio.engines.local", "rayio.export.exporting", "rayio.predict.calibrate",
    "rayio.predict.explain", "rayio.records.answers", "rayio.report.build", "rayio.report.text.comparison",
    "rayio.report.text.explanation", "rayio.session", "rayio.study.sweeps", "rayio.trace.otel.provider",
    "typer._adapters",
)  # fmt: skip


@contextlib.contextmanager
def serving() -> Iterator[list[str]]:
    """Start the process; give the words that, before ``rayio ...`` or ``python CODE``, have a fork of it run that."""
    with tempfile.TemporaryDirectory(prefix="rayio-commands-") as folder:  # an address of a socket has 107 bytes
        address = f"{folder}/socket"
        command = [sys.executable, "-W", "ignore::DeprecationWarning:__main__", __file__, address]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            try:
                yield [sys.executable, "-I", "-S", str(Path(__file__).with_name("calling.py")), address]
            finally:
                server.terminate()


def serve(address: str) -> None:
    """Fork for every call, for ever."""
    for name in LOADED:
        __import__(name)
    from rayio.kinds import ACCESSES, FORMATS, STORAGE_MODELS

    # Reports of a page's hundred runs do without simulated changes, a third of a second each: tests/test_report*.py
    # have these.
    vars(importlib.import_module("rayio.report.content"))["SIMULATED_STEPS"] = 0
    importlib.import_module("rayio.scenario.load").load("unet3d-small")  # makes what checks scenarios
    for kinds in (FORMATS, ACCESSES, STORAGE_MODELS):
        dict(kinds)  # loads what is built in
    gc.freeze()  # what is looked at in a fork is copied
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(address)
    server.listen(16)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    waiting: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is server:
                    caller, _ = server.accept()
                    if (pid := os.fork()) == 0:
                        ready.close()
                        server.close()
                        leave(caller)
                    ended = os.pidfd_open(pid)
                    waiting[ended] = pid, caller
                    ready.register(ended, selectors.EVENT_READ)
                else:
                    ready.unregister(key.fd)
                    pid, caller = waiting.pop(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(OSError), caller:
                        caller.sendall(str(code).encode())
                    os.close(key.fd)


def leave(caller: socket.socket) -> NoReturn:
    """Become the program that was called, and end with its exit code."""
    gc.unfreeze()  # a simulation asks how many objects are frozen, which takes 20 ms for what was loaded here
    code: object = None
    try:
        called(caller)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if not (code is None or isinstance(code, int)):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code or 0)


def called(caller: socket.socket) -> None:
    """Become the program that was called."""
    with caller:
        message, streams, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    folder, environment, program, *arguments = json.loads(message)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # What the streams of this process know of their files is known of other files.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.modules["__main__"] = main = ModuleType("__main__")
    if program == "python":
        sys.argv = ["-c"]
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
        return
    sys.argv = [program, *arguments]
    from rayio.__main__ import main as rayio

    rayio()


if __name__ == "__main__":
    serve(sys.argv[1])
