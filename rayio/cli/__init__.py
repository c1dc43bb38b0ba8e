"""The command line: all commands; every outcome becomes an exit code and at most one line."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated

import typer
from typer.models import CommandInfo

from rayio.cli import completion
from rayio.cli.grouped import Grouped
from rayio.cli.output import Escaped, discard, escaped_streams
from rayio.cli.streams import open_streams
from rayio.cli.terminal import detail
from rayio.errors import RayioError
from rayio.signals import INTERRUPTED, interruptible, leave
from rayio.storage.address import not_utf8
from rayio.version import __version__

#: The class of typer's errors of usage, which is not public.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
#: The commands of each module, by their first words; ``--help`` lists them in this order.
_COMMANDS = {
    "runs": ("run", "simulate", "generate", "report"),
    "sweeps": ("sweep",),
    "why": ("explain",),
    "results": ("compare", "query", "import"),
    "sizing": ("capacity", "advise", "datasize"),
    "predictions": ("calibrate",),
    "top": ("top",),
    "export": ("export", "view"),
    "scenarios": ("validate", "show", "scenarios", "schema"),
    "published": ("check-published",),
    "jobs": ("submit", "status", "stop", "doctor"),
    "kubernetes": ("k8s",),
    "completion": ("completion",),
}
#: Options with an optional value; without one, OpenTelemetry's standard variables apply.
_OPTIONAL = ("--otlp", "--grpc")
#: Errors of the operating system about a user's path.
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


def application(modules: Iterable[str] = _COMMANDS) -> typer.Typer:
    """Return the application with the commands of some modules of this folder."""
    app = typer.Typer(
        name="rayio",
        cls=Grouped,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for module in modules:
        import_module(f"{__name__}.{module}").add_to(app)
    return app


def _chosen(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with only the commands that the first word names: each costs time at the start.

    It has all commands if the first word names none.
    """
    first = [*arguments[:1]]
    modules = [module for module, words in _COMMANDS.items() if {*first} & {*words}]
    if not modules:
        return application()
    app = application(modules)
    app.registered_groups = [group for group in app.registered_groups if [group.name] == first]
    app.registered_commands = [each for each in app.registered_commands if _name(each).split()[:1] == first]
    return app


def _name(command: CommandInfo) -> str:
    return command.name or str(getattr(command.callback, "__name__", ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    Codes: 0 done, 1 a bug (the traceback is in a file), 2 bad input or environment, 3 expectations unmet, 4 samples
    not delivered exactly once, 130 interrupted.
    """
    open_streams()
    interruptible()
    detail.restart()
    with escaped_streams():
        code = _exit_code(arguments)
    leave(code)


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        if (line := os.environ.get(completion.VARIABLE)) is not None:
            print(completion.answer(application(), line))
            return 0
        arguments = sys.argv[1:] if arguments is None else arguments
        for argument in arguments:
            if (escaped := not_utf8(argument)) is not None:
                _say(f"{escaped} is not UTF-8; rayio writes names into text files, so choose another name")
                return RayioError.exit_code
        code = _chosen(arguments)(args=_filled(arguments), prog_name="rayio", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        lost = sys.stdout.error if isinstance(sys.stdout, Escaped) else None
        if lost is not None and not isinstance(lost, BrokenPipeError):
            raise lost
        if code == INTERRUPTED:  # typer caught a KeyboardInterrupt
            _say("interrupted")
        return code if isinstance(code, int) else 0
    except RayioError as error:
        if detail.is_verbose:
            traceback.print_exception(error)
        _say(str(error))
        return error.exit_code
    except _UsageError as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # typer takes any for the end of a user's input
            return _our_fault(error.__cause__)
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return _unheard()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return _unheard()
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _say("no space left for the output; free some, or write it elsewhere")
            _unheard()
        elif error.errno in _OF_PATHS and error.filename is not None:
            _say(f"{os.fsdecode(error.filename)}: {error.strerror}")
        else:
            return _our_fault(error)
        return RayioError.exit_code
    except Exception as error:
        return _our_fault(error)


def _filled(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with an empty value added to options whose value is optional, which typer cannot do."""
    return [
        f"{argument}=" if argument in _OPTIONAL and after.startswith("-") else argument
        for argument, after in pairwise([*arguments, "-"])
    ]


def _our_fault(error: Exception) -> int:
    """Write the traceback to a file and print its name; return the exit code."""
    with tempfile.NamedTemporaryFile("w", prefix="rayio-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    from rayio.registry import fault_of

    if detail.is_verbose:
        traceback.print_exception(error)
    _say(f"{fault_of(error)}: {type(error).__name__}: {error}; the traceback is in {log.name}")
    return 1


def _unheard() -> int:
    """Discard further output after its reader (head, less) ended, so that Python's last flush does not fail."""
    discard(1)
    return 0


def _usage(error: Exception) -> int:
    """Print what is wrong with the command line and which --help to read; return the exit code."""
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
