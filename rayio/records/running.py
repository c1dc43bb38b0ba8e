"""A live run: the record of its progress, and its metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rayio.records.record import Record, record, value

#: Variable that makes a run print its progress, and the prefix of these lines: a cluster only gives a job's output.
LIVE_VARIABLE, LIVE_LINE = "RAYIO_LIVE", "rayio-live: "

STARTING, RUNNING, OVER, GONE = "starting", "running", "over", "gone"


@record
class LiveQueues(Record):
    """The content of all ranks' prefetch queues."""

    ready: int = value("batches ready for their ranks")
    leased: int = value("batches requested from workers and not delivered")
    in_flight_bytes: int = value("bytes of both", "bytes")
    readers: int = value("workers of these queues")
    busy_readers: int = value("workers with something to read")


@record
class LiveRecent(Record):
    """The last seconds of a run."""

    seconds: float = value("length of this period", "s")
    au: float | None = value("compute, of the ranks' time", "fraction", default=None)
    samples_per_second: float | None = value("samples delivered", "samples/s", default=None)
    bytes_per_second: float | None = value("bytes of batches delivered", "bytes/s", default=None)
    steps_per_second: float | None = value("steps, all ranks", "steps/s", default=None)
    shares: dict[str, float] = value("shares of the ranks' time by span, which sum to 1", "fraction")


@record
class Live(Record):
    """The progress of a run: the output of ``top``, and ``live.json`` during the run."""

    state: str = value("starting, running, over, or gone (killed without a result)")
    run: str = value("name of the run directory")
    scenario: str = value("name of the scenario")
    engine: str = value("ray or local")
    started: str = value("start of the command, in UTC")
    updated: str = value("time of this progress, in UTC")
    pid: int = value("process id of the run's command")
    boot_id: str = value("the kernel's boot id of its machine")
    ranks: int = value("trainer ranks")
    planned_steps: int = value("planned steps, all ranks", "steps")
    seconds: float = value("time since the ranks started", "s", default=0.0)
    steps: int = value("computed steps, all ranks", "steps", default=0)
    samples: int | None = value("samples delivered, once for all ranks of a replica; null if not counted", default=None)
    ranks_of_sample: int = value("ranks that read each sample: those of one replica of the model", default=1)
    nbytes: int = value("bytes of batches delivered", "bytes", default=0)
    spans: int = value("recorded spans", default=0)
    restarts: int = value("actors restarted after they died", default=0)
    time: dict[str, float] = value("time of the ranks by span, since the start", "s")
    waits: dict[str, float] = value(
        "the ranks' data_wait by stage, as in rayio explain; some seconds late, only on Ray", "s"
    )
    queues: LiveQueues | None = value("content of the prefetch queues; null for loaders without them", default=None)
    recent: LiveRecent | None = value("the last seconds; null at first", default=None)
    exit_code: int | None = value("exit code of the run; null during the run", default=None)
    error: str | None = value("error of a failed run", default=None)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of Prometheus."""

    #: ``counter`` (only grows) or ``gauge`` (the current value).
    kind: str
    about: str
    labels: tuple[str, ...] = ()


#: Labels of every metric: name of the run directory, and of the scenario.
COMMON = ("run", "scenario")
PREFIX = "ray_"

#: Every metric of a run on Ray, by rayio's name.
METRICS: dict[str, Metric] = {
    "rayio_planned_steps": Metric("gauge", "planned steps, all ranks"),
    "rayio_steps_total": Metric("counter", "computed steps, all ranks"),
    "rayio_samples_total": Metric("counter", "samples delivered, for training and evaluation"),
    "rayio_delivered_bytes_total": Metric("counter", "bytes of batches delivered for training"),
    "rayio_rank_seconds_total": Metric(
        "counter", "time of the ranks: `compute`, `data_wait`, `sync`, `checkpoint` and others", ("activity",)
    ),
    "rayio_data_wait_seconds_total": Metric(
        "counter", "the ranks' data wait by stage, as in `rayio explain`; some seconds late", ("stage",)
    ),
    "rayio_au_ratio": Metric("gauge", "accelerator utilisation of the last 10 seconds, 0 to 1"),
    "rayio_samples_per_second": Metric("gauge", "samples delivered per second, in the last 10 seconds"),
    "rayio_ranks": Metric("gauge", "trainer ranks"),
    "rayio_readers": Metric("gauge", "workers"),
    "rayio_busy_readers": Metric("gauge", "workers with something to read"),
    "rayio_queue_depth_batches": Metric("gauge", "batches ready for their ranks"),
    "rayio_leased_batches": Metric("gauge", "batches requested from workers and not delivered"),
    "rayio_in_flight_bytes": Metric("gauge", "bytes of batches requested or ready"),
    "rayio_restarts_total": Metric("counter", "actors restarted after they died"),
    "rayio_spans_total": Metric("counter", "recorded spans"),
}  # fmt: skip

#: A value of a metric: name, values of its additional labels, number.
Sample = tuple[str, tuple[str, ...], float]


def samples(live: Live) -> Iterator[Sample]:
    """Iterate over the current values of all known metrics of a run."""
    plain: dict[str, float | None] = {
        "rayio_planned_steps": live.planned_steps,
        "rayio_steps_total": live.steps,
        "rayio_samples_total": live.samples,
        "rayio_delivered_bytes_total": live.nbytes,
        "rayio_ranks": live.ranks,
        "rayio_restarts_total": live.restarts,
        "rayio_spans_total": live.spans,
    }
    if (recent := live.recent) is not None:
        plain |= {"rayio_au_ratio": recent.au, "rayio_samples_per_second": recent.samples_per_second}
    if (queues := live.queues) is not None:
        plain |= {
            "rayio_readers": queues.readers,
            "rayio_busy_readers": queues.busy_readers,
            "rayio_queue_depth_batches": queues.ready,
            "rayio_leased_batches": queues.leased,
            "rayio_in_flight_bytes": queues.in_flight_bytes,
        }
    yield from ((name, (), number) for name, number in plain.items() if number is not None)
    yield from (("rayio_rank_seconds_total", (name,), seconds) for name, seconds in live.time.items())
    yield from (("rayio_data_wait_seconds_total", (name,), seconds) for name, seconds in live.waits.items())


def table() -> str:
    """Return the metrics as a table in Markdown, by the names that Ray serves."""
    lines = ["| metric | labels | kind | meaning |", "|---|---|---|---|"]
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{PREFIX}{name}` | {labels} | {metric.kind} | {metric.about} |")
    return "\n".join(lines)
