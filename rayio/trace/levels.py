"""How finely a run is traced: what a role's recorder keeps at each level."""

from __future__ import annotations

from typing import Any

from rayio.trace.recorder import Recorder
from rayio.trace.rows import Wide

#: Trace levels, from the coarsest.
LEVELS = ("none", "step", "batch", "sample", "io")


class Lives(Recorder):
    """Stands before a recorder and lets nothing through but lives (and what was lost of them)."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def register(self, role: str, index: str, node: int, pid: int | None = None) -> int:
        """Register with the recorder behind."""
        return self._recorder.register(role, index, node, pid)

    def add(self, writer: int, name: str, *span: Any) -> None:
        """Pass a life on."""
        if name in ("life", "lost"):
            self._recorder.add(writer, name, *span)

    def add_wide(self, span: Wide) -> None:
        """Pass on that readers came or went: what they cost is known at every level."""
        if span.name == "scale":
            self._recorder.add_wide(span)


def narrowed(recorder: Recorder, role: str, level: str) -> Recorder:
    """Narrow a role's recorder to a level: ``none`` keeps lives alone, ``step`` also all that ranks record."""
    if level == "none" or (level == "step" and role != "rank"):
        return Lives(recorder)
    return recorder
