"""Export of spans to a collector during a run: they are read from span files, so no role waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayio.export import otlp
from rayio.export.collectors.pauses import Patience
from rayio.export.collectors.sending import Sender, Sent, send_all
from rayio.export.exporting import export_again, many_spans
from rayio.export.follow import Following
from rayio.export.select import parse_live
from rayio.export.spans import MANY_SPANS, Origin
from rayio.export.trace_kinds import batches_made, trace_keys
from rayio.export.traces import spans_of
from rayio.trace.arrow import empty_table, rows
from rayio.trace.span_files import DamagedError, SpanFile

if TYPE_CHECKING:
    import pyarrow as pa

    from rayio.trace.run_directory import RunDirectory

#: Seconds between two searches for new files.
LOOK_SECONDS = 1.0
#: The most spans of incomplete traces in memory; beyond, they are dropped from this export.
HELD_SPANS = 1 << 20
#: Seconds for the remaining spans when the run is over.
FINISH_SECONDS = 10.0
#: Seconds without sending after a failed request.
QUIET_SECONDS = 30.0


class LiveExport:
    """A thread that sends a run's spans from its files; failures are counted, never raised.

    A trace is sent once a new file has no span of it (about two files late), or at the end; with a selection, once
    every rank has passed its step.
    """

    def __init__(
        self,
        directory: RunDirectory,
        run_id: str,
        sender: Sender,
        patience: Patience | None = None,
        *,
        selection: str = "all",
        world_size: int = 0,
        info: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._directory = directory
        self._run_id = run_id
        self._sender = sender
        self._patience = patience or Patience(tries=3)
        #: Returns the content of run.json so far.
        self._info = info
        self._selection = selection
        words = parse_live(selection)
        self._is_all = "all" in words
        self._following = Following(words, world_size)
        #: Spans of steps outside the selection.
        self.left_out = 0
        #: Number of traces too large for viewers, and the size of the largest.
        self._big = self._largest = 0
        self.sent = Sent()
        self._read: set[Path] = set()
        self._waiting: pa.Table = empty_table()
        self._has_batches = False
        #: Ids of the added roots and ranks already sent: late spans of their traces go without them.
        self._added = np.zeros(0, np.uint64)
        self._quiet_until = 0.0
        self._over, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rayio-live-export", daemon=True)

    def start(self) -> None:
        """Start to follow the run."""
        self._thread.start()

    def finish(self, stored: int, seconds: float = FINISH_SECONDS) -> str:
        """Send the remaining spans for at most ``seconds`` and return text on the outcome; ``stored`` is their number.

        Call it when every span is in a file, before the files are compacted.
        """
        self._over.set()
        self._thread.join(seconds)
        self._stop.set()
        self._thread.join(seconds)
        target, sent = self._sender.target, self.sent
        failed = stored - sent.spans - self.left_out
        others = "" if self._is_all else f", {self.left_out} belong to steps outside --select {self._selection}"
        if not failed and not sent.rejected:
            return f"{sent.spans} spans were exported to {target} during the run{others}"
        why = f" ({sent.why})" if sent.why else ""
        again = export_again(self._directory.address, self._sender, None if self._is_all else self._selection)
        done = "" if self._is_all else f", {sent.spans} were{others}"
        return f"{failed} of {stored} spans were not exported to {target}{why}{done}; the run has all spans: {again}"

    def counts(self) -> dict[str, int]:
        """Return the numbers of spans for ``result.json``."""
        return {"exported": self.sent.spans} | ({} if self._is_all else {"not_selected": self.left_out})

    def big_traces(self) -> str | None:
        """Return a warning about sent traces that are too large for viewers; None if there is none."""
        return many_spans(self._big, self._largest) if self._big else None

    def _follow(self) -> None:
        try:
            while not self._over.wait(LOOK_SECONDS):
                self._look()
            self._look()
            taken, others = self._following.sort(self._waiting, is_over=True)
            self._leave_out(others)
            self._send(rows(self._waiting, taken))
        except Exception as error:  # a failed export must not fail the run
            self.sent.why = self.sent.why or f"{type(error).__name__}: {error}"
        finally:
            self._sender.close()

    def _look(self) -> None:
        import pyarrow as pa

        for path in self._directory.span_paths():
            if path in self._read:
                continue
            self._read.add(path)
            try:
                table = SpanFile(path).read()
            except DamagedError:
                continue
            self._has_batches = self._has_batches or batches_made(table)
            self._following.add(table)
            before, self._waiting = self._waiting, pa.concat_tables([self._waiting, table]).unify_dictionaries()
            keys = trace_keys(self._waiting)
            is_complete = ~np.isin(keys, np.unique(keys[len(before) :])) & (keys != 0) | (keys == 1)
            taken, others = self._following.sort(self._waiting)
            complete = rows(self._waiting, taken & is_complete)
            self._leave_out(others)
            self._waiting = rows(self._waiting, ~(taken & is_complete | others))
            if len(self._waiting) > HELD_SPANS:
                self.sent.why = self.sent.why or f"more than {HELD_SPANS} spans of incomplete traces"
                self._waiting = empty_table()
            self._send(complete)

    def _leave_out(self, others: NDArray[np.bool_]) -> None:
        self.left_out += int(others.sum())

    def _send(self, table: pa.Table) -> None:
        if not len(table) or self._stop.is_set() or time.monotonic() < self._quiet_until:
            return
        spans = spans_of(table, self._run_id, has_batches=self._has_batches)
        spans = spans.take(~(spans.is_added & np.isin(spans.span, self._added)))
        self._added = np.concatenate([self._added, spans.span[spans.is_added]])
        sizes = spans.trace_sizes
        self._big += int((sizes > MANY_SPANS).sum())
        self._largest = max(self._largest, int(sizes.max(initial=0)))
        requests = otlp.requests(spans, Origin.of(self._directory.name, self._info()))
        sent = send_all(self._sender, requests, self._patience, self._stop)
        if sent.unsent:
            self._quiet_until = time.monotonic() + QUIET_SECONDS
            if not self._over.is_set():
                self._stop.clear()
        self.sent += sent
