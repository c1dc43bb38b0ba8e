"""Modelled nodes that come for readers and go with them (``cluster.reader_pool``).

A reader requests a slot. It gets a free one, or one of a node that starts, or a new node starts; others wait. A node
arrives ``start`` after its request, and goes when it had no reader for ``idle_timeout``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rayio.model.kernel import Kernel
from rayio.scenario.reader_pool import ReaderPool
from rayio.trace.recorder import Recorder

#: A reader: its rank, and its number in the rank.
Who = tuple[int, int]
#: Called with the node of a reader's slot; None if no node came in time.
Granted = Callable[[int | None], None]


@dataclass(eq=False)
class _Request:
    """A reader that requests a slot, and its future node if known."""

    who: Who
    granted: Granted
    node: _Node | None = None


@dataclass(eq=False)
class _Node:
    """A node that starts or is present; times in ns."""

    number: int
    requested: int
    up: int | None = None
    taken: set[Who] = field(default_factory=set)
    #: Time since when it has no reader.
    idle: int | None = None


class NodePool:
    """The nodes of a run that come and go, in one process: numbers from ``first`` on.

    ``gone`` is called with the number of each node that has gone, which may be reused.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: ReaderPool,
        first: int,
        recorder: Recorder,
        gone: Callable[[int], None] = lambda node: None,
    ) -> None:
        self.kernel = kernel
        self.spec = spec
        self.first = first
        self.recorder = recorder
        self.gone = gone
        self._nodes: dict[int, _Node] = {}
        #: Readers with a request, at most ``spec.pending``, and the waiting ones; in order.
        self._asking: list[_Request] = []
        self._waiting: deque[_Request] = deque()
        #: The node of each reader with a slot.
        self._homes: dict[Who, _Node] = {}

    def want(self, who: Who, granted: Granted) -> None:
        """Request a slot for a reader."""
        request = _Request(who, granted)
        self._waiting.append(request)
        self.kernel.spawn(self._expire(request), "a node is waited for")
        self._turn()

    def free(self, who: Who) -> None:
        """Free a reader's slot, if it has one."""
        node = self._homes.pop(who, None)
        if node is not None:
            self._leave(node, who)
            self._turn()

    def close(self) -> None:
        """Record the lives of the present nodes."""
        for node in [*self._nodes.values()]:
            self._record(node)
        self._nodes.clear()

    def _turn(self) -> None:
        """Send the next requests, and grant slots."""
        is_moving = True
        while is_moving:
            while self._waiting and len(self._asking) < self.spec.pending:
                self._asking.append(self._waiting.popleft())
            is_moving = False
            for request in [*self._asking]:
                if request.node is None and (node := self._room()) is not None:
                    request.node = node
                    node.taken.add(request.who)
                    node.idle = None
                    if node.up is not None:
                        self._grant(request)
                        is_moving = True

    def _room(self) -> _Node | None:
        """Return a node with a free slot, present ones first, or a new one if allowed."""
        spec = self.spec
        free = [node for node in self._nodes.values() if len(node.taken) < spec.slots]
        if free:
            return min(free, key=lambda node: (node.up is None, node.number))
        numbers = range(self.first, self.first + spec.nodes)
        number = next((n for n in numbers if n not in self._nodes), None)
        if number is None:
            return None
        node = self._nodes[number] = _Node(number, self.kernel.now())
        self.kernel.spawn(self._come(node), "a node starts")
        return node

    async def _come(self, node: _Node) -> None:
        await self.kernel.sleep_until(node.requested + round(self.spec.start * 1e9))
        node.up = self.kernel.now()
        for request in [waiting for waiting in self._asking if waiting.node is node]:
            self._grant(request)
        if not node.taken:
            self._rest(node)
        self._turn()

    def _grant(self, request: _Request) -> None:
        node = request.node
        assert node is not None
        self._asking.remove(request)
        self._homes[request.who] = node
        request.granted(node.number)

    async def _expire(self, request: _Request) -> None:
        await self.kernel.sleep_until(self.kernel.now() + round(self.spec.deadline * 1e9))
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._asking:
            self._asking.remove(request)
            if request.node is not None:
                self._leave(request.node, request.who)
        else:
            return
        request.granted(None)
        self._turn()

    def _leave(self, node: _Node, who: Who) -> None:
        node.taken.discard(who)
        if not node.taken and node.up is not None:
            self._rest(node)

    def _rest(self, node: _Node) -> None:
        node.idle = self.kernel.now()
        self.kernel.spawn(self._go(node, node.idle), "a node is idle")

    async def _go(self, node: _Node, since: int) -> None:
        """End a node that has been idle since a time."""
        await self.kernel.sleep_until(since + round(self.spec.idle_timeout * 1e9))
        if node.idle == since and self._nodes.get(node.number) is node:
            del self._nodes[node.number]
            self._record(node)
            self.gone(node.number)
            self._turn()

    def _record(self, node: _Node) -> None:
        record_node(self.recorder, node.number, node.requested, node.up, self.kernel.now())


def record_node(recorder: Recorder, number: int, requested: int, up: int | None, gone: int) -> None:
    """Record a node's life: times of request, arrival (None: never) and end (ns)."""
    writer = recorder.register("pool", str(number), number)
    recorder.add(writer, "node_start", requested, gone if up is None else up, 0)
    if up is not None:
        recorder.add(writer, "node_up", up, gone, 0)
