"""A finished run as an object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rayio.errors import RayioError, StorageError
from rayio.records.printed import escaped
from rayio.records.run_result import RunResult
from rayio.report.text.notebook import html
from rayio.report.text.summary import summary
from rayio.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

    from rayio.records.explained import Explained
    from rayio.report.figures_page import Figures


@dataclass(frozen=True, repr=False)
class Run:
    """A finished or interrupted run: its directory and its results. A notebook shows its summary."""

    directory: RunDirectory

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Return the run of an existing run directory, by its path or address.

        >>> run = rayio.simulate("unet3d-small", out="runs/opened")
        >>> rayio.Run.open("runs/opened").result == run.result
        True

        Raises:
            StorageError: there is no run, or it is damaged.
        """
        return cls(RunDirectory.open(path))

    @property
    def path(self) -> Path:
        """The path of the run directory.

        Raises:
            StorageError: it is not on this machine; see :attr:`address`.
        """
        return self.directory.path

    @property
    def address(self) -> str:
        """The run directory's path, or address such as ``s3://bucket/runs/one``."""
        return self.directory.address

    @property
    def result(self) -> RunResult:
        """The content of result.json: ``run.result.ledger.even``, or by key, ``run.result["ledger"]["even"]``.

        Raises:
            StorageError: the run failed before it had results, or the file is damaged.
        """
        result = self.directory.result
        if result is None:
            raise StorageError(f"{self.address} has no result.json: the run failed, or is still running")
        return result

    @property
    def au(self) -> float | None:
        """The accelerator utilisation, 0 to 1, as mean over ranks; None if the run was too short."""
        return self.result.au

    @property
    def exit_code(self) -> int:
        """The exit code: 0 done, 3 expectations unmet, 4 samples not delivered exactly once, others if interrupted."""
        return self.result.exit_code

    def spans(self) -> pd.DataFrame:
        """Return the spans as rows, sorted by start, with times in nanoseconds (columns: see ``rayio.trace.span``)."""
        frame: pd.DataFrame = self.directory.spans().to_pandas()
        return frame

    def plot(self) -> Figures:
        """Return the report's figures of this run: a notebook shows them, and ``save`` writes them as a page.

        >>> rayio.simulate("unet3d-small", out="runs/drawn").plot().save("figures.html").name
        'figures.html'

        Raises:
            StorageError: the run cannot be read.
        """
        from rayio.report.figures_page import drawn

        return drawn(self.directory)

    def explain(self, *, simulate: bool = True, whole: bool = False, target_au: float | None = None) -> Explained:
        """Return where time was lost and what would help; see :func:`rayio.explain`."""
        from rayio.report.explain import explain

        return explain(self.address, simulate=simulate, whole=whole, target_au=target_au)

    def __repr__(self) -> str:
        try:
            result = self.result
        except RayioError as error:
            return escaped(f"<rayio.Run {self.address}: {error}>")
        au = "no step measured" if result.au is None else f"AU {100 * result.au:.1f} %"
        ending = f", exit code {result.exit_code}" if result.exit_code else ""
        first = summary(result).partition("\n")[0]
        return escaped(f"<rayio.Run {first}, {au}{ending}, in {self.address}>")

    def _repr_html_(self) -> str:
        try:
            return html(self.summary())
        except RayioError:
            return html(repr(self))

    def summary(self) -> str:
        """Return the results as one screen of text."""
        result = self.result
        if damaged := self.directory.damaged_files():
            lost = f"{', '.join(damaged[:4])}: damaged, its spans are lost (the metrics are complete)"
            result = replace(result, notes=(*result.notes, lost))
        return summary(result, run=self.directory.shown)
