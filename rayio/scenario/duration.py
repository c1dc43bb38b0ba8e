"""The longest expected duration of a run, by key: as if nothing overlapped."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rayio.scenario import derive, evaluation
from rayio.scenario.decode import Work
from rayio.scenario.layers import layers_of
from rayio.scenario.meetings import allreduce_seconds
from rayio.scenario.model import Scenario, StorageParameters
from rayio.scenario.saved_bytes import all_checkpoints_bytes
from rayio.scenario.storage import UNKNOWN
from rayio.storage.presets import PRESETS


def refusals(scenario: Scenario) -> Iterator[str]:
    """Yield a line that names the key which makes a run longer than clocks can count, if one does."""
    parts = dict(of_keys(scenario))
    total = math.fsum(parts.values())
    if not total <= derive.MAX_SECONDS:
        key = max(parts, key=lambda name: parts[name])
        most = f"at most {derive.MAX_SECONDS:.3g} s (146 years) are possible"
        yield f"{key}: takes {parts[key]:.3g} s in all; {most}"


def of_keys(scenario: Scenario) -> Iterator[tuple[str, float]]:
    """Yield the expected seconds that each key adds to a rank's life, or to storage's, in the whole run."""
    train, loader, checkpoint = scenario.train, scenario.loader, scenario.checkpoint
    steps = derive.total_steps(scenario)
    yield "train.compute", steps * derive.compute_seconds(scenario) * derive.pace(scenario).most
    if train.device_copy is not None:
        rate = train.device_copy.rate(pinned=loader.pin_memory)
        yield "train.device_copy.bandwidth", steps * derive.batch_bytes(scenario) / rate
    if loader.pin_memory:
        yield "loader.pin_bandwidth", steps * derive.batch_bytes(scenario) / loader.pin_bandwidth
    yield "train.parallelism.microbatches", steps * derive.compute_seconds(scenario) * train.parallelism.bubble
    yield "train.sync", steps * allreduce_seconds(scenario)
    if (phase := evaluation.phase_of(scenario)) is not None:
        yield "train.evaluate.compute", derive.total_steps(phase) * derive.compute_seconds(phase)
    samples = steps * loader.batch_size
    nbytes = steps * derive.batch_bytes(scenario)
    if not isinstance(loader.decode, Work):
        yield "loader.decode", samples * loader.decode.expected
    else:
        yield "loader.decode.rate", loader.decode.seconds(samples, nbytes)
    for number, stage in enumerate(scenario.stages):
        yield f"stages[{number}].arrivals", stage.count * stage.arrivals.expected
        yield f"stages[{number}].compute", stage.count * stage.compute.expected
    costs = scenario.charges
    for name in ("lease", "put", "take", "transfer_latency", "barrier", "step"):
        yield f"costs.{name}", steps * getattr(costs, name)
    yield "costs.neighbour", steps * costs.neighbour * (scenario.cluster.most_ranks - 1)
    for name in ("put_bandwidth", "receive_bandwidth", "transfer_bandwidth"):
        if (rate := getattr(costs, name)) is not None:
            yield f"costs.{name}", nbytes / rate
    cpu = costs.cpu
    yield "costs.cpu.sample", samples * cpu.sample
    for name in ("queue", "rank"):
        yield f"costs.cpu.{name}", steps * getattr(cpu, name)
    if cpu.bandwidth is not None:
        yield "costs.cpu.bandwidth", nbytes / cpu.bandwidth
    written = requests = largest = 0.0
    if checkpoint is not None:
        times = derive.num_checkpoints(scenario)
        written = float(all_checkpoints_bytes(scenario))
        most = max(derive.checkpoint_shards(scenario), default=0)
        largest = float(times * most)  # writers write side by side
        requests = times * -(-most // checkpoint.request_bytes)
        yield "costs.checkpoint", times * costs.checkpoint
        yield "checkpoint.snapshot_bandwidth", times * checkpoint.model.num_bytes / checkpoint.snapshot_bandwidth
    yield from _of_storage(
        scenario, samples, nbytes + largest, requests, derive.world_size(scenario) * nbytes + written
    )


def _of_storage(
    scenario: Scenario, samples: float, nbytes: float, requests: float, of_all: float
) -> Iterator[tuple[str, float]]:
    """Yield the seconds of the storage model by key; ``samples`` to ``requests`` are per rank."""
    model, ranks = scenario.storage.model, derive.world_size(scenario)
    if model == UNKNOWN:
        return
    if isinstance(model, StorageParameters):
        first_byte, opening, connection = model.first_byte.expected, model.open.expected, model.connection_bandwidth
        shared, calls, scope = model.bandwidth, model.opens_per_second or model.requests_per_second, model.scope
    else:
        preset = PRESETS[model]
        first_byte, opening, connection = preset.first_byte_median, preset.open_median, preset.connection_bandwidth
        shared, calls, scope = preset.bandwidth, preset.opens_per_second or preset.requests_per_second, preset.scope
    systems = len(scenario.cluster.reading_nodes) if scope == "node" else 1
    layers = layers_of(scenario, modelled=True)
    yield "storage.model.first_byte", (samples + requests) * first_byte
    yield "storage.model.open", samples * opening
    yield "storage.model.connection_bandwidth", nbytes / connection
    yield "storage.model.bandwidth", of_all / shared / systems
    for layer in layers:
        yield from layer.seconds(ranks * (samples + requests))
    if calls and not any(layer.reads_of_all for layer in layers):
        yield "storage.model.requests_per_second", ranks * (samples + requests) / calls / systems
