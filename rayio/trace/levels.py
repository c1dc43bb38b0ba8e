"""Trace levels: the spans that a role's recorder keeps."""

from __future__ import annotations

from typing import Any

from rayio.trace.recorder import Recorder
from rayio.trace.rows import Many, Wide


class Lives(Recorder):
    """A recorder that passes only lives and losses on to another recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def register(self, role: str, index: str, node: int, pid: int | None = None) -> int:
        """Register with the other recorder."""
        return self._recorder.register(role, index, node, pid)

    def add(self, writer: int, name: str, *span: Any) -> None:
        """Pass a life or a loss on."""
        if name in ("life", "lost"):
            self._recorder.add(writer, name, *span)

    def add_many(self, many: Many) -> None:
        """Keep no requests and delays."""

    def add_wide(self, span: Wide) -> None:
        """Pass a change of readers on: its cost is known at every level."""
        if span.name == "scale":
            self._recorder.add_wide(span)


def narrowed(recorder: Recorder, role: str, level: str) -> Recorder:
    """Return a role's recorder for a level: ``none`` keeps only lives, ``step`` also everything that ranks record."""
    if level == "none" or (level == "step" and role != "rank"):
        return Lives(recorder)
    return recorder
