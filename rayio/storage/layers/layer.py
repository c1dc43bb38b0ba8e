"""A layer: what stands between a reader and its bytes, or between two nodes. Each is one file and a line in ``LAYERS``.

A layer is a frozen value of the plan. The subclass is its kind, and owns all that the rest of rayio needs to know of
it: its keys, what it wraps, what all its users share, its causes of loss, its changes and its words. Engines wrap
storage in the order of the plan and know no layer by name; so does ``explain``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from rayio.scenario.change import Change
from rayio.scenario.kind import Kind
from rayio.schema.fields import Section
from rayio.storage.base import Clock, Storage

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario

#: Calls a method of what users of a layer share, by its name, wherever that lives.
Ask = Callable[..., Awaitable[Any]]


class Arrival(Protocol):
    """A value to come, which any number of roles may await."""

    def set_result(self, value: Any, /) -> None:
        """Set the value; every waiter continues."""

    def done(self) -> bool:
        """Return True if the value is there."""

    def __await__(self) -> Any:
        """Wait for it."""


class Kernel(Clock, Protocol):
    """The part of a kernel (``rayio.model.kernel``) that shared states may use."""

    def future(self, label: str) -> Arrival:
        """Make a value to come; ``label`` says in a deadlock report what its waiters wait for."""


class Called:
    """Shared state that lives elsewhere: each method is a call."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        return lambda *arguments: self._ask(method, *arguments)


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a role uses storage."""

    clock: Clock
    #: The role's emulated node.
    node: int
    #: The folder, as errors name it.
    path: str
    #: Whether batches are read there; files of checkpoints are written elsewhere.
    is_dataset: bool
    #: Requests in flight at a time, and whether each is given out (``Served.issued``).
    io_depth: int
    is_itemised: bool
    #: Reaches what users of the layer share; only those may call it who have something to share.
    shared: Callable[[], Any]


class Way(Protocol):
    """The way of batches from one node to another."""

    def send(self, now: int, nbytes: int) -> int | Awaitable[int]:
        """Return when ``nbytes`` that are sent at ``now`` arrive; both in ns."""


class Layer(Kind):
    """A kind of layer; an object of it is a frozen dataclass, which is part of the plan and pickles with it."""

    #: Its name in ``LAYERS``. Its keys are its ``options``, flat in the section ``storage``.
    name: ClassVar[str]
    #: The causes that its time is charged to, as its delays name them (``Served.delays``), with their meaning.
    causes: ClassVar[Mapping[str, str]] = {}
    #: The role under which the actors that hold its shared state are known to the trace.
    role: ClassVar[str] = "layer"
    #: What users of a model share: one state for each node that reads, one for all, or nothing.
    sharing: ClassVar[Literal["", "node", "all"]] = ""
    #: Whether the end of a read through it is known as the read begins (``rayio.engines.virtual.foreseen``).
    is_foreseen: ClassVar[bool] = False
    #: Whether it must be told which file each request goes to, or which samples each batch has.
    needs_places: ClassVar[bool] = False
    needs_samples: ClassVar[bool] = False
    #: Whether it must be told the files of each batch.
    needs_files: ClassVar[bool] = False
    #: Whether it stands for hardware that nodes have themselves where each has a Ray node of its own.
    is_of_nodes: ClassVar[bool] = False
    #: What emulated nodes that share a host have each of their own only in the model; empty for nothing.
    own: ClassVar[str] = ""
    #: The failures of storage that it models, such as "throttling"; empty for none.
    fails: ClassVar[str] = ""
    #: What a note says where what it models is real, so that it does not act; empty for nothing.
    idle_if_real: ClassVar[str] = ""

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Layer | None:
        """Return the layer that a scenario asks for, from its ``options``; None if it asks for none."""
        raise NotImplementedError

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Return storage that asks ``storage`` and adds what this layer does."""
        return storage

    def way(self, source: int, target: int, shared: Callable[[], Any]) -> Way | None:
        """Return the way of batches between two different nodes; None where it takes no time."""
        return None

    def state(self, kernel: Kernel) -> Any:
        """Make what users of this layer share. All its public methods may be called from other processes.

        Where ``sharing`` is "node" it has a method ``clear``, called when the node has gone.
        """
        raise NotImplementedError

    def reach(self, ask: Ask) -> Any:
        """Return the shared state of another process, which ``ask`` calls by the name of a method."""
        return Called(ask)

    def actor(self, number: int) -> str:
        """Return the name of the actor with the shared state of a node, or of all."""
        named = self.role if self.role == self.name else f"{self.role}-{self.name}"
        return f"{named}-{number}" if self.sharing == "node" else named

    def changes(self, run: Run) -> Iterator[Change]:
        """Offer to do without it, where it is charged for anything; a layer with more to say adds to that."""
        if self.causes:
            to, key = partial(_without, self.name), f"storage.{self.name}=none"
            causes = (*self.causes,)
            yield Change(f"without {self.name}", kind="removal", to=to, key=key, removes=causes, helps=causes)

    def scaled(self, scenario: Scenario) -> Scenario:
        """Return a scenario that has as much of it beside a dataset of twice the size."""
        return scenario

    @property
    def told(self) -> str:
        """What is modelled of it, for readers of a prediction; empty for nothing."""
        return ""

    @property
    def reads_of_all(self) -> float | None:
        """Reads per second that it lets through in all; None for any."""
        return None

    @property
    def keeps(self) -> str:
        """How it has readers come by bytes without storage, for ``Fetched.how``; empty where it does not."""
        return ""

    def seconds(self, requests: float) -> Iterator[tuple[str, float]]:
        """The expected seconds that each of its keys adds to a run of so many requests."""
        yield from ()


def _without(name: str, scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"storage": scenario.storage.without(name)})
