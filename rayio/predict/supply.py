"""The limit of a run's modelled storage: its parameters, and the demand of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayio.analyze.sharing import ALONE, Others
from rayio.data.asked import mean_of, planned_requests
from rayio.predict.observe import Trained
from rayio.records.explained import Stage, StorageLimit
from rayio.scenario import derive
from rayio.scenario.layers import layers_of
from rayio.storage.limits import Asked, System, Taken, limit
from rayio.storage.model import Latencies, seconds_alone
from rayio.storage.presets import MEMORY

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario, StorageParameters
    from rayio.storage.base import Requests


def supply(
    scenario: Scenario,
    model: StorageParameters,
    needs: float | None,
    read: Trained,
    beside: Others = ALONE,
    missed: float = 1.0,
) -> StorageLimit:
    """Return the limit of a run's storage, which was ``model``; ``needs`` is the demand of its ranks, in batches/s.

    The amounts that checkpoints, evaluations and stages took ``beside`` training are subtracted. Caches in front of it
    leave it the share that those ``missed``.

    Bytes and requests of a batch are those that were ``read`` (levels batch, io and sample), else the plan's; opens are
    the plan's.
    """
    requests = planned_requests(scenario)
    limits = [layer.reads_of_all for layer in layers_of(scenario, modelled=True) if layer.reads_of_all is not None]
    depth, whole = scenario.loader.io_depth, _of_batch(requests, read)
    demand = Asked(missed * whole.nbytes, missed * whole.requests, missed * whole.opens)
    alone = _alone(scenario, model, requests) if depth > 1 or missed < 1 else None
    if alone is not None and missed < 1:
        alone = missed * alone + (1 - missed) * _of_memory(whole)
    return limit(
        System(
            bandwidth=model.bandwidth,
            connection_bandwidth=model.connection_bandwidth,
            first_byte=model.first_byte.expected,
            open=model.open.expected,
            requests_per_second=model.requests_per_second if model.opens_per_second is None else None,
            opens_per_second=model.opens_per_second,
            reads_per_second=min(limits, default=None),
            number=len(scenario.cluster.reading_nodes) if model.scope == "node" else 1,
        ),
        demand,
        readers=derive.num_readers(scenario) or derive.world_size(scenario),
        depth=depth,
        needs=needs,
        alone=alone,
        taken=Taken(
            nbytes=beside.nbytes,
            requests=beside.requests,
            reads=beside.reads,
            opens=beside.batches * demand.opens + beside.files,
        ),
    )


def _of_batch(requests: list[Requests], read: Trained) -> Asked:
    planned = mean_of(requests)
    if not read.batches:
        return planned
    return Asked(read.nbytes / read.batches, read.requests / read.batches, planned.opens)


def _of_memory(batch: Asked) -> float:
    return batch.requests * MEMORY.first_byte_median + batch.nbytes / MEMORY.connection_bandwidth


def _alone(scenario: Scenario, model: StorageParameters, requests: list[Requests]) -> float:
    """Return the mean time of some batches on an idle system, with the latencies that are drawn for them."""
    latencies = Latencies(model.first_byte.draw, scenario.seed, depth=scenario.loader.io_depth)
    opening = model.open if model.open.expected > 0 else None
    each = [
        seconds_alone(
            latencies.of_reads(batch.address, len(batch.nbytes), opening, batch.num_opens),
            batch.nbytes, model.connection_bandwidth, scenario.loader.io_depth,
        )
        for batch in requests
    ]  # fmt: skip
    return float(np.mean(each)) if each else 0.0


def network(scenario: Scenario, delivered: float) -> Stage | None:
    """Return the network interfaces between dedicated readers and ranks as a stage; None where no rate limits them.

    The side with fewer nodes is the limit: each interface passes its bytes each second each way.
    """
    cluster = scenario.cluster
    if cluster.nic_bandwidth is None or not cluster.has_reader_tier or cluster.has_pool:
        return None
    number, seconds = min(cluster.nodes, cluster.reader_nodes), derive.batch_bytes(scenario) / cluster.nic_bandwidth
    return Stage(
        stage="transfer",
        service_seconds=seconds,
        parallelism=number,
        capacity=number / seconds,
        utilisation=min(1.0, delivered * seconds / number),
    )
