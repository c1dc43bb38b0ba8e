"""What batches ask of storage, worked out from the plan: some of them, spread evenly over ranks and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayio.data.access.contract import ACCESSES, Files
from rayio.data.formats import FORMATS
from rayio.data.sampler import Sampler
from rayio.scenario import derive
from rayio.storage.base import Requests
from rayio.storage.limits import Asked

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: Batches that are looked at, about how many samples, and requests after which no more is.
BATCHES, SAMPLES, REQUESTS = 16, 1 << 18, 1 << 20


def planned_requests(scenario: Scenario) -> list[Requests]:
    """Return the requests of some batches of the first epoch, as their readers will issue them.

    A reader that keeps something of its files keeps here what the batch before has left.
    """
    sampler = Sampler.from_scenario(scenario).cached_for(1, memory_bytes=1 << 16)
    ranks, steps = derive.world_size(scenario), derive.rank_steps(scenario)[0]
    loader, every = scenario.loader, ranks * steps
    access, before = ACCESSES[loader.file_access], max(1, loader.max_workers)
    files = Files(FORMATS[scenario.dataset.format], sampler.layout, loader.file_access_options)
    number = min(every, max(1, min(BATCHES, SAMPLES // loader.batch_size)))
    chosen = [divmod((2 * n + 1) * every // (2 * number), steps) for n in range(number)]
    found: list[Requests] = []
    for rank, step in chosen:
        requests, kept = access.requests(files, sampler.batch(0, rank, step), None)
        if kept is not None and step >= before:
            _, kept = access.requests(files, sampler.batch(0, rank, step - before), None)
            requests, _ = access.requests(files, sampler.batch(0, rank, step), kept)
        found.append(requests)
        if sum(len(one.nbytes) for one in found) > REQUESTS:
            break
    return found


def mean_of(requests: list[Requests]) -> Asked:
    """What a batch asks for in the mean."""
    number = max(len(requests), 1)
    return Asked(
        sum(one.total_bytes for one in requests) / number,
        sum(len(one.nbytes) for one in requests) / number,
        sum(one.num_opens for one in requests) / number,
    )


def requests_per_sample(scenario: Scenario) -> float:
    """Read requests of a batch over its samples, in the mean."""
    return mean_of(planned_requests(scenario)).requests / scenario.loader.batch_size
