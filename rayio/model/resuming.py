"""Going on with a run that broke off: ``resume.json`` in the run directory has its newest complete checkpoints."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from rayio.errors import StorageError
from rayio.files import parse_json
from rayio.model.ledger import Tally
from rayio.model.marks import Mark
from rayio.model.workflow import Progress, Workflow
from rayio.place import Taken
from rayio.records.failures import Restart
from rayio.records.record import DamagedRecordError
from rayio.trace.run_directory import RESUME, SCENARIO, RunDirectory

VERSION = 3
#: Complete checkpoints that the file names: if the files of one are gone, an older one serves.
MOST_MARKS = 3
#: Seconds between two writes at least, unless writing is quick: then this many times the length of the last write.
PAUSE_SECONDS = 2.0
PAUSE_WRITES = 10
#: The numbers of a tally, in order.
_NUMBERS = (
    "rank", "steps", "samples", "nbytes", "digest", "evaluation_steps", "evaluation_samples", "attempt", "skipped",
)  # fmt: skip


class Keeper:
    """A writer of ``resume.json``; it writes only complete checkpoints of which all spans are stored."""

    def __init__(self, directory: RunDirectory, world_size: int) -> None:
        self.directory = directory
        marks, self._restarts = read(directory, world_size)  # of the earlier part, if the run broke off
        #: Those in storage, and later ones that are in the burst tier alone; the oldest first.
        self._marks = [mark for mark in marks[::-1] if not mark.undrained]
        self._undrained = [mark for mark in marks[::-1] if mark.undrained]
        #: Numbers of the checkpoints in storage that the file names.
        self.named = frozenset(mark.number for mark in self._marks)
        self._complete = self._marks[-1].number if self._marks else -1
        #: The processes of stages that ended, and their number in the file.
        self.stages: Progress | None = None
        self._stages_written = 0
        #: True if the last write failed.
        self.is_failing = False
        self._is_new = False
        self._written_at, self._pause = -PAUSE_SECONDS, PAUSE_SECONDS

    def keep(self, mark: Mark) -> None:
        """Add a checkpoint that all ranks have passed; those without a manifest yet never replace the one with.

        If the newest ones are increments since one full checkpoint, the newest one that does not need it stays too.
        Those in the burst tier alone are counted apart.
        """
        self._is_new = True
        if mark.undrained:
            before = [known for known in self._undrained if known.number < mark.number]
            self._undrained = [*before[1 - MOST_MARKS :], mark]
            return
        self._undrained = [known for known in self._undrained if known.number > mark.number]
        earlier, latest = self._marks[: 1 - MOST_MARKS], [*self._marks[1 - MOST_MARKS :], mark]
        full = {_full(known) for known in latest}
        others = [known for known in earlier if _full(known) not in full][-1:] if len(full) == 1 else []
        stay = (known for known in earlier if known.number == self._complete or known in others)
        self._marks = [*stay, *latest]

    def remember(self, restarts: Sequence[Restart]) -> None:
        """Set the restarts so far."""
        if self._restarts != (known := tuple(restarts)):
            self._restarts, self._is_new = known, True

    def must_write(self, number: int, *, is_needed: bool) -> bool:
        """Return True if the file must be written for a checkpoint that has a manifest now.

        It must if a write is due, or if the checkpoint ``is_needed`` and all ranks have passed it.
        """
        self._complete = number
        return self.is_due or (is_needed and self.lacks(number))

    def lacks(self, number: int) -> bool:
        """Return True if all ranks have passed a checkpoint that the file does not name."""
        return number not in self.named and any(mark.number == number for mark in self._marks)

    @property
    def is_new(self) -> bool:
        """True if there is a checkpoint, or the end of a stage's process, that is not written."""
        return self._is_new or (self.stages is not None and self.stages.number != self._stages_written)

    @property
    def is_due(self) -> bool:
        """True if there is something new, and the last write is not recent."""
        return self.is_new and time.monotonic() - self._written_at >= self._pause

    def write(self, store_spans: Callable[[], object] = lambda: None) -> None:
        """Write the file, after the spans: a checkpoint that is named there has all spans before it.

        Raises:
            StorageError: no space, no permission.
        """
        began, self.is_failing = time.monotonic(), True
        ended, stages = (0, []) if self.stages is None else (self.stages.number, self.stages.plain())
        store_spans()
        content = {
            "version": VERSION,
            "checkpoints": [*map(_plain, self._marks)],
            "undrained": [*map(_plain, self._undrained)],
            "restarts": [asdict(each) for each in self._restarts],
            "stages": stages,
        }
        content["digest"] = _digest(content, self._scenario)
        self.directory.write(RESUME, json.dumps(content).encode())
        self._is_new, self._written_at, self.is_failing = False, time.monotonic(), False
        self._stages_written = ended
        self.named = frozenset(mark.number for mark in self._marks)
        self._pause = min(PAUSE_SECONDS, PAUSE_WRITES * (self._written_at - began))

    @cached_property
    def _scenario(self) -> bytes:
        """The run's scenario, as its directory has it."""
        return self.directory.store.read(SCENARIO) or b""


def read(directory: RunDirectory, world_size: int) -> tuple[list[Mark], tuple[Restart, ...]]:
    """Return the complete checkpoints of a run, the newest first, and its restarts; nothing if it saved none.

    Those that were in the burst tier alone come first.

    Raises:
        StorageError: the file is damaged, or it or the scenario was changed.
    """
    if (content := directory.store.read(RESUME)) is None:
        return [], ()
    try:
        entries = parse_json(content)
        if not isinstance(entries, dict):
            raise ValueError("it is no JSON object")
        if entries["version"] != VERSION:
            raise ValueError(f"version {entries['version']!r}")
        marks = [_mark(entry, world_size) for entry in entries["checkpoints"]]
        marks += [
            replace(mark, in_burst=frozenset((mark.number,)), undrained=frozenset((mark.number,)))
            for mark in (_mark(entry, world_size) for entry in entries["undrained"])
        ]
        restarts = tuple(Restart.of_json(entry) for entry in entries["restarts"])
        own = entries.pop("digest")
    except (ValueError, KeyError, TypeError, DamagedRecordError) as error:
        why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise StorageError(f"{directory.store.full(RESUME)} is damaged ({why}): the run cannot be resumed") from None
    if own != _digest(entries, directory.store.read(SCENARIO) or b""):
        raise StorageError(
            f"{directory.address}: {SCENARIO} or {RESUME} was changed since the run wrote it, so the run cannot be "
            "resumed; start a new run"
        )
    return marks[::-1], restarts


def stages_of(directory: RunDirectory, workflow: Workflow) -> Progress:
    """Return the processes of stages that ended in a run, as its resume file has them; see :func:`read`.

    Raises:
        StorageError: the file is damaged.
    """
    content = directory.store.read(RESUME)
    if content is None or not workflow:
        return Progress(workflow)
    try:
        return Progress.of_plain(workflow, parse_json(content)["stages"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{directory.store.full(RESUME)} is damaged ({error}): the run cannot be resumed") from None


def _plain(mark: Mark) -> dict[str, Any]:
    return {"number": mark.number, "tallies": [_entry(tally) for tally in mark.tallies]}


def _full(mark: Mark) -> int:
    """Return the number of the full checkpoint that a restore of one reads."""
    return next(iter(mark.tallies[0].chain), mark.number)


def _digest(content: Mapping[str, Any], scenario: bytes) -> str:
    """Return the digest of the file's content and of the run's scenario."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode() + b"\0" + scenario).hexdigest()


def _mark(entry: Any, world_size: int) -> Mark:
    tallies = tuple(map(_tally, entry["tallies"]))
    if [tally.rank for tally in tallies] != [*range(world_size)]:
        raise ValueError("a checkpoint has other ranks")
    return Mark(_whole(entry["number"]), tallies)


def _tally(entry: Any) -> Tally:
    rank, steps, samples, nbytes, digest, evaluations, of_them, attempt, skipped = (
        _whole(entry[name]) for name in _NUMBERS
    )
    taken = None
    if "taken" in entry:
        epoch, low, extra = entry["taken"]
        taken = Taken(epoch if epoch == -1 else _whole(epoch), _whole(low), tuple(map(_whole, extra)))
    return Tally(
        rank, steps, samples, nbytes, digest, evaluations, of_them, attempt, skipped=skipped, taken=taken,
        chain=tuple(map(_whole, entry.get("chain", ()))),
    )  # fmt: skip


def _entry(tally: Tally) -> dict[str, Any]:
    numbers: dict[str, Any] = {name: getattr(tally, name) for name in _NUMBERS}
    lists = {"taken": tally.taken, "chain": tally.chain}
    return numbers | {name: entries for name, entries in lists.items() if entries}


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value
