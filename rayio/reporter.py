"""Who is told how a command goes."""

from __future__ import annotations


class Reporter:
    """Told how a command goes; this one keeps it to itself, the command line has one that prints."""

    def say(self, text: str) -> None:
        """Tell something that is worth a line of its own."""

    def live(self, text: str) -> None:
        """Tell how far the run is; each replaces the one before."""

    def generating(self, files: int, nbytes: int, of_files: int, of_bytes: int) -> None:
        """Tell how far the generation of a dataset is."""

    def done(self) -> None:
        """Know that the live part is over."""


SILENT = Reporter()
