"""The interface of layers between a worker and storage, or between nodes: each is one file and a line in ``LAYERS``.

A layer is a frozen value of the plan. Its class is the kind, and defines all that the rest of rayio uses: its keys, the
storage that it wraps, its shared state, its causes of loss, its changes and its texts. Engines wrap storage in the
order of the plan and know no layer by name; nor does ``explain``.
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

#: Calls a method of a layer's shared state by name, in whatever process that is.
Ask = Callable[..., Awaitable[Any]]


class Arrival(Protocol):
    """A future, which any number of roles may await."""

    def set_result(self, value: Any, /) -> None:
        """Set the value; every waiter continues."""

    def done(self) -> bool:
        """Return True if the value is there."""

    def __await__(self) -> Any:
        """Wait for it."""


class Kernel(Clock, Protocol):
    """The part of a kernel (``rayio.model.kernel``) that shared states may use."""

    def future(self, label: str) -> Arrival:
        """Return a new future; ``label`` names in a deadlock report what its waiters wait for."""


class Called:
    """A shared state in another process: each method is a call."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        return lambda *arguments: self._ask(method, *arguments)


@dataclass(frozen=True, slots=True)
class Mount:
    """A place where a role uses storage."""

    clock: Clock
    #: The role's emulated node.
    node: int
    #: The folder, as errors name it.
    path: str
    #: True for datasets, False for checkpoints.
    is_dataset: bool
    #: Requests in flight at a time, and whether each is recorded (``Served.issued``).
    io_depth: int
    is_itemised: bool
    #: Returns the layer's shared state; only for layers that have one.
    shared: Callable[[], Any]


class Way(Protocol):
    """A connection for batches from one node to another."""

    def send(self, now: int, nbytes: int) -> int | Awaitable[int]:
        """Return the time at which ``nbytes`` sent at ``now`` arrive; both in ns."""


class Layer(Kind):
    """A kind of layer; its objects are frozen dataclasses, which pickle with the plan."""

    #: Its name in ``LAYERS``. Its keys are its ``options``, flat in the section ``storage``.
    name: ClassVar[str]
    #: Keys of a small scenario that has the layer and feels it, by section; its laws are tested with them.
    example: ClassVar[Mapping[str, Mapping[str, Any]]]
    #: The causes of its delays (``Served.delays``), with their meaning.
    causes: ClassVar[Mapping[str, str]] = {}
    #: The role of the actors with its shared state, in the trace.
    role: ClassVar[str] = "layer"
    #: Its shared state: one for each node that reads, one for all, or none.
    sharing: ClassVar[Literal["", "node", "all"]] = ""
    #: Whether the end of a read is known at its begin (``rayio.engines.virtual.foreseen``).
    is_foreseen: ClassVar[bool] = False
    #: Whether it needs the file of each request, the samples of each batch, the files of each batch.
    needs_places: ClassVar[bool] = False
    needs_samples: ClassVar[bool] = False
    needs_files: ClassVar[bool] = False
    #: Whether it models hardware that nodes have anyway, if each is a separate Ray node.
    is_of_nodes: ClassVar[bool] = False
    #: The hardware that emulated nodes on one host have separately only in the model; empty for none.
    own: ClassVar[str] = ""
    #: The failures of storage that it models, such as "throttling"; empty for none.
    fails: ClassVar[str] = ""
    #: A note for runs on real hardware, where it has no effect; empty for none.
    idle_if_real: ClassVar[str] = ""

    @classmethod
    def of(cls, scenario: Scenario, options: Section | None, *, modelled: bool) -> Layer | None:
        """Return the layer of a scenario, from its ``options``; None if it has none."""
        raise NotImplementedError

    def wrap(self, storage: Storage, mount: Mount) -> Storage:
        """Return storage that uses ``storage`` and adds this layer."""
        return storage

    def way(self, source: int, target: int, shared: Callable[[], Any]) -> Way | None:
        """Return the connection between two different nodes; None if it takes no time."""
        return None

    def state(self, kernel: Kernel) -> Any:
        """Return a new shared state. All its public methods may be called from other processes.

        If ``sharing`` is "node", it has a method ``clear``, called when the node has gone.
        """
        raise NotImplementedError

    def reach(self, ask: Ask) -> Any:
        """Return the shared state of another process; ``ask`` calls its methods by name."""
        return Called(ask)

    def actor(self, number: int) -> str:
        """Return the name of the actor with the shared state of a node, or the one for all."""
        named = self.role if self.role == self.name else f"{self.role}-{self.name}"
        return f"{named}-{number}" if self.sharing == "node" else named

    def changes(self, run: Run) -> Iterator[Change]:
        """Offer to remove the layer, if it has causes of loss; a layer may offer more changes."""
        if self.causes:
            to, key = partial(_without, self.name), f"storage.{self.name}=none"
            causes = (*self.causes,)
            yield Change(f"without {self.name}", kind="removal", to=to, key=key, removes=causes, helps=causes)

    def scaled(self, scenario: Scenario) -> Scenario:
        """Return the scenario with this layer scaled to a dataset of twice the size."""
        return scenario

    @property
    def stalls(self) -> str:
        """The stalls that it adds on purpose, in words; empty for none."""
        return ""

    @property
    def description(self) -> str:
        """The model in words, for a prediction; empty for none."""
        return ""

    @property
    def reads_of_all(self) -> float | None:
        """Reads per second of all prefixes that it serves; None is no bound."""
        return None

    @property
    def keeps(self) -> str:
        """The source of bytes that storage did not serve, for ``Fetched.how``; empty for none."""
        return ""

    def seconds(self, requests: float) -> Iterator[tuple[str, float]]:
        """Return the expected seconds that each of its keys adds to a run of ``requests`` requests."""
        yield from ()


def _without(name: str, scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"storage": scenario.storage.without(name)})
