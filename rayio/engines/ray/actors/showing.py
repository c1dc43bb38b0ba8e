"""Live state of a run from the collector: levels of its actors, data wait by stage, metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import ray
from ray.util.metrics import Counter, Gauge

from rayio.analyze.waits import EVERY_SECONDS, LATE_SECONDS, Waits
from rayio.analyze.watching import Watched
from rayio.engines.ray.cluster.address import joined
from rayio.model.queue_levels import Levels, together
from rayio.records.running import COMMON, METRICS, Live, samples

if TYPE_CHECKING:
    import pyarrow as pa

#: Seconds between two updates of the metrics; by default Ray reads them every 10 s.
METRICS_SECONDS = 1.0


def metrics_address(node_id: str) -> str | None:
    """Return the address of a node's metrics in Ray; None if it serves none (port -1 or 0)."""
    for node in ray.nodes():
        if node["NodeID"] == node_id and int(node.get("MetricsExportPort") or 0) > 0:
            return f"http://{joined(node['NodeManagerAddress'], node['MetricsExportPort'])}/metrics"
    return None


class Exposed:
    """The metrics of a run, registered in Ray, which serves them on each node."""

    def __init__(self, live: Live) -> None:
        common = {"run": _ascii(live.run), "scenario": _ascii(live.scenario)}
        self._metrics: dict[str, Any] = {
            name: (Counter if metric.kind == "counter" else Gauge)(
                name, description=metric.about, tag_keys=(*COMMON, *metric.labels)
            ).set_default_tags(common)
            for name, metric in METRICS.items()
        }
        #: The value of each counter.
        self._counted: dict[tuple[str, tuple[str, ...]], float] = {}

    def show(self, live: Live) -> None:
        """Set the gauges, and advance the counters to their values."""
        for name, values, number in samples(live):
            tags = dict(zip(METRICS[name].labels, values, strict=True))
            if METRICS[name].kind == "gauge":
                self._metrics[name].set(number, tags)
            elif (more := number - self._counted.get((name, values), 0)) > 0:
                self._metrics[name].inc(more, tags)
                self._counted[name, values] = number


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


class Showing:
    """The current state of a run. Without a metrics server no metrics are created."""

    def __init__(self, begun: Live, *, payload: bool) -> None:
        self._waits = Waits(payload=payload)
        self._watched = Watched(begun)
        self._exposed: Exposed | None = None
        if metrics_address(ray.get_runtime_context().get_node_id()) is not None:
            with suppress(Exception):  # a run does not fail because of its monitoring
                self._exposed = Exposed(begun)
        self._levels: dict[str, Levels] = {}
        self._began = self._charged = self._shown = time.monotonic()

    def add(self, table: pa.Table) -> None:
        """Add spans."""
        self._waits.add(table)

    def level(self, actor: str, levels: Levels) -> None:
        """Record the levels of an actor's queues and the consumption of its ranks."""
        self._levels[actor] = levels

    def died(self, actor: str) -> None:
        """Forget the levels of a dead actor's queues."""
        self._levels.pop(actor, None)

    def look(self, progress: Mapping[str, Any], now_ns: int, *, is_last: bool = False) -> dict[str, Any]:
        """Return the sums over spans with all other live state; ``now_ns`` is in the run's clock."""
        now = time.monotonic()
        if is_last or now - self._charged >= EVERY_SECONDS:
            self._charged = now
            self._waits.charge(now_ns - (0 if is_last else round(LATE_SECONDS * 1e9)))
        state = {**progress, "levels": together(self._levels.values()), "waits": self._waits.seconds}
        if self._exposed is not None and (is_last or now - self._shown >= METRICS_SECONDS):
            self._shown = now
            updated = datetime.now(UTC).isoformat(timespec="seconds")
            try:
                self._exposed.show(self._watched.look(state, now - self._began, updated))
            except Exception:  # of another version of Ray
                self._exposed = None
        return state
