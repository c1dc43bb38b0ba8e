"""Receivers of a command's progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayio.records.running import Live


class Reporter:
    """A receiver of progress that shows nothing; the command line's prints it."""

    def say(self, text: str) -> None:
        """Show a line."""

    def warn(self, text: str) -> None:
        """Show a warning."""

    def failed(self, text: str) -> None:
        """Show what a command that did not end well has left behind."""

    def live(self, text: str, share: float | None = None) -> None:
        """Show progress in place of the progress before; ``share`` is the part done, 0 to 1."""

    def progress(self, live: Live) -> None:
        """Show a run's progress, about once a second."""

    def generating(self, files: int, nbytes: int, of_files: int, of_bytes: int) -> None:
        """Show the progress of generating a dataset: files and bytes, written and in all."""

    def generated(self, path: str, written: tuple[int, int], reused: tuple[int, int]) -> None:
        """Show the finished dataset: files and bytes, written now and reused."""

    def done(self) -> None:
        """End the live progress."""


SILENT = Reporter()
