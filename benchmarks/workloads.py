"""Published workloads: what their profiles report about reading, and what the packaged scenarios do in simulation.

Shares of time and bytes are of the whole scenario. Sizes and order of requests are of its first steps, request by
request. The numbers are exact and the same on every machine; ``docs/workloads.md`` has them, and
``tests/test_workloads.py`` holds both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rayio
from rayio.data.formats import FORMATS, layout_of
from rayio.scenario.load import load

#: Overrides with which a workload makes few enough requests to itemise them.
FIRST: Mapping[str, Mapping[str, Any]] = {
    "imagenet": {"train.steps": 10}, "cosmic_tagger": {"train.steps": 10}, "ffn": {"train.steps": 100},
    "cosmoflow": {"train.steps": 40}, "candle_nt3": {"train.steps": 1, "train.epochs": 1},
    "hepcnn": {"train.steps": 10, "train.epochs": 1, "train.evaluate": None},
}  # fmt: skip


@dataclass(frozen=True)
class Whole:
    """A simulated workload: its time, its reads, and the samples that its ranks got, in bytes."""

    seconds: float
    ranks: int
    read_seconds: float
    nbytes: int
    delivered: int

    @property
    def share(self) -> float:
        """Percent of a rank's time that its reads take, hidden by prefetching or not."""
        return 100 * self.read_seconds / self.ranks / self.seconds


@dataclass(frozen=True)
class Itemised:
    """The first requests of a workload: sizes, and how many continue the one before in their file, in percent."""

    sizes: np.ndarray[Any, Any]
    consecutive: float

    def sized(self, nbytes: int) -> float:
        """Return the percentage of requests of a size."""
        return 100 * float(np.mean(self.sizes == nbytes))

    @property
    def median_kib(self) -> float:
        """The median size of a request."""
        return float(np.median(self.sizes)) / 1024


def whole(name: str, **keys: Any) -> Whole:
    """Simulate a workload as it is packaged."""
    with tempfile.TemporaryDirectory() as folder:
        run = rayio.simulate(name, keys, out=Path(folder, "run"))
        spans, seconds, books = run.spans(), run.result.wall_seconds, run.result.ledger
    assert seconds is not None
    assert books is not None
    reads = spans[spans.name == "read"]
    ranks = int(spans["rank"].max()) + 1
    return Whole(seconds, ranks, float(reads.duration_ns.sum()) / 1e9, int(reads.bytes.sum()), books.delivered_bytes)


def itemised(name: str) -> Itemised:
    """Simulate the first steps of a workload, request by request."""
    keys = {**FIRST[name], "train.warmup_steps": 0, "trace.level": "io"}
    with tempfile.TemporaryDirectory() as folder:
        spans = rayio.simulate(name, keys, out=Path(folder, "run")).spans()
    rows = spans[spans.name == "io.read"].sort_values("start_ns", kind="stable")
    end = (rows.offset + rows.bytes).groupby([rows["rank"], rows["index"], rows.file]).shift()
    follows = (rows.offset == end)[end.notna()]
    return Itemised(rows.bytes.to_numpy(), 100 * float(follows.mean()))


def file_mib(name: str) -> float:
    """Return the size of a workload's files in MiB."""
    scenario = load(name)
    layout = layout_of(scenario)
    sizes = FORMATS[scenario.dataset.format].file_bytes(layout, np.arange(1))
    return float(np.asarray(sizes)[0]) / (1 << 20)


@dataclass(frozen=True)
class Fact:
    """A published number, how it is shown, what comes out, and the verdict; ``agrees`` is held within 10 %."""

    what: str
    published: float
    shown: str
    verdict: str
    simulated: Callable[[Whole, Itemised], float]
    #: Whether the published number is a bound from above.
    bound: bool = False
    #: The published words where there is no number.
    said: str = ""

    def row(self, made: Whole, first: Itemised) -> tuple[str, str, str, str]:
        """Return the cells of the table: fact, published, simulated, verdict."""
        value = self.simulated(made, first)
        near = value <= self.published if self.bound else abs(value / self.published - 1) <= 0.1
        if self.verdict in ("agrees", "contradicts", "differs") and near != (self.verdict == "agrees"):
            raise ValueError(f"{self.what}: simulated {value}, published {self.published}: not {self.verdict}")
        published = self.said or ("< " if self.bound else "") + self.shown.format(self.published)
        return self.what, published, self.shown.format(value), self.verdict


def share(published: float, verdict: str, *, bound: bool = False) -> Fact:
    """A share of time, in percent."""
    return Fact("I/O share of time", published, "{:.2f} %", verdict, lambda made, _: made.share, bound)


def rate(published: float, verdict: str) -> Fact:
    """Bytes of requests by the time that they take, opens included."""
    return Fact(
        "rate of a request", published, "{:,.0f} MB/s", verdict, lambda made, _: made.nbytes / made.read_seconds / 1e6
    )


def sized(nbytes: int, published: float, verdict: str, said: str = "") -> Fact:
    """A share of requests of a size, in percent."""
    size = f"{nbytes >> 10} KiB" if nbytes % 1024 == 0 else f"{nbytes // 1000} kB"
    what = f"requests of {size}"
    return Fact(what, published, "{:.1f} %", verdict, lambda _, first: first.sized(nbytes), said=said)


CONSECUTIVE = Fact("consecutive requests", 100, "{:.1f} %", "agrees", lambda _, first: first.consecutive)
#: Published facts of each workload.
FACTS: Mapping[str, tuple[Fact, ...]] = {
    "imagenet": (
        share(7, "contradicts"),
        sized(256 << 10, 98, "agrees"),
        CONSECUTIVE,
        rate(1200, "input"),
        Fact("bytes read", 60.54, "{:.2f} GB", "contradicts", lambda made, _: made.nbytes / 1e9),
        Fact("read for each byte used", 1.55, "{:.2f}", "contradicts", lambda made, _: made.nbytes / made.delivered),
    ),
    "cosmic_tagger": (
        share(6, "contradicts"),
        sized(6000, 100, "input", "most (2 and 6 KB)"),
        CONSECUTIVE,
        rate(9, "differs"),
    ),
    "ffn": (
        share(7, "contradicts"),
        Fact("size of a request", 28, "{:.1f} KiB", "contradicts", lambda _, first: first.median_kib),
        rate(127.91, "differs"),
    ),
    "cosmoflow": (
        share(40, "assumed"),
        sized(256 << 10, 100, "input", "256 KB"),
        CONSECUTIVE,
        rate(2600, "contradicts"),
    ),
    "candle_nt3": (
        share(1, "agrees", bound=True),
        sized(256 << 10, 100, "input", "about 256 KB"),
        Fact("bytes read by a rank", 600, "{:.1f} MB", "agrees", lambda made, _: made.nbytes / made.ranks / 1e6),
        rate(400, "differs"),
    ),
    "hepcnn": (
        Fact("a file", 408, "{:.1f} MiB", "agrees", lambda *_: file_mib("hepcnn")),
        Fact("read time, shuffled / in order", 1, "{:.1f} ×", "direction",
             lambda made, _: made.read_seconds / whole("hepcnn", **{"loader.shuffle": "none"}).read_seconds,
             said="raised"),
    ),
}  # fmt: skip


def rows(name: str) -> list[tuple[str, str, str, str]]:
    """Return the rows of a workload."""
    made, first = whole(name), itemised(name)
    return [fact.row(made, first) for fact in FACTS[name]]


def main() -> None:
    """Print the table."""
    print("| workload | fact | published | simulated | verdict |")
    print("|---|---|---|---|---|")
    for name in FACTS:
        for number, row in enumerate(rows(name)):
            print(f"| {f'`{name}`' if not number else ''} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
