"""The entry point of ``rayio`` and ``python -m rayio``, interruptible before the command line is loaded."""

import gc
import os
import sys

from rayio.signals import INTERRUPTED, ignore_signals, interruptible, leave

#: Objects made before Python looks for unused cycles among them; short commands make fewer. With Python's 700 it takes
#: a tenth of their time, with 10 000 a twentieth.
NEW_OBJECTS = 200_000


def main() -> None:
    """Load the command line and run one command; exit quietly on a signal, also while loading."""
    try:
        try:
            interruptible()
            gc.set_threshold(NEW_OBJECTS, 10, 10)
            # Pydantic would read the metadata of all installed packages in search of its plugins.
            os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
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
