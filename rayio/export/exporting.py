"""A run on its way out: what is chosen of it, where it goes, and how many spans were recorded, stored and exported."""

from __future__ import annotations

import contextlib
import gzip
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rayio.errors import ExportError
from rayio.export import select
from rayio.export.spans import MANY_SPANS, Origin, Spans
from rayio.export.trace_kinds import of_steps
from rayio.export.traces import epoch_ns, run_key, spans_of
from rayio.replacing import replacing
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
    """The spans of a run that a selection takes."""

    directory: RunDirectory
    table: pa.Table
    selection: str
    #: Spans recorded (None: not known, the run broke off or is another tool's), stored in files that can be read, and
    #: the steps taken (None: all).
    recorded: int | None
    stored: int
    steps: int | None
    #: Who is told how far an export of them is.
    reporter: Reporter = SILENT

    @classmethod
    def of(cls, directory: RunDirectory, selection: str, reporter: Reporter = SILENT) -> Chosen:
        """Read a run and choose.

        Raises:
            ExportError: the selection cannot be, or none of the spans that were recorded can be read.
            StorageError: the run cannot be read.
        """
        words = select.parse(selection)
        table = directory.spans()
        steps = select.chosen(table, words)
        result = directory.result
        recorded = result.trace.recorded if result and result.trace else None
        if not len(table) and (recorded or directory.lost_files):
            lost = f"damaged: {', '.join(directory.lost_files[:3])}" if directory.lost_files else "no file is there"
            raise ExportError(f"{directory.address}/spans: no span of the run can be read ({lost}); nothing to export")
        kept = of_steps(table, steps)
        return cls(directory, kept, selection, recorded, len(table), None if steps is None else len(steps), reporter)

    @cached_property
    def run(self) -> str:
        """What the ids are derived from."""
        return run_key(self.directory.info)

    @cached_property
    def origin(self) -> Origin:
        """The run, for whoever looks at its spans."""
        return Origin.of(self.directory.name, self.directory.info)

    @cached_property
    def spans(self) -> Spans:
        """The spans in their traces."""
        return spans_of(self.table, self.run, epoch_ns(self.directory.info))

    def counts(self) -> str:
        """Say how many spans were recorded, are stored, and are chosen."""
        known = "an unknown number of spans was" if self.recorded is None else f"{self.recorded} spans were"
        chosen = "all are chosen"
        if self.steps is not None:
            steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
            chosen = f"{len(self.table)} are chosen: {steps} ({self.selection}) and what is of no step"
        return f"{known} recorded, {self.stored} are stored, {chosen}"

    def warnings(self) -> Iterator[str]:
        """Say what is missing, and what viewers will not like."""
        for name in self.directory.lost_files:
            yield f"{self.directory.address}/spans/{name} is damaged; its spans are left out"
        if not self.directory.lost_files and self.recorded not in (None, self.stored):
            yield f"{self.recorded} spans were recorded and {self.stored} are stored: the others are lost"
        if not self.stored:
            yield "the run has no spans"

    def big_traces(self) -> Iterator[str]:
        """Warn of traces that are too large to be looked at."""
        sizes = self.spans.trace_sizes
        if number := int((sizes > MANY_SPANS).sum()):
            yield many_spans(number, int(sizes.max()))


def many_spans(number: int, largest: int) -> str:
    """Warn of traces that are too large to be looked at."""
    return (
        f"{number} traces have more than {MANY_SPANS} spans (the largest {largest}): viewers show them slowly; a "
        "coarser trace.level makes them smaller"
    )


def export_again(path: str, sender: Sender, selection: str | None) -> str:
    """The command that sends a run's spans to the same collector."""
    chosen = f" --select {shlex.quote(selection)}" if selection else ""
    return f"rayio export {shlex.quote(path)} {sender.option}{chosen}"


def send(chosen: Chosen, sender: Sender, patience: Patience | None = None) -> Sent:
    """Send what is chosen to a collector; what became of it is counted, not raised."""
    from rayio.export import otlp
    from rayio.export.collectors.sending import send_all

    def told() -> Iterator[Request]:
        sent = 0
        for request in otlp.requests(chosen.spans, chosen.origin):
            chosen.reporter.live(f"export: {sent:,} of {len(chosen.spans):,} spans sent", sent / len(chosen.spans))
            yield request
            sent += request.spans + request.made

    return send_all(sender, told(), patience)


def write_perfetto(chosen: Chosen, path: Path, *, force: bool = False) -> int:
    """Write a Perfetto trace; give the number of slices: the spans but those that :data:`NOT_DRAWN` names."""
    from rayio.export import perfetto

    slices = perfetto.Slices(chosen.table)
    _write(path, _telling(chosen, path, slices.pieces(), len(slices) / perfetto.CHUNK), force)
    return len(slices)


#: Which spans of a run are no slices of a Perfetto trace.
NOT_DRAWN = "lives, overshoot, what took no time"


def write_json(chosen: Chosen, path: Path, *, force: bool = False) -> int:
    """Write OTLP JSON lines; give the number of the run's spans in them."""
    from rayio.export.text import LINE_SPANS, json_lines

    lines = len(chosen.spans.resources) + len(chosen.spans) / LINE_SPANS

    _write(path, _telling(chosen, path, json_lines(chosen.spans, chosen.origin), lines), force)
    return len(chosen.table)


def write_csv(chosen: Chosen, path: Path, *, force: bool = False) -> int:
    """Write CSV; give the number of rows."""
    from rayio.export.text import CSV_ROWS, csv

    _write(path, _telling(chosen, path, csv(chosen.table, chosen.spans), len(chosen.table) / CSV_ROWS), force)
    return len(chosen.table)


def _telling(chosen: Chosen, path: Path, parts: Iterator[bytes], expected: float) -> Iterator[bytes]:
    """Pass on the parts of a file, of which about so many are expected, and tell how much was written."""
    written = 0
    for number, part in enumerate(parts):
        chosen.reporter.live(f"export: {format_bytes(written)} into {path}", min(number / (expected + 1), 1.0))
        yield part
        written += len(part)


#: What writes each kind of file.
Writer = Callable[..., int]


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a file that may not be written.

    Raises:
        ExportError: it is a folder, or it exists and ``force`` is not set.
    """
    if path.is_dir():
        raise ExportError(f"{path} is a folder; give the name of a file")
    if os.path.lexists(path) and not force:
        raise ExportError(f"{path} exists; --force replaces it")


def _write(path: Path, parts: Iterator[bytes], force: bool) -> None:
    """Write a file whole or not at all; one whose name ends in ``.gz`` is compressed.

    Raises:
        ExportError: it exists and ``force`` is not set, or cannot be written.
    """
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
