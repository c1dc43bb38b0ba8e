"""``rayio`` and ``python -m rayio``: the command line, interruptible before it is loaded."""

import sys

from rayio.deadline import leave
from rayio.interrupts import INTERRUPTED, deaf, interruptible


def main() -> None:
    """Load the command line and run one command; a signal that comes while it is loaded has nothing to tidy up."""
    try:
        try:
            interruptible()
            from rayio import cli

            cli.main()
        finally:
            deaf()
    except KeyboardInterrupt:
        deaf()
        sys.stderr.write("rayio: interrupted\n")
        leave(INTERRUPTED)


if __name__ == "__main__":
    main()
