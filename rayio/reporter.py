"""Who is told how a command goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayio.records.running import Live


class Reporter:
    """Told how a command goes; this one keeps it to itself, the command line has one that prints."""

    def say(self, text: str) -> None:
        """Tell something that is worth a line of its own."""

    def live(self, text: str, share: float | None = None) -> None:
        """Tell how far a command is; each replaces the one before. ``share`` is the part of it that is done, 0 to 1."""

    def looked(self, live: Live) -> None:
        """Tell how far a run is, as values; about once a second."""

    def generating(self, files: int, nbytes: int, of_files: int, of_bytes: int) -> None:
        """Tell how far the generation of a dataset is."""

    def generated(self, path: str, written: tuple[int, int], reused: tuple[int, int]) -> None:
        """Tell what a dataset came to: files and bytes that were written, and that were there."""

    def done(self) -> None:
        """Know that the live part is over."""


SILENT = Reporter()
