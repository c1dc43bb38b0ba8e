"""The entry point of ``rayio`` and ``python -m rayio``, interruptible before the command line is loaded."""

import sys

from rayio.signals import INTERRUPTED, ignore_signals, interruptible, leave


def main() -> None:
    """Load the command line and run one command; exit quietly on a signal, also while loading."""
    try:
        try:
            interruptible()
            from rayio import cli

            cli.main()
        finally:
            ignore_signals()
    except KeyboardInterrupt:
        ignore_signals()
        sys.stderr.write("rayio: interrupted\n")
        leave(INTERRUPTED)


if __name__ == "__main__":
    main()
