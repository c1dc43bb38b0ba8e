"""The command line: registers the commands, and turns every outcome into an exit code and at most one line."""

from __future__ import annotations

import errno
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import typer

from rayio import __version__
from rayio.cli import (
    completion,
    export,
    jobs,
    kubernetes,
    predictions,
    results,
    runs,
    scenarios,
    sizing,
    sweeps,
    top,
    why,
)
from rayio.deadline import leave
from rayio.errors import RayioError
from rayio.interrupts import INTERRUPTED, interruptible

#: What typer raises for a command line it cannot read; the class itself is not public.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


#: What the system says of a path that a user gave, wherever that shows.
_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rayio {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Emulate the data pipelines of deep-learning training on Ray, and see where the time goes.

    Start with:  rayio run unet3d-small
    """


def application() -> typer.Typer:
    """Put the commands together."""
    app = typer.Typer(
        name="rayio",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    runs.add_to(app)
    results.add_to(app)
    predictions.add_to(app)
    sweeps.add_to(app)
    sizing.add_to(app)
    why.add_to(app)
    export.add_to(app)
    scenarios.add_to(app)
    jobs.add_to(app)
    top.add_to(app)
    kubernetes.add_to(app)
    completion.add_to(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code.

    0 done, 1 our fault (the traceback is kept in a file), 2 bad input or environment, 3 expectations unmet, 4 ledger
    uneven, 130 interrupted.
    """
    interruptible()
    leave(_exit_code(arguments))


def _exit_code(arguments: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a sign gets another, not a traceback
            stream.reconfigure(errors="replace")
    try:
        if (line := os.environ.get(completion.VARIABLE)) is not None:
            print(completion.answer(application(), line))
            return 0
        code = application()(
            args=_filled(sys.argv[1:] if arguments is None else arguments), prog_name="rayio", standalone_mode=False
        )
        if sys.stdout is not None:
            sys.stdout.flush()
        if code == INTERRUPTED:  # typer gives it for a KeyboardInterrupt that it caught itself
            _say("interrupted")
        return code if isinstance(code, int) else 0
    except RayioError as error:
        _say(str(error))
        return error.exit_code
    except _UsageError as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return _unheard()
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):
            return _unheard()
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _say("no space left where the output goes")
            _unheard()
        elif error.errno in _OF_PATHS and error.filename is not None:
            _say(f"{os.fsdecode(error.filename)}: {error.strerror}")
        else:
            return _our_fault(error)
        return RayioError.exit_code
    except Exception as error:
        return _our_fault(error)


def _filled(arguments: Sequence[str]) -> list[str]:
    """Let the value of some options be left out, which typer cannot: it is then empty."""
    return [
        f"{argument}=" if argument in export.OPTIONAL and after.startswith("-") else argument
        for argument, after in pairwise([*arguments, "-"])
    ]


def _our_fault(error: Exception) -> int:
    """Keep the traceback in a file and name it."""
    with tempfile.NamedTemporaryFile("w", prefix="rayio-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    from rayio.registry import fault_of

    _say(f"{fault_of(error)}: {type(error).__name__}: {error}; the traceback is in {log.name}")
    return 1


def _unheard() -> int:
    """End in peace when the reader of our output (head, less) has left; Python would complain at its last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _usage(error: Exception) -> int:
    """Say what is wrong with the command line, and which command's help knows better."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rayio"
    message = getattr(error, "format_message", error.__str__)().replace("Value error, ", "")
    if message and not type(error).__name__.startswith("NoArgs"):
        _say(f"{message} (see {command} --help)")
    elif context is not None:
        print(context.get_help())
    return 2


def _say(text: str) -> None:
    print(f"rayio: {' '.join(text.split())}", file=sys.stderr, flush=True)
