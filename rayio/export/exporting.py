"""Export of a run: the selected spans, to files or a collector, with counts of spans recorded, stored and exported."""

from __future__ import annotations

import contextlib
import gzip
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rayio.errors import ExportError
from rayio.export import select
from rayio.export.spans import MANY_SPANS, Origin, Spans
from rayio.export.trace_kinds import of_steps
from rayio.export.traces import epoch_ns, run_key, spans_of
from rayio.files import replacing
from rayio.reporter import SILENT, Reporter
from rayio.storage.stores.refusals import unwritten
from rayio.trace.run_directory import RunDirectory
from rayio.units import format_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from rayio.export.collectors.pauses import Patience
    from rayio.export.collectors.sending import Request, Sender, Sent


@dataclass(frozen=True)
class Chosen:
    """The selected spans of a run."""

    directory: RunDirectory
    table: pa.Table
    selection: str
    #: Spans recorded; None if unknown (the run failed, or is another tool's).
    recorded: int | None
    stored: int
    steps: int | None
    reporter: Reporter = SILENT

    @classmethod
    def of(cls, directory: RunDirectory, selection: str, reporter: Reporter = SILENT) -> Chosen:
        """Return the selected spans of a run.

        Raises:
            ExportError: the selection is invalid, or no recorded span is readable.
            StorageError: the run is unreadable.
        """
        words = select.parse(selection)
        table = directory.spans()
        steps = select.chosen(table, words)
        result = directory.result
        recorded = result.trace.recorded if result and result.trace else None
        if not len(table) and (recorded or directory.lost_files):
            lost = f"damaged: {', '.join(directory.lost_files[:3])}" if directory.lost_files else "there is no file"
            raise ExportError(f"{directory.address}/spans: nothing to export, because no span is readable ({lost})")
        kept = of_steps(table, steps)
        return cls(directory, kept, selection, recorded, len(table), None if steps is None else len(steps), reporter)

    @cached_property
    def run(self) -> str:
        """The root of all ids."""
        return run_key(self.directory.info)

    @cached_property
    def origin(self) -> Origin:
        """The run as named in its spans' resources."""
        return Origin.of(self.directory.name, self.directory.info)

    @cached_property
    def spans(self) -> Spans:
        """The spans in their traces."""
        return spans_of(self.table, self.run, epoch_ns(self.directory.info))

    def counts(self) -> str:
        """Return text on the numbers of spans recorded, stored and selected."""
        known = "unknown" if self.recorded is None else f"{self.recorded}"
        chosen = "all selected"
        if self.steps is not None:
            steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
            chosen = f"{len(self.table)} selected: {steps} ({self.selection}) and spans without a step"
        return f"spans: {known} recorded, {self.stored} stored, {chosen}"

    def warnings(self) -> Iterator[str]:
        """Iterate over warnings about missing spans."""
        for name in self.directory.lost_files:
            yield f"{self.directory.address}/spans/{name} is damaged; its spans are left out"
        if not self.directory.lost_files and self.recorded not in (None, self.stored):
            yield f"spans are lost: {self.recorded} were recorded, {self.stored} are stored"
        if not self.stored:
            yield "the run has no spans"

    def big_traces(self) -> Iterator[str]:
        """Iterate over warnings about traces that are too large for viewers."""
        sizes = self.spans.trace_sizes
        if number := int((sizes > MANY_SPANS).sum()):
            yield many_spans(number, int(sizes.max()))


def many_spans(number: int, largest: int) -> str:
    """Return a warning about traces that are too large for viewers."""
    return (
        f"viewers are slow with large traces: {number} have more than {MANY_SPANS} spans (the largest {largest}); "
        "use a coarser trace.level"
    )


def export_again(path: str, sender: Sender, selection: str | None) -> str:
    """Return the command that sends a run's spans to the same collector."""
    chosen = f" --select {shlex.quote(selection)}" if selection else ""
    return f"rayio export {shlex.quote(path)} {sender.option}{chosen}"


def send(chosen: Chosen, sender: Sender, patience: Patience | None = None) -> Sent:
    """Send the selected spans to a collector and return counts; failures are counted, not raised."""
    from rayio.export import otlp
    from rayio.export.collectors.sending import send_all

    def with_progress() -> Iterator[Request]:
        sent = 0
        for request in otlp.requests(chosen.spans, chosen.origin):
            chosen.reporter.live(f"export: {sent:,} of {len(chosen.spans):,} spans sent", sent / len(chosen.spans))
            yield request
            sent += request.spans + request.added

    return send_all(sender, with_progress(), patience)


def write_perfetto(chosen: Chosen, path: Path, *, force: bool = False) -> int:
    """Write a Perfetto trace; return the number of slices (spans without those of :data:`NOT_DRAWN`)."""
    from rayio.export import perfetto

    slices = perfetto.Slices(chosen.table)
    _write(path, _with_progress(chosen, path, slices.pieces(), len(slices) / perfetto.CHUNK), force)
    return len(slices)


#: Spans without a slice in a Perfetto trace.
NOT_DRAWN = "lives of actors, overhead, spans of no duration"


def write_json(chosen: Chosen, path: Path, *, force: bool = False) -> int:
    """Write OTLP JSON lines; return the number of the run's spans."""
    from rayio.export.text import LINE_SPANS, json_lines

    lines = len(chosen.spans.resources) + len(chosen.spans) / LINE_SPANS

    _write(path, _with_progress(chosen, path, json_lines(chosen.spans, chosen.origin), lines), force)
    return len(chosen.table)


def write_csv(chosen: Chosen, path: Path, *, force: bool = False) -> int:
    """Write CSV; return the number of rows."""
    from rayio.export.text import CSV_ROWS, csv

    _write(path, _with_progress(chosen, path, csv(chosen.table, chosen.spans), len(chosen.table) / CSV_ROWS), force)
    return len(chosen.table)


def _with_progress(chosen: Chosen, path: Path, parts: Iterator[bytes], expected: float) -> Iterator[bytes]:
    """Iterate over the parts of a file, about ``expected`` ones, and report the progress."""
    written = 0
    for number, part in enumerate(parts):
        chosen.reporter.live(f"export: {format_bytes(written)} into {path}", min(number / (expected + 1), 1.0))
        yield part
        written += len(part)


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a target that must not be replaced.

    Raises:
        ExportError: it is a folder, or it exists and ``force`` is not set.
    """
    if path.is_dir():
        raise ExportError(f"{path} is a folder; give the name of a file")
    if os.path.lexists(path) and not force:
        raise ExportError(f"{path} exists; replace it with --force")


def _write(path: Path, parts: Iterator[bytes], force: bool) -> None:
    """Write a file, complete or not at all; compressed if its name ends in ``.gz``."""
    check_target(path, force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, path.with_name(f"{path.name}.tmp")) as partial, _opened(partial, path) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise ExportError(str(unwritten(error, path, "path"))) from None


@contextlib.contextmanager
def _opened(partial: Path, path: Path) -> Iterator[IO[bytes]]:
    with partial.open("wb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", 3, file, 0) as packed:
            yield packed  # type: ignore[misc]
