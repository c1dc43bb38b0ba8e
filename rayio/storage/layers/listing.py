"""``storage.listing``: the time in which each rank lists the dataset before its first batch, on modelled storage.

A rank of PyTorch's makes its dataset at the start: it lists the folder and looks at every file (``ImageFolder``), which
is a request to the metadata server for each. The server answers all ranks one after the other, so R ranks that list N
files at N / r seconds each have listed them after R N / r seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from rayio.scenario import derive, evaluation
from rayio.schema.fields import Section, per_second
from rayio.storage.base import Delay, Opener, Requests, Served, Storage
from rayio.storage.layers.layer import Kernel, Layer, Mount

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

T = TypeVar("T")


class ListingOptions(Section):
    """The key of listings in ``storage``."""

    listing: Annotated[float | None, per_second(or_none=True)] = Field(
        None,
        description="Files per second that modelled storage lists, for all ranks together; each rank lists the dataset "
        "before its first batch. None is no listing.",
    )


class Lister:
    """The metadata server: which ranks have listed which dataset, and when it is free."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0
        self.done_at: dict[tuple[int, str], int] = {}

    def listed(self, rank: int, path: str, files: int, now: int) -> int:
        """Return when a rank that comes at ``now`` has listed a dataset of so many files (ns)."""
        if (rank, path) not in self.done_at:
            self.free_at = max(self.free_at, now) + round(files / self.rate * 1e9)
            self.done_at[rank, path] = self.free_at
        return self.done_at[rank, path]


@dataclass(frozen=True)
class Listing(Layer):
    """Files per second that a modelled metadata server lists, and the files of each dataset."""

    rate: float
    #: Files of each dataset, by its path.
    files: tuple[tuple[str, int], ...]

    name: ClassVar[str] = "listing"
    example: ClassVar[Any] = {"storage": {"listing": 2000}}
    options: ClassVar[type[Section]] = ListingOptions
    causes: ClassVar[Mapping[str, str]] = {"listing": "listing the dataset's files"}
    sharing: ClassVar[Literal["", "node", "all"]] = "all"
    idle_if_real: ClassVar[str] = "storage.listing: no effect, because it is a limit of modelled storage"

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Listing | None:
        """Return the rate of a scenario's model."""
        rate = options.listing if isinstance(options, ListingOptions) else None
        if rate is None or not modelled:
            return None
        phases = [each for each in (scenario, evaluation.phase_of(scenario)) if each is not None]
        return cls(rate, tuple((each.dataset.path, derive.num_files(each)) for each in phases))

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Return storage that lists a dataset before the first read of each rank."""
        files = dict(self.files).get(mount.path)
        return storage if files is None or not mount.is_dataset else ListedStorage(storage, mount, files)

    def state(self, kernel: Kernel) -> Lister:
        """Return the metadata server."""
        return Lister(self.rate)

    def seconds(self, requests: float) -> Iterator[tuple[str, float]]:
        """Return the seconds of one listing of every dataset."""
        yield "storage.listing", sum(files for _, files in self.files) / self.rate

    @property
    def description(self) -> str:
        """The model in words, for a prediction."""
        return f"storage.listing: each rank lists the dataset first, {self.rate:,.15g} files/s for all ranks together"


class ListedStorage:
    """A role's access to a dataset that its rank lists first."""

    def __init__(self, storage: Storage, mount: Mount, files: int) -> None:
        self.storage, self.clock, self.lister = storage, mount.clock, mount.shared()
        self.path, self.files = mount.path, files
        #: Ranks whose listing is known to be over.
        self.over: set[int] = set()

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read a batch, once the rank has listed the dataset."""
        rank, begun = requests.address[0], self.clock.now()
        if rank in self.over:
            return await self.storage.read(requests, load)
        answer: int | Awaitable[Any] = self.lister.listed(rank, self.path, self.files, begun)
        await self.clock.sleep_until(answer if isinstance(answer, int) else await answer)
        self.over.add(rank)
        waited = self.clock.now()
        served = await self.storage.read(requests, load)
        if waited <= begun:
            return served
        return served._replace(delays=(Delay(begun, waited, "listing"), *served.delays))

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write past the listing."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)
