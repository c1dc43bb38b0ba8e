"""Nodes that come for readers and go with them (``cluster.reader_pool``), where they are modelled.

A reader that is wanted asks for a slot. It takes a free one, or one of a node that is coming, or has a node come; the
others wait. A node comes ``start`` after it was asked for, and goes once nobody has had a slot of it for
``idle_timeout``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rayio.model.kernel import Kernel
from rayio.scenario.reader_pool import ReaderPool
from rayio.trace.recorder import Recorder

#: A reader: its rank, and its number there.
Who = tuple[int, int]
#: Is told the node on which a reader has a slot; None where none came in time.
Told = Callable[[int | None], None]


@dataclass(eq=False)
class _Request:
    """A reader that asks for a slot, and the node on which it will have one, as far as that is known."""

    who: Who
    told: Told
    node: _Node | None = None


@dataclass(eq=False)
class _Node:
    """A node that comes, or is there; times in ns."""

    number: int
    asked: int
    up: int | None = None
    taken: set[Who] = field(default_factory=set)
    #: Since when nobody has a slot of it.
    idle: int | None = None


class NodePool:
    """The nodes of a run that come and go, in one process: numbers from ``first`` on.

    ``gone`` is told the number of each that has gone; another one may have it then.
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
        #: Readers that have asked, at most ``spec.pending``, and those whose turn has not come; in order.
        self._asking: list[_Request] = []
        self._waiting: deque[_Request] = deque()
        #: The node of each reader that has a slot.
        self._homes: dict[Who, _Node] = {}

    def want(self, who: Who, told: Told) -> None:
        """Ask for a slot for a reader."""
        request = _Request(who, told)
        self._waiting.append(request)
        self.kernel.spawn(self._expire(request), "a node is waited for")
        self._turn()

    def free(self, who: Who) -> None:
        """Give a reader's slot back, if it has one."""
        node = self._homes.pop(who, None)
        if node is not None:
            self._leave(node, who)
            self._turn()

    def close(self) -> None:
        """Record how long the nodes were there that still are."""
        for node in [*self._nodes.values()]:
            self._record(node)
        self._nodes.clear()

    def _turn(self) -> None:
        """Let those ask whose turn it is, and give slots to those that ask."""
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
        """A node with a free slot, those that are there before those that come; a new one, if there may be more."""
        spec = self.spec
        free = [node for node in self._nodes.values() if len(node.taken) < spec.slots]
        if free:
            return min(free, key=lambda node: (node.up is None, node.number))
        numbers = range(self.first, self.first + spec.nodes)
        number = next((one for one in numbers if one not in self._nodes), None)
        if number is None:
            return None
        node = self._nodes[number] = _Node(number, self.kernel.now())
        self.kernel.spawn(self._come(node), "a node starts")
        return node

    async def _come(self, node: _Node) -> None:
        await self.kernel.sleep_until(node.asked + round(self.spec.start * 1e9))
        node.up = self.kernel.now()
        for request in [one for one in self._asking if one.node is node]:
            self._grant(request)
        if not node.taken:
            self._rest(node)
        self._turn()

    def _grant(self, request: _Request) -> None:
        node = request.node
        assert node is not None
        self._asking.remove(request)
        self._homes[request.who] = node
        request.told(node.number)

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
        request.told(None)
        self._turn()

    def _leave(self, node: _Node, who: Who) -> None:
        node.taken.discard(who)
        if not node.taken and node.up is not None:
            self._rest(node)

    def _rest(self, node: _Node) -> None:
        node.idle = self.kernel.now()
        self.kernel.spawn(self._go(node, node.idle), "a node is idle")

    async def _go(self, node: _Node, since: int) -> None:
        """Have a node go that nobody has needed since a time."""
        await self.kernel.sleep_until(since + round(self.spec.idle_timeout * 1e9))
        if node.idle == since and self._nodes.get(node.number) is node:
            del self._nodes[node.number]
            self._record(node)
            self.gone(node.number)
            self._turn()

    def _record(self, node: _Node) -> None:
        record_node(self.recorder, node.number, node.asked, node.up, self.kernel.now())


def record_node(recorder: Recorder, number: int, asked: int, up: int | None, gone: int) -> None:
    """Record a node's life: from when it was asked for until it was there, if it was, and until it had gone (ns)."""
    writer = recorder.register("pool", str(number), number)
    recorder.add(writer, "node_start", asked, gone if up is None else up, 0)
    if up is not None:
        recorder.add(writer, "node_up", up, gone, 0)
