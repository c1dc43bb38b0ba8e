"""A layer: a gate on the way to storage, which lets one batch at a time through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from rayio.scenario.change import Change, Run, with_keys
from rayio.schema.fields import Section, quantity
from rayio.storage.base import Delay, Opener, Requests, Served, Storage
from rayio.storage.layers.layer import Kernel, Layer, Mount
from rayio.units import SECONDS

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

T = TypeVar("T")


class TollOptions(Section):
    """What ``storage`` may say of the gate."""

    toll: Annotated[float | None, quantity(SECONDS, positive=True, or_none=True)] = Field(
        None, description="How long the gate holds up each batch, one after the other."
    )


class Booth:
    """The gate itself: when it is free."""

    def __init__(self, toll: float) -> None:
        self.toll = round(toll * 1e9)
        self.free_at = 0

    def passes(self, now: int) -> int:
        """Return when a batch that comes at ``now`` is through (ns)."""
        self.free_at = max(self.free_at, now) + self.toll
        return self.free_at


@dataclass(frozen=True)
class Toll(Layer):
    """Seconds that each batch is held up at a gate that all readers share."""

    seconds_each: float

    name: ClassVar[str] = "toll"
    example: ClassVar[Any] = {"storage": {"toll": "1 ms"}}
    options: ClassVar[type[Section]] = TollOptions
    causes: ClassVar[Mapping[str, str]] = {"toll": "held up at the gate"}
    sharing: ClassVar[Literal["", "node", "all"]] = "all"

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Toll | None:
        toll = options.toll if isinstance(options, TollOptions) else None
        return None if toll is None else cls(toll)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        if scenario.loader.num_workers == 0:
            yield "storage.toll: there are no readers to pass the gate; raise loader.num_workers"

    def changes(self, run: Run) -> Iterator[Change]:
        yield from super().changes(run)
        half = self.seconds_each / 2
        yield Change(
            "toll ÷ 2",
            kind="setting",
            to=with_keys("storage", toll=half),
            key=f"storage.toll={half:g} s",
            helps=("input",),
        )

    def state(self, kernel: Kernel) -> Booth:
        return Booth(self.seconds_each)

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        return Tolled(storage, mount) if mount.is_dataset else storage


class Tolled:
    """Storage beyond the gate."""

    def __init__(self, storage: Storage, mount: Mount) -> None:
        self.storage = storage
        self.clock = mount.clock
        self.booth = mount.shared()

    async def read(self, requests: Requests, load: Callable[[Opener], T]) -> Served[T | None]:
        """Read, and pass the gate with the batch."""
        served = await self.storage.read(requests, load)
        since = self.clock.now()
        through: int | Awaitable[Any] = self.booth.passes(since)
        await self.clock.sleep_until(through if isinstance(through, int) else await through)
        return served._replace(delays=(*served.delays, Delay(since, self.clock.now(), "toll")))

    async def write(self, path: str, num_bytes: int, request_bytes: int, *, fsync: bool) -> Served[None]:
        """Write past the gate."""
        return await self.storage.write(path, num_bytes, request_bytes, fsync=fsync)
