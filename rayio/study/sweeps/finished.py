"""A sweep as a user has it: with its table as text, and its figures."""

from __future__ import annotations

from rayio.records.printed import escaped
from rayio.report.figures_page import Figures
from rayio.report.text.notebook import html
from rayio.report.text.sweep import text
from rayio.study.sweeps.sweep_page import drawn
from rayio.study.sweeps.swept import Swept


class Sweep(Swept):
    """A finished or interrupted sweep: its directory, the swept keys, and a row for every finished run."""

    def __repr__(self) -> str:
        missing = f", {self.missing} missing" if self.missing else ""
        means = [au for au in (point.mean("au") for point in self.points) if au is not None]
        au = f", AU {100 * min(means):.1f} to {100 * max(means):.1f} %" if means else ""
        over = f"{self.name} over {', '.join(self.keys)} on the {self.engine} engine"
        return escaped(f"<rayio.Sweep {over}: {len(self.rows)} runs{missing}{au}, in {self.path}>")

    def plot(self) -> Figures:
        """Return the figures of the sweep's page: a notebook shows them, and ``save`` writes them as a page."""
        return drawn(self)

    def __str__(self) -> str:
        return escaped(text(self.table)) if self.rows else repr(self)

    def _repr_html_(self) -> str:
        """Return the table and its conclusions for a notebook."""
        return html(f"{self}\n\n  {self.path}: sweep.html, sweep.csv, sweep.parquet")
