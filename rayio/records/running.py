"""A run while it goes: the record of how far it is, and the metrics that Prometheus can ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rayio.records.record import Record, value

#: What has a run print a line with its record now and then, and how these begin: a job's output is all that its
#: cluster gives out of it.
LIVE_VARIABLE, LIVE_LINE = "RAYIO_LIVE", "rayio-live: "

#: What a run may be.
STARTING, RUNNING, OVER, GONE = "starting", "running", "over", "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveQueues(Record):
    """What the prefetch queues of all ranks hold together."""

    ready: int = value("batches that are read and wait for their ranks")
    leased: int = value("batches that readers have been asked for and have not delivered")
    in_flight_bytes: int = value("bytes of both", "bytes")
    readers: int = value("readers that these queues have")
    busy_readers: int = value("readers that have something to read")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecent(Record):
    """The last seconds of a run."""

    seconds: float = value("how long they are", "s")
    au: float | None = value("share of the ranks' time that is compute", "fraction", default=None)
    samples_per_second: float | None = value("samples that ranks got", "samples/s", default=None)
    bytes_per_second: float | None = value("bytes of the batches that ranks got", "bytes/s", default=None)
    steps_per_second: float | None = value("steps of all ranks together", "steps/s", default=None)
    shares: dict[str, float] = value("what the ranks' time was spent on, by span; they sum to 1", "fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live(Record):
    """How far a run is: what ``top`` prints, and what is in ``live.json`` while a run goes."""

    state: str = value("starting, running, over, or gone (it was killed and has no result)")
    run: str = value("name of the run directory")
    scenario: str = value("name of the scenario")
    engine: str = value("ray or local")
    started: str = value("when the command began, in UTC")
    updated: str = value("when this was written, in UTC")
    pid: int = value("process of the run's command")
    boot_id: str = value("the boot of the machine that it runs on, as the kernel says it")
    ranks: int = value("trainer ranks")
    planned_steps: int = value("steps of all ranks together that are planned", "steps")
    seconds: float = value("how long the ranks have been at work", "s", default=0.0)
    steps: int = value("steps of all ranks together whose compute is over", "steps", default=0)
    samples: int | None = value("samples that ranks got; null where nobody counts them", default=None)
    nbytes: int = value("bytes of the batches that ranks got", "bytes", default=0)
    spans: int = value("spans that were recorded", default=0)
    restarts: int = value("actors that died and were started again", default=0)
    time: dict[str, float] = value("what the ranks' time was spent on, by span, since the begin", "s")
    waits: dict[str, float] = value(
        "the ranks' data_wait by what it was spent on, as rayio explain has it; some seconds late, on Ray alone", "s"
    )
    queues: LiveQueues | None = value("what the prefetch queues hold; null of loaders with none of ours", default=None)
    recent: LiveRecent | None = value("the last seconds; null before there are two looks", default=None)
    exit_code: int | None = value("exit code of the run; null while it goes", default=None)
    error: str | None = value("why it broke off", default=None)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, as Prometheus has it."""

    #: ``counter`` only grows, ``gauge`` is what is so at the moment.
    kind: str
    about: str
    #: What it is told apart by, beside the run.
    labels: tuple[str, ...] = ()


#: Labels of every metric: name of the run directory, and of the scenario.
COMMON = ("run", "scenario")
#: What Ray puts before every name that it serves.
PREFIX = "ray_"

#: Every metric of a run on Ray, by the name under which rayio gives it to Ray.
METRICS: dict[str, Metric] = {
    "rayio_planned_steps": Metric("gauge", "steps of all ranks together that are planned"),
    "rayio_steps_total": Metric("counter", "steps of all ranks together whose compute is over"),
    "rayio_samples_total": Metric("counter", "samples that ranks got, those of evaluations too"),
    "rayio_delivered_bytes_total": Metric("counter", "bytes of the batches that ranks got for training"),
    "rayio_rank_seconds_total": Metric(
        "counter",
        "what the ranks' time was spent on: `compute`, `data_wait`, `sync`, `checkpoint` and others",
        ("activity",),
    ),
    "rayio_data_wait_seconds_total": Metric(
        "counter", "the ranks' data wait by what it was spent on, as `rayio explain` has it; some seconds late",
        ("stage",),
    ),
    "rayio_au_ratio": Metric("gauge", "accelerator utilisation of the last 10 seconds, 0 to 1"),
    "rayio_samples_per_second": Metric("gauge", "samples that ranks got, in the last 10 seconds"),
    "rayio_ranks": Metric("gauge", "trainer ranks"),
    "rayio_readers": Metric("gauge", "readers"),
    "rayio_busy_readers": Metric("gauge", "readers that have something to read"),
    "rayio_queue_depth_batches": Metric("gauge", "batches that are read and wait for their ranks"),
    "rayio_leased_batches": Metric("gauge", "batches that readers have been asked for and have not delivered"),
    "rayio_in_flight_bytes": Metric("gauge", "bytes of the batches that are leased or ready"),
    "rayio_restarts_total": Metric("counter", "actors that died and were started again"),
    "rayio_spans_total": Metric("counter", "spans that were recorded"),
}  # fmt: skip

#: Values of metrics: name, values of its own labels, number.
Sample = tuple[str, tuple[str, ...], float]


def samples(live: Live) -> Iterator[Sample]:
    """The value of every metric that a run has at the moment; what is not known has none."""
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
    """The metrics as a page has them: under the names that Ray serves."""
    lines = ["| metric | labels | kind | what it says |", "|---|---|---|---|"]
    for name, one in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in one.labels) or "-"
        lines.append(f"| `{PREFIX}{name}` | {labels} | {one.kind} | {one.about} |")
    return "\n".join(lines)
