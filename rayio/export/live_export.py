"""A run's spans on their way to a collector while it goes: read from its span files, so that nobody waits for them."""

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

#: Seconds between two looks for new files.
LOOK_SECONDS = 1.0
#: Spans that are held until their trace is complete; beyond, they are left to a later export.
HELD_SPANS = 1 << 20
#: Seconds that are given to what is left when the run is over.
FINISH_SECONDS = 10.0
#: Seconds for which nothing is sent after a collector did not take something.
QUIET_SECONDS = 30.0


class LiveExport:
    """Sends the spans of a run from its files, in a thread of its own; what is not taken is counted, never raised.

    A trace is sent when a file came that had nothing more of it, so about two files late; the rest at the end. With a
    selection it is held until every rank has come past its step.
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
        #: What run.json will say of the run, as far as it is known.
        self._info = info
        self._selection = selection
        words = parse_live(selection)
        self._is_all = "all" in words
        self._following = Following(words, world_size)
        #: Spans of steps that the selection does not take.
        self.left_out = 0
        #: How many traces were too large to be looked at, and the largest.
        self._big = self._largest = 0
        #: What became of the spans that were tried; those never tried are missing in it.
        self.sent = Sent()
        self._seen: set[Path] = set()
        self._held: pa.Table = empty_table()
        self._has_batches = False
        #: Ids of the roots and ranks that were sent: what comes late of their trace goes without them.
        self._made = np.zeros(0, np.uint64)
        self._quiet_until = 0.0
        self._over, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rayio-live-export", daemon=True)

    def start(self) -> None:
        """Begin to follow the run."""
        self._thread.start()

    def finish(self, stored: int, seconds: float = FINISH_SECONDS) -> str:
        """Send what is left, for so many seconds at most, and say what became of all; ``stored`` spans there are.

        To be called when every span is in a file, and before the files are compacted.
        """
        self._over.set()
        self._thread.join(seconds)
        self._stop.set()
        self._thread.join(seconds)
        target, sent = self._sender.target, self.sent
        failed = stored - sent.spans - self.left_out
        others = "" if self._is_all else f", {self.left_out} are of steps not selected ({self._selection})"
        if not failed and not sent.rejected:
            return f"{sent.spans} spans were exported to {target} while the run went{others}"
        why = f" ({sent.why})" if sent.why else ""
        again = export_again(self._directory.address, self._sender, None if self._is_all else self._selection)
        done = "" if self._is_all else f", {sent.spans} were{others}"
        return f"{failed} of {stored} spans were not exported to {target}{why}{done}; the run has all: {again}"

    def counts(self) -> dict[str, int]:
        """The numbers of spans for ``result.json``."""
        return {"exported": self.sent.spans} | ({} if self._is_all else {"not_selected": self.left_out})

    def big_traces(self) -> str | None:
        """Warn of traces that are too large to be looked at, if some of those that were sent are."""
        return many_spans(self._big, self._largest) if self._big else None

    def _follow(self) -> None:
        try:
            while not self._over.wait(LOOK_SECONDS):
                self._look()
            self._look()
            taken, others = self._following.sort(self._held, is_over=True)
            self._leave_out(others)
            self._send(rows(self._held, taken))
        except Exception as error:  # a run does not fail because of who watches it
            self.sent.why = self.sent.why or f"{type(error).__name__}: {error}"
        finally:
            self._sender.close()

    def _look(self) -> None:
        """Take in new files; send the traces that the newest has nothing of."""
        import pyarrow as pa

        for path in self._directory.span_paths():
            if path in self._seen:
                continue
            self._seen.add(path)
            try:
                table = SpanFile(path).read()
            except DamagedError:
                continue
            self._has_batches = self._has_batches or batches_made(table)
            self._following.add(table)
            before, self._held = self._held, pa.concat_tables([self._held, table]).unify_dictionaries()
            keys = trace_keys(self._held)
            is_complete = ~np.isin(keys, np.unique(keys[len(before) :])) & (keys != 0) | (keys == 1)
            taken, others = self._following.sort(self._held)
            complete = rows(self._held, taken & is_complete)
            self._leave_out(others)
            self._held = rows(self._held, ~(taken & is_complete | others))
            if len(self._held) > HELD_SPANS:
                self.sent.why = self.sent.why or f"more than {HELD_SPANS} spans were of traces under way"
                self._held = empty_table()
            self._send(complete)

    def _leave_out(self, others: NDArray[np.bool_]) -> None:
        self.left_out += int(others.sum())

    def _send(self, table: pa.Table) -> None:
        if not len(table) or self._stop.is_set() or time.monotonic() < self._quiet_until:
            return
        spans = spans_of(table, self._run_id, has_batches=self._has_batches)
        spans = spans.take(~(spans.is_made & np.isin(spans.span, self._made)))
        self._made = np.concatenate([self._made, spans.span[spans.is_made]])
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
