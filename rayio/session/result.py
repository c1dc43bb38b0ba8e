"""A run that is over, as an object."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayio.analyze.summary import summary
from rayio.errors import StorageError
from rayio.results.metrics import HEADLINE
from rayio.trace.store import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

_OPTIONAL = (int, float, type(None))
#: What every result has: keys, their types, and those in words.
_KINDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("exit_code", int, "a number"),
    *((key, _OPTIONAL, "a number or null") for key in HEADLINE),
    *((key, dict, "an object") for key in ("time", "share", "percentiles")),
    ("notes", list, "a list"),
)


@dataclass(frozen=True)
class Run:
    """A run that is over, or was cut short: its directory and its numbers."""

    directory: RunDirectory

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open an existing run directory, by its path or address.

        Raises:
            StorageError: no run is there, or it is damaged.
        """
        return cls(RunDirectory.open(path))

    @property
    def path(self) -> Path:
        """Where the run directory is on this machine.

        Raises:
            StorageError: it is somewhere else; see :attr:`address`.
        """
        return self.directory.path

    @property
    def address(self) -> str:
        """Where the run directory is: a path, or an address such as ``s3://bucket/runs/one``."""
        return self.directory.address

    @property
    def result(self) -> dict[str, Any]:
        """Everything in result.json.

        Raises:
            StorageError: the run broke off before its numbers were made.
        """
        result = self.directory.result
        if result is None:
            raise StorageError(f"{self.address} has no result.json: the run broke off, or is still under way")
        if result.get("version") != 1:
            raise StorageError(
                f"{self.address}/result.json has version {result.get('version')!r}; it takes the rayio that wrote it"
            )
        for key, kind, what in _KINDS:
            if not isinstance(value := result.get(key), kind):
                said = f"{key} is {json.dumps(value)[:40]}" if key in result else f"it has no {key}"
                raise StorageError(f"{self.address}/result.json: {said}, expected {what}: the file is damaged")
        return result

    @property
    def au(self) -> float | None:
        """Accelerator utilisation, 0 to 1: mean over ranks; None when the run was too short to say."""
        au: float | None = self.result["au"]
        return au

    @property
    def exit_code(self) -> int:
        """0 done, 3 expectations unmet, 4 ledger uneven; others when it was cut short."""
        return int(self.result["exit_code"])

    def spans(self) -> pd.DataFrame:
        """Give every span as a row, sorted by start; times in nanoseconds (columns: see ``rayio.trace.span``)."""
        frame: pd.DataFrame = self.directory.spans().to_pandas()
        return frame

    def summary(self) -> str:
        """Write the numbers as one screen of text."""
        result = self.result
        if damaged := self.directory.damaged_files():
            lost = f"{', '.join(damaged[:4])}: damaged, its spans are lost (the numbers are those of the run)"
            result["notes"] = [*result.get("notes", ()), lost]
        return summary(
            result,
            run=self.directory.shown,
            dropped_samples=result.get("dropped_samples_per_epoch", 0),
            capped_samples=result.get("capped_samples_per_epoch", 0),
        )
