"""The planned requests of a sample of batches, spread evenly over ranks and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayio.data.access.contract import ACCESSES, Files
from rayio.data.formats import form_of
from rayio.data.sampler import Sampler
from rayio.scenario import derive
from rayio.scenario.storage import modelled_gap
from rayio.storage.base import Requests
from rayio.storage.joining import joined
from rayio.storage.limits import Asked
from rayio.storage.stores.opening import gap_at

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: Batches considered, approximate limit of their samples, and of their requests.
BATCHES, SAMPLES, REQUESTS = 16, 1 << 18, 1 << 20


def planned_requests(scenario: Scenario) -> list[Requests]:
    """Return the requests of some batches of the first epoch, as their readers will issue them.

    A reader that keeps files open keeps them here from the batch before.
    """
    sampler = Sampler.from_scenario(scenario).cached_for(1, memory_bytes=1 << 16)
    ranks, steps = derive.world_size(scenario), derive.rank_steps_by_epoch(scenario)[0][0]
    loader, every = scenario.loader, ranks * steps
    access, before = ACCESSES[loader.file_access], max(1, loader.max_workers)
    is_joined = access.is_joined(loader.file_access_options)
    gap = max(modelled_gap(scenario), gap_at(scenario.dataset.path)) if is_joined else 0
    files = Files(form_of(scenario.dataset.format, sampler.layout), sampler.layout, loader.file_access_options)
    number = min(every, max(1, min(BATCHES, SAMPLES // loader.batch_size)))
    chosen = [divmod((2 * n + 1) * every // (2 * number), steps) for n in range(number)]
    planned: list[Requests] = []
    for rank, step in chosen:
        requests, kept = access.requests(files, sampler.batch(0, rank, step), None)
        if kept is not None and step >= before:
            _, kept = access.requests(files, sampler.batch(0, rank, step - before), None)
            requests, _ = access.requests(files, sampler.batch(0, rank, step), kept)
        planned.append(joined(requests, gap))
        if sum(len(earlier.nbytes) for earlier in planned) > REQUESTS:
            break
    return planned


def mean_of(requests: list[Requests]) -> Asked:
    """Return the mean requests of a batch."""
    number = max(len(requests), 1)
    return Asked(
        sum(batch.total_bytes for batch in requests) / number,
        sum(len(batch.nbytes) for batch in requests) / number,
        sum(batch.num_opens for batch in requests) / number,
    )


def requests_per_sample(scenario: Scenario) -> float:
    """Return the mean number of read requests of a batch per sample."""
    return mean_of(planned_requests(scenario)).requests / scenario.loader.batch_size
