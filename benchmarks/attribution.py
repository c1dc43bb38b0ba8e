"""How long it takes to charge every stall of a run, by number of spans. Goal: 1 M spans in at most 3 s.

Spans of a simulation (32 ranks × 4 readers, exponential decode, jittered compute, a barrier, checkpoints), side by side
as often as it takes. CPU seconds, median of 3.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from machine import print_machine

from rayio.analyze.access import Accesses
from rayio.analyze.passes import summed
from rayio.analyze.service import Capacities
from rayio.analyze.shape import RunShape
from rayio.analyze.stages import STAGES
from rayio.analyze.stalls import attribute
from rayio.analyze.timeline import timeline
from rayio.analyze.verdict import judge
from rayio.engines.virtual import simulation
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.scenario.load import build
from rayio.trace.recorder import Recorder
from rayio.trace.slices import Slices

RANKS, STEPS = 32, 500


def recorded() -> pa.Table:
    scenario = build(
        {
            "name": "attribution",
            "cluster": {"nodes": 4, "ranks_per_node": RANKS // 4},
            "dataset": {"path": "model://attribution", "num_files": 1_000_000, "sample_bytes": "1 MiB"},
            "loader": {"batch_size": 4, "num_workers": 4, "decode": {"kind": "exponential", "mean": "80 ms"}},
            "train": {"steps": STEPS, "compute": {"kind": "normal", "mean": "100 ms", "stdev": "10 ms"}},
            "checkpoint": {"every": {"steps": 50}, "path": "c", "model": {"bytes": "100 MB"}},
        }
    )
    plan = plan_of(scenario, modelled=True)
    recorder = Recorder()
    simulation.simulate(plan, recorder, [Tally(rank) for rank in range(RANKS)])
    return recorder.drain()


def enlarged(spans: pa.Table, times: int) -> pa.Table:
    """Repeat a run side by side, each copy with ranks (and names of roles) of its own."""
    copies = []
    for number in range(times):
        shift = number * RANKS
        rank = pc.if_else(pc.less(spans["rank"], 0), spans["rank"], pc.add(spans["rank"], shift).cast("int32"))
        index = pc.binary_join_element_wise(spans["index"].cast("string"), str(number), "/").dictionary_encode()
        link = pc.if_else(pc.equal(spans["name"].cast("string"), "data_wait"), pc.add(spans["link"], shift << 42), 0)
        copy = spans.set_column(spans.schema.get_field_index("rank"), "rank", rank)
        copy = copy.set_column(copy.schema.get_field_index("index"), "index", index)
        copies.append(copy.set_column(copy.schema.get_field_index("link"), "link", link))
    return pa.concat_tables(copies).unify_dictionaries().combine_chunks().sort_by("start_ns")


def seconds(work: Callable[..., object], *arguments: object) -> float:
    taken = []
    for _ in range(3):
        began = time.process_time()
        work(*arguments)
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main() -> None:
    print_machine()
    spans = recorded()
    print(f"{'spans':>12}{'attribute':>12}{'verdict':>10}{'capacity':>10}{'access':>10}{'all':>10}   CPU seconds")
    for goal in (100_000, 1_000_000, 4_000_000):
        times = max(1, round(goal / len(spans)))
        table = enlarged(spans, times)
        shape = RunShape(RANKS * times, 4, 1, 1, STEPS)
        charged = attribute(table)
        assert not charged.waits[:, [*STAGES].index("unrecorded")].any()
        assert (charged.losses.sum(axis=1) + charged.steps.parts["compute"] == charged.steps.duration).all()
        lives, _ = timeline(table)
        parts = [
            seconds(attribute, table),
            seconds(judge, charged, shape),
            seconds(summed, table, Capacities(lives, charged.steps, shape, 4 * RANKS * times)),
            seconds(summed, table, Accesses(Slices.of(table), lives)),
        ]
        columns = f"{parts[0]:>12.2f}" + "".join(f"{part:>10.2f}" for part in (*parts[1:], sum(parts)))
        print(f"{len(table):>12,}{columns}", flush=True)


if __name__ == "__main__":
    main()
