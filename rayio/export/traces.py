"""The spans of a run as OpenTelemetry has them: which trace each is in, its id, its parent, what it links to.

One trace for each training step (root ``step``, under it a span for each rank, under those the phases), one for the
production of each batch (root ``send queue-3``), one for each checkpoint, one for the life of each role; never one for
the run. A rank's wait for a batch links to the production of that batch, its checkpoint to that checkpoint's trace.
All ids follow from the run and from what a span says: the same span has the same id in every export. The spans of other
libraries keep their own ids, parents and links.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayio import seeds
from rayio.errors import StorageError
from rayio.export.select import step_keys
from rayio.export.spans import KINDS, Ints, Resource, Spans, Texts, Unsigned, group_numbers, halves, joined, numbered
from rayio.export.trace_kinds import BATCH, CHECKPOINT, FOREIGN, LIFE, STEP, WAITS, WITHIN, codes_of, trace_kinds
from rayio.trace.arrow import plain
from rayio.trace.ids import span_ids, trace_id, trace_ids
from rayio.trace.span import COLUMNS
from rayio.units import parse_moment

if TYPE_CHECKING:
    import pyarrow as pa


def run_key(info: dict[str, Any]) -> str:
    """What a run's ids are derived from; runs that were imported have no id, so all that is known of them."""
    run_id = info.get("run_id")
    return run_id if isinstance(run_id, str) else json.dumps(info, sort_keys=True)


def epoch_ns(info: dict[str, Any]) -> int:
    """When the run's clock was at zero, in ns since 1970: the virtual clock starts when the simulation did.

    Raises:
        StorageError: run.json has no time there.
    """
    if info.get("engine") != "virtual":
        return 0
    if (started := info.get("started")) is None:
        return 0
    try:
        return parse_moment(str(started)) // 1_000_000_000 * 1_000_000_000
    except ValueError as error:
        raise StorageError(f"run.json: started is {str(started)[:40]!r}; {error}: the file is damaged") from None


def spans_of(table: pa.Table, run: str, shift_ns: int = 0, *, has_batches: bool | None = None) -> Spans:
    """Put a table of spans into traces; it must hold every span of the traces that it touches.

    Args:
        table: spans, in any order (columns: ``rayio.trace.span``).
        run: what the ids are derived from, see :func:`run_key`.
        shift_ns: added to every time.
        has_batches: whether waits and checkpoints link to what others did for them; None: to what is in the table.

    Raises:
        StorageError: what another library's span says of itself is damaged.
    """
    return _Traces(table, run, shift_ns, has_batches).spans()


class _Traces:
    """One call of :func:`spans_of`."""

    def __init__(self, table: pa.Table, run: str, shift_ns: int, has_batches: bool | None) -> None:
        self.run = run
        self.column = {name: plain(table[name]) for name, kind in COLUMNS.items() if kind != "text"}
        self.text = {name: Texts(*codes_of(table, name)) for name, kind in COLUMNS.items() if kind == "text"}
        self.number = len(table)
        self.trace_kind = trace_kinds(table)
        self.links_all = bool(has_batches)
        self.has_batches = bool((self.trace_kind == BATCH).any()) if has_batches is None else has_batches
        self.start = self.column["start_ns"].astype(np.int64) + shift_ns
        self.end = self.start + self.column["duration_ns"]
        self.batch = self.column["batch"].astype(np.int64)
        self.step = step_keys(table)
        self.named = self.text["name"]
        self.resources, self.resource = self._resources()
        self.trace = np.zeros((self.number, 2), np.uint64)
        self.parent = np.zeros(self.number, np.uint64)
        self.span = self._own_ids()
        self.made: list[Spans] = []

    def spans(self) -> Spans:
        """Put the traces together."""
        self._steps()
        self._batches()
        self._checkpoints()
        self._lives()
        own = self._recorded()
        return joined([own, *self.made]) if self.made else own

    def _is(self, *names: str) -> NDArray[np.bool_]:
        codes = [code for code, text in enumerate(self.named.texts) if text in names]
        found: NDArray[np.bool_] = np.isin(self.named.codes, codes)
        return found

    def _resources(self) -> tuple[list[Resource], NDArray[np.int32]]:
        role, index = self.text["role"], self.text["index"]
        key = group_numbers(role.codes, index.codes, self.column["node"], self.column["pid"])
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        node, pid = self.column["node"][first].tolist(), self.column["pid"][first].tolist()
        roles, indexes = role.codes[first].tolist(), index.codes[first].tolist()
        found = [
            Resource(role.texts[one], index.texts[of], where, by)
            for one, of, where, by in zip(roles, indexes, node, pid, strict=True)
        ]
        return found, which.astype(np.int32)

    def _own_ids(self) -> Unsigned:
        """Derive ids from what the spans say; of spans that say the same, the second is told apart by being that."""
        word = np.zeros(self.number, np.uint64)
        for name in ("start_ns", "duration_ns", "batch", "lane", "attempt", "thread", "offset", "node", "pid"):
            word = seeds.mix((word ^ self.column[name].astype(np.int64).view(np.uint64)) * np.uint64(seeds.GOLDEN))
        for name in ("name", "role", "index"):
            said = self.text[name]
            keys = np.array([seeds.key(0, text) for text in said.texts], np.uint64)
            word = seeds.mix(word ^ keys[said.codes]) if len(keys) else word
        order = np.argsort(word, kind="stable")
        again = np.concatenate([[False], np.diff(word[order]) == 0]) if self.number else np.zeros(0, bool)
        if again.any():
            place = np.arange(self.number)
            first = np.maximum.accumulate(np.where(again, 0, place))
            # Only those: the others have the ids that they have where nothing is said twice.
            nth = seeds.mix(word[order] + (place - first).astype(np.uint64))
            word[order] = np.where(again, nth, word[order])
        return span_ids(self.run, "spans", word.view(np.int64))

    def _steps(self) -> None:
        rows = np.flatnonzero(self.trace_kind == STEP)
        if not len(rows):
            return
        roots, _ = self._made_for(rows, self.step[rows], "step", self._rank_of(rows), name="step", rank=False)
        ranks, over = self._made_for(rows, self.batch[rows], "rank", self._rank_of(rows), name="rank")
        under = np.searchsorted(np.unique(self.step[rows]), ranks.step_key)
        self.made.append(replace(ranks.spans, trace=roots.spans.trace[under], parent=roots.spans.span[under]))
        self.made.append(roots.spans)
        self.parent[rows] = over

    def _rank_of(self, rows: Ints) -> Ints:
        ranks: Ints = self.column["rank"][rows].astype(np.int64)
        return ranks

    def _batches(self) -> None:
        rows = np.flatnonzero(self.trace_kind == BATCH)
        if not len(rows):
            return
        queues = [code for code, one in enumerate(self.resources) if one.role == "queue"]
        is_queue = np.isin(self.resource[rows], queues)
        roots, root_ids = self._made_for(rows, self.batch[rows], "batch", ~is_queue, as_kind="producer")
        names = [
            one.index if one.role == "queue" else str(rank)
            for one, rank in zip(
                (self.resources[code] for code in roots.spans.resource), roots.spans.numbers["rayio.rank"], strict=True
            )
        ]
        queue = numbered([f"queue-{name}" for name in names])
        sent = roots.spans.messages("send", queue)
        self.made.append(replace(sent, name=Texts([f"send {name}" for name in queue.texts], queue.codes)))
        self.parent[rows] = root_ids
        self._under(rows, ("read",))

    def _checkpoints(self) -> None:
        rows = np.flatnonzero(self.trace_kind == CHECKPOINT)
        if not len(rows):
            return
        roots, root_ids = self._made_for(
            rows, self.step[rows], "checkpoint", self._rank_of(rows), name="checkpoint", rank=False
        )
        self.made.append(roots.spans)
        self.parent[rows] = root_ids
        self._under(rows, ("write",))

    def _lives(self) -> None:
        """Put what belongs to no step under the life of its role that had begun."""
        rows = np.flatnonzero(self.trace_kind == LIFE)
        if not len(rows):
            return
        role, index = self.text["role"], self.text["index"]
        actor = role.codes.astype(np.int64) << 32 | index.codes
        kinds, which = np.unique(actor[rows], return_inverse=True)
        ids = [trace_id(self.run, "role", role.texts[one >> 32], index.texts[one & 0xFFFFFFFF]) for one in kinds]
        self.trace[rows] = halves(ids)[which]
        lives = rows[self._is("life")[rows]]
        others = rows[~self._is("life")[rows]]
        found = _before(actor[others], self.start[others], actor[lives], self.start[lives])
        self.parent[others] = np.where(found >= 0, self.span[lives[found]] if len(lives) else 0, 0)

    def _under(self, rows: Ints, parents: tuple[str, ...]) -> None:
        """Put requests and samples under the span of the same role and batch in which they were made."""
        group = group_numbers(self.batch[rows], self.resource[rows])
        outer, inner = self._is(*parents)[rows], self._is(*WITHIN)[rows]
        found = _before(group[inner], self.start[rows[inner]], group[outer], self.start[rows[outer]])
        above = rows[outer][found] if outer.any() else found
        self.parent[rows[inner]] = np.where(
            found >= 0, self.span[above] if outer.any() else 0, self.parent[rows[inner]]
        )

    def _made_for(
        self, rows: Ints, keys: Ints, kind: str, prefer: NDArray[Any], *, name: str = "", rank: bool = True,
        as_kind: str = "internal",
    ) -> tuple[_Made, Unsigned]:  # fmt: skip
        """Make a span over each group of rows with one key, and give for each row the id of the one over it.

        It lasts from the group's first start to its last end; the resource is that of the row first by ``prefer``.
        """
        groups, of = np.unique(keys, return_inverse=True)
        first, last = np.full(len(groups), np.iinfo(np.int64).max), np.full(len(groups), np.iinfo(np.int64).min)
        np.minimum.at(first, of, self.start[rows])
        np.maximum.at(last, of, self.end[rows])
        order = np.lexsort((self.resource[rows], prefer, of))
        member = rows[order[np.searchsorted(of[order], np.arange(len(groups)))]]
        span = span_ids(self.run, kind, groups)
        epoch, step = (self.column[one][member].astype(np.int64) for one in ("epoch", "step"))
        ranks = self.column["rank"][member].astype(np.int64)
        if kind != "rank":
            index = (ranks, epoch, step) if rank else (epoch, step)
            ids = trace_ids(self.run, kind, *index)
            self.trace[rows] = ids[of]
        else:
            ids = np.zeros((len(groups), 2), np.uint64)
        numbers = {"rayio.epoch": epoch, "rayio.step": step} | ({"rayio.rank": ranks} if rank else {})
        made = self._plain(len(groups), numbers) | {
            "name": numbered([name] * len(groups)), "trace": ids, "span": span, "start": first, "end": last,
            "resource": self.resource[member], "is_made": np.ones(len(groups), bool),
        }  # fmt: skip
        made["kind"] = np.full(len(groups), KINDS[as_kind], np.int8)
        return _Made(Spans(**made), self.step[member]), span[of]

    def _plain(self, number: int, numbers: dict[str, Ints]) -> dict[str, Any]:
        return {
            "parent": np.zeros(number, np.uint64), "kind": np.full(number, KINDS["internal"], np.int8),
            "link_trace": np.zeros((number, 2), np.uint64), "link": np.zeros(number, np.uint64),
            "resources": self.resources, "status": Texts(["ok"], np.zeros(number, np.int32)), "numbers": numbers,
            "texts": {}, "foreign": np.full(number, -1, np.int32), "told": [], "is_made": np.zeros(number, bool),
        }  # fmt: skip

    def _recorded(self) -> Spans:
        """The spans of the table, once their traces and parents are known."""
        is_wait = self._is(*WAITS) & (self.trace_kind == STEP)
        spans = Spans(
            **self._plain(self.number, self._numbers())
            | {
                "name": self.named,
                "trace": self.trace,
                "span": self.span,
                "parent": self.parent,
                "start": self.start,
                "end": self.end,
                "resource": self.resource,
                "status": self.text["status"],
            }
        )
        if self.text["file"].texts not in ([], [""]):
            texts = self.text["file"].texts
            missing = np.array([not text for text in texts])
            codes = np.where(missing[self.text["file"].codes], -1, self.text["file"].codes).astype(np.int32)
            spans = replace(spans, texts={"file.path": Texts(texts, codes)})
        if is_wait.any():
            spans = self._received(spans, is_wait)
        self._link_checkpoints(spans)
        told = np.flatnonzero(self.trace_kind == FOREIGN)
        if len(told):
            spans = replace(spans, told=self._tell(spans, told))
        return spans

    def _numbers(self) -> dict[str, Ints]:
        """The values of the number columns, where they have one."""
        column = {name: values.astype(np.int64) for name, values in self.column.items()}
        said = {f"rayio.{name}": column[name] for name in ("rank", "epoch", "step")}
        for name in ("lane", "attempt", "bytes", "requests"):
            said[f"rayio.{name}"] = np.where(column[name] > 0, column[name], -1)
        said["rayio.offset"] = column["offset"]
        said["thread.id"] = np.where(column["thread"] > 0, column["thread"], -1)
        return {name: values for name, values in said.items() if (values >= 0).any()}

    def _received(self, spans: Spans, is_wait: NDArray[np.bool_]) -> Spans:
        """Make waits what OpenTelemetry calls receiving: a consumer's spans, linked to the producer's."""
        evaluates = self._is("eval_data_wait")[is_wait]
        ranks = self.column["rank"][is_wait]
        queues = numbered([f"queue-{rank}{'-eval' * bool(ev)}" for rank, ev in zip(ranks, evaluates, strict=True)])
        codes = np.full(self.number, -1, np.int32)
        codes[is_wait] = queues.codes
        names = self.named.codes.copy()
        names[is_wait] = queues.codes + len(self.named.texts)
        spans.kind[is_wait] = KINDS["consumer"]
        if self.has_batches:
            links = self.column["link"][is_wait].astype(np.int64)
            batches, which = np.unique(links, return_inverse=True)
            spans.link_trace[is_wait] = self._batch_traces(batches)[which]
            spans.link[is_wait] = span_ids(self.run, "batch", batches)[which]
        texts = self.named.texts + [f"receive {queue}" for queue in queues.texts]
        spans = spans.messages("receive", Texts(queues.texts, codes))
        was = Texts(self.named.texts, np.where(is_wait, self.named.codes, -1).astype(np.int32))
        return replace(spans, name=Texts(texts, names), texts=spans.texts | {"rayio.span": was})

    def _batch_traces(self, batches: Ints) -> Unsigned:
        """The ids of the traces of batches; of those that are in the table they are known already."""
        traces = np.zeros((len(batches), 2), np.uint64)
        rows = np.flatnonzero(self.trace_kind == BATCH)
        own, first = np.unique(self.batch[rows], return_index=True)
        place = np.minimum(np.searchsorted(own, batches), max(len(own) - 1, 0))
        known = own[place] == batches if len(own) else np.zeros(len(batches), bool)
        traces[known] = self.trace[rows[first[place[known]]]]
        unknown = batches[~known]
        traces[~known] = trace_ids(self.run, "batch", unknown >> 42, unknown >> 30 & 0xFFF, unknown & 0x3FFFFFFF)
        return traces

    def _link_checkpoints(self, spans: Spans) -> None:
        """Link each rank's checkpoint to the trace of what its writers did, where that was recorded."""
        saved = np.unique(self.step[self.trace_kind == CHECKPOINT])
        linked = self.links_all | np.isin(self.step, saved)
        rows = np.flatnonzero(self._is("checkpoint") & (self.trace_kind == STEP) & linked)
        keys = self.step[rows]
        spans.link_trace[rows] = trace_ids(self.run, "checkpoint", keys >> 30, keys & 0x3FFFFFFF)
        spans.link[rows] = span_ids(self.run, "checkpoint", keys)

    def _tell(self, spans: Spans, rows: Ints) -> list[dict[str, Any]]:
        """Read what other libraries' spans say of themselves, and give them the ids that they have."""
        told = []
        said = self.text["attributes"]
        try:
            for place, row in enumerate(rows.tolist()):
                one = json.loads(said.texts[said.codes[row]])
                spans.trace[row] = int(one["trace"][:16], 16), int(one["trace"][16:], 16)
                spans.span[row] = int(one["span"], 16)
                spans.parent[row] = int(one.get("parent", "0"), 16)
                spans.kind[row] = KINDS[one["kind"]]
                spans.foreign[row] = place
                told.append(one)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise StorageError(
                f"a span of another library is damaged ({error!r}); its row cannot be exported"
            ) from None
        return told


class _Made(NamedTuple):
    """Spans that were made, and the step of each."""

    spans: Spans
    step_key: Ints


def _before(keys: Ints, starts: Ints, parent_keys: Ints, parent_starts: Ints) -> Ints:
    """Find for each (key, start) the place of the last parent of that key which starts no later, else its first."""
    number = len(parent_keys)
    if not number:
        return np.full(len(keys), -1, np.int64)
    both, is_child = np.concatenate([parent_keys, keys]), np.repeat([0, 1], [number, len(keys)])
    order = np.lexsort((is_child, np.concatenate([parent_starts, starts]), both))
    last = np.maximum.accumulate(np.where(is_child[order] == 0, np.arange(len(order)), -1))
    place = np.empty(len(order), np.int64)
    place[order] = np.where(last >= 0, order[last], 0)
    found = place[number:]
    by_key = np.lexsort((parent_starts, parent_keys))
    first = by_key[np.minimum(np.searchsorted(parent_keys[by_key], keys), number - 1)]
    found = np.where(parent_keys[found] == keys, found, first)
    return np.where(parent_keys[found] == keys, found, -1)
