"""The report's figures alone, for a notebook or a separate page: the result of ``run.plot()``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rayio.report import sections
from rayio.report.content import Content
from rayio.report.markup import trouble
from rayio.report.page import document
from rayio.trace.run_directory import RunDirectory

#: Height of the frame in which a notebook shows them, in pixels, until it is fitted to them: for each figure, and for
#: the rest. Where a notebook runs no scripts, some room is left below.
FIGURE_HEIGHT, REST_HEIGHT = 330, 60
#: Fits the frame to its page: as it is loaded, and whenever a part of it is opened or wrapped differently.
FITTED = (
    "const page=this.contentDocument,main=page.querySelector('main'),fit=()=>{this.style.height="
    "main.getBoundingClientRect().bottom+24+'px'};page.documentElement.style.overflow='hidden';fit();"
    "new ResizeObserver(()=>setTimeout(fit)).observe(main)"
)


@dataclass(frozen=True, repr=False)
class Figures:
    """The figures of a run as one HTML document, without an address of anything outside."""

    name: str
    html: str

    def save(self, path: str | Path) -> Path:
        """Write them as a page, over an existing one, and return its path.

        Raises:
            OSError: it cannot be written.
        """
        target = Path(path)
        target.write_text(self.html, encoding="utf-8")
        return target

    def __repr__(self) -> str:
        return f"<figures of {self.name}: a notebook shows them; .save('figures.html') writes them as a page>"

    def _repr_html_(self) -> str:
        """Return a frame for a notebook, so that the report's style applies to nothing else."""
        height = REST_HEIGHT + FIGURE_HEIGHT * self.html.count("<h3>")
        return (
            f'<iframe title="{escape(repr(self), quote=True)}" srcdoc="{escape(self.html, quote=True)}" '
            f'style="width:100%;height:{height}px;border:0" onload="{FITTED}"></iframe>'
        )


def drawn(directory: RunDirectory) -> Figures:
    """Return the figures of a run.

    Raises:
        StorageError: the run cannot be read.
    """
    content = Content.of(directory, simulate=False)
    name = content.result.scenario if content.result else content.scenario.name if content.scenario else "run"
    figures = [
        sections.over_time(content),
        sections.queue_depth(content),
        sections.readers(content),
        _headed("timeline", sections.timeline(content)),
        sections.step_times(content),
        _headed("ranks", sections.heat_map(content)),
    ]
    # The definitions that the report links to are not on this page.
    body = re.sub(r'<a class="t" href="#[^"]*">(.*?)</a>', r"\1", "".join(figures), flags=re.DOTALL)
    return Figures(name, document(name, f"<main>{trouble(content.trouble)}{body}</main>"))


def _headed(title: str, body: str) -> str:
    return f"<h3>{title}</h3>{body}" if body else ""
