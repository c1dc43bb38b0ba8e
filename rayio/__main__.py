"""``python -m rayio``: the command line."""

from rayio.cli import main

main()
