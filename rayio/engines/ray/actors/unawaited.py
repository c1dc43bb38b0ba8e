"""Errors of an actor's tasks that nobody awaits: the collector gets them, and the first one fails the run."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import RayError

from rayio.engines.ray.transport.lines import portable
from rayio.engines.ray.transport.remote import plain


class Unawaited:
    """The errors of the tasks of one actor, which asyncio alone sees. Ray's log has them too."""

    def __init__(self, collector: Any, name: str) -> None:
        self._collector = collector
        self._name = name
        self._sent: list[Any] = []

    def listen(self) -> None:
        """Report such errors of the running loop from now on."""
        asyncio.get_running_loop().set_exception_handler(self._report)

    async def sent(self) -> None:
        """Wait until the collector has all errors so far."""
        while self._sent:
            await self._sent.pop()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Send the error of a task. Those of Ray tell the deaths of other actors, which the driver sees itself."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if not isinstance(context.get("future"), asyncio.Task) or not isinstance(error, Exception):
            return
        if not isinstance(error := plain(error), RayError):
            error.add_note(f"in {self._name}")
            self._sent.append(self._collector.failed.remote(portable(error)))
