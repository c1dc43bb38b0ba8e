"""A calibrated scenario with its sentences: its file, its JSON, and its form in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rayio.predict.calibrate import Learned
from rayio.report.text import calibration, doubts, notebook
from rayio.scenario.write import to_yaml
from rayio.storage.stores.refusals import write_text


@dataclass(frozen=True)
class Calibration(Learned):
    """A scenario learned from a run, with a sentence for each note and doubt."""

    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, learned: Learned) -> Calibration:
        """Return what was learned, with its sentences."""
        notes = tuple(map(calibration.worded, learned.records))
        return cls(learned.scenario, learned.records, doubts.worded(learned.doubts), notes)

    def to_yaml(self) -> str:
        """Return the text of a scenario file, with the notes as comments at its top."""
        return "".join(f"# {' '.join(note.split())}\n" for note in self.notes) + to_yaml(self.scenario)

    def as_json(self, file: str | Path | None = None) -> dict[str, Any]:
        """Return the output of ``rayio calibrate --json``; ``file`` is the written one."""
        scenario = yaml.safe_load(to_yaml(self.scenario))
        path = None if file is None else str(file)
        shown = [doubt.as_json() for doubt in self.doubts]
        return {"file": path, "notes": [*self.notes], "doubts": shown, "scenario": scenario}

    def __str__(self) -> str:
        return self.to_yaml()

    def _repr_html_(self) -> str:
        """Return the doubts, the notes and the file for a notebook."""
        lines = [*(f"warning: {doubt.sentence}" for doubt in self.doubts), *self.notes]
        return notebook.file_html(lines, self.to_yaml())

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all; one that is there is replaced.

        Raises:
            StorageError: it cannot be written there.
        """
        write_text(path, self.to_yaml())
