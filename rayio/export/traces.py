"""The spans of a run in OpenTelemetry's terms: traces, ids, parents and links.

There is a trace for each training step (root ``step``, below it a span per rank, below these the phases), for the
production of each batch (root ``send queue-3``), for each checkpoint and for each role's life; none for the run. A
rank's wait links to the production of its batch, its checkpoint to that checkpoint's trace. Ids are derived from the
run and the content of a span, so a span has the same id in every export. Spans of other libraries keep their ids,
parents and links.
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
    """Return the root of a run's ids: its id, or all of ``run.json`` for an imported run."""
    run_id = info.get("run_id")
    return run_id if isinstance(run_id, str) else json.dumps(info, sort_keys=True)


def epoch_ns(info: dict[str, Any]) -> int:
    """Return the zero of the run's clock in ns since 1970; a virtual clock starts with the simulation.

    Raises:
        StorageError: run.json has no valid time.
    """
    if info.get("engine") != "virtual":
        return 0
    if (started := info.get("started")) is None:
        return 0
    try:
        return parse_moment(str(started)) // 1_000_000_000 * 1_000_000_000
    except ValueError as error:
        raise StorageError(f"run.json is damaged: started is {str(started)[:40]!r}; {error}") from None


def spans_of(table: pa.Table, run: str, shift_ns: int = 0, *, has_batches: bool | None = None) -> Spans:
    """Return a table's spans in their traces; the table must be complete for every trace in it.

    Args:
        table: spans, in any order (columns: ``rayio.trace.span``).
        run: the root of ids, see :func:`run_key`.
        shift_ns: added to every time.
        has_batches: whether waits and checkpoints have links; None: only to spans in the table.

    Raises:
        StorageError: another library's span is damaged.
    """
    return _Traces(table, run, shift_ns, has_batches).spans()


class _Traces:
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
        self.added: list[Spans] = []

    def spans(self) -> Spans:
        self._steps()
        self._batches()
        self._checkpoints()
        self._lives()
        own = self._recorded()
        return joined([own, *self.added]) if self.added else own

    def _is(self, *names: str) -> NDArray[np.bool_]:
        codes = [code for code, text in enumerate(self.named.texts) if text in names]
        mask: NDArray[np.bool_] = np.isin(self.named.codes, codes)
        return mask

    def _resources(self) -> tuple[list[Resource], NDArray[np.int32]]:
        role, index = self.text["role"], self.text["index"]
        key = group_numbers(role.codes, index.codes, self.column["node"], self.column["pid"])
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        node, pid = self.column["node"][first].tolist(), self.column["pid"][first].tolist()
        roles, indexes = role.codes[first].tolist(), index.codes[first].tolist()
        resources = [
            Resource(role.texts[r], index.texts[i], n, p) for r, i, n, p in zip(roles, indexes, node, pid, strict=True)
        ]
        return resources, which.astype(np.int32)

    def _own_ids(self) -> Unsigned:
        """Return ids derived from the content of spans; repeated spans get distinct ids by their number."""
        word = np.zeros(self.number, np.uint64)
        for name in ("start_ns", "duration_ns", "batch", "lane", "attempt", "thread", "offset", "node", "pid"):
            word = seeds.mix((word ^ self.column[name].astype(np.int64).view(np.uint64)) * np.uint64(seeds.GOLDEN))
        for name in ("name", "role", "index"):
            column = self.text[name]
            keys = np.array([seeds.key(0, text) for text in column.texts], np.uint64)
            word = seeds.mix(word ^ keys[column.codes]) if len(keys) else word
        order = np.argsort(word, kind="stable")
        again = np.concatenate([[False], np.diff(word[order]) == 0]) if self.number else np.zeros(0, bool)
        if again.any():
            position = np.arange(self.number)
            first = np.maximum.accumulate(np.where(again, 0, position))
            nth = seeds.mix(word[order] + (position - first).astype(np.uint64))
            word[order] = np.where(again, nth, word[order])
        return span_ids(self.run, "spans", word.view(np.int64))

    def _steps(self) -> None:
        rows = np.flatnonzero(self.trace_kind == STEP)
        if not len(rows):
            return
        roots, _ = self._parents_of(rows, self.step[rows], "step", self._rank_of(rows), name="step", rank=False)
        ranks, over = self._parents_of(rows, self.batch[rows], "rank", self._rank_of(rows), name="rank")
        under = np.searchsorted(np.unique(self.step[rows]), ranks.step_key)
        self.added.append(replace(ranks.spans, trace=roots.spans.trace[under], parent=roots.spans.span[under]))
        self.added.append(roots.spans)
        self.parent[rows] = over

    def _rank_of(self, rows: Ints) -> Ints:
        ranks: Ints = self.column["rank"][rows].astype(np.int64)
        return ranks

    def _batches(self) -> None:
        rows = np.flatnonzero(self.trace_kind == BATCH)
        if not len(rows):
            return
        queues = [code for code, resource in enumerate(self.resources) if resource.role == "queue"]
        is_queue = np.isin(self.resource[rows], queues)
        roots, root_ids = self._parents_of(rows, self.batch[rows], "batch", ~is_queue, as_kind="producer")
        names = [
            resource.index if resource.role == "queue" else str(rank)
            for resource, rank in zip(
                (self.resources[code] for code in roots.spans.resource), roots.spans.numbers["rayio.rank"], strict=True
            )
        ]
        queue = numbered([f"queue-{name}" for name in names])
        sent = roots.spans.messages("send", queue)
        self.added.append(replace(sent, name=Texts([f"send {name}" for name in queue.texts], queue.codes)))
        self.parent[rows] = root_ids
        self._under(rows, ("read",))

    def _checkpoints(self) -> None:
        rows = np.flatnonzero(self.trace_kind == CHECKPOINT)
        if not len(rows):
            return
        roots, root_ids = self._parents_of(
            rows, self.step[rows], "checkpoint", self._rank_of(rows), name="checkpoint", rank=False
        )
        self.added.append(roots.spans)
        self.parent[rows] = root_ids
        self._under(rows, ("write", "load"))

    def _lives(self) -> None:
        """Set the parents of spans without a step: the current life of their role."""
        rows = np.flatnonzero(self.trace_kind == LIFE)
        if not len(rows):
            return
        role, index = self.text["role"], self.text["index"]
        actor = role.codes.astype(np.int64) << 32 | index.codes
        kinds, which = np.unique(actor[rows], return_inverse=True)
        ids = [trace_id(self.run, "role", role.texts[kind >> 32], index.texts[kind & 0xFFFFFFFF]) for kind in kinds]
        self.trace[rows] = halves(ids)[which]
        lives = rows[self._is("life")[rows]]
        others = rows[~self._is("life")[rows]]
        parent = _before(actor[others], self.start[others], actor[lives], self.start[lives])
        self.parent[others] = np.where(parent >= 0, self.span[lives[parent]] if len(lives) else 0, 0)

    def _under(self, rows: Ints, parents: tuple[str, ...]) -> None:
        """Set the parents of requests and samples: the read or write of the same role and batch."""
        group = group_numbers(self.batch[rows], self.resource[rows])
        outer, inner = self._is(*parents)[rows], self._is(*WITHIN)[rows]
        parent = _before(group[inner], self.start[rows[inner]], group[outer], self.start[rows[outer]])
        above = rows[outer][parent] if outer.any() else parent
        self.parent[rows[inner]] = np.where(
            parent >= 0, self.span[above] if outer.any() else 0, self.parent[rows[inner]]
        )

    def _parents_of(
        self, rows: Ints, keys: Ints, kind: str, prefer: NDArray[Any], *, name: str = "", rank: bool = True,
        as_kind: str = "internal",
    ) -> tuple[_Added, Unsigned]:  # fmt: skip
        """Return an added parent span for each group of rows with equal keys, and each row's parent id.

        It lasts from the group's first start to its last end; its resource is that of the first row by ``prefer``.
        """
        groups, of = np.unique(keys, return_inverse=True)
        first, last = np.full(len(groups), np.iinfo(np.int64).max), np.full(len(groups), np.iinfo(np.int64).min)
        np.minimum.at(first, of, self.start[rows])
        np.maximum.at(last, of, self.end[rows])
        order = np.lexsort((self.resource[rows], prefer, of))
        member = rows[order[np.searchsorted(of[order], np.arange(len(groups)))]]
        span = span_ids(self.run, kind, groups)
        epoch, step = (self.column[column][member].astype(np.int64) for column in ("epoch", "step"))
        ranks = self.column["rank"][member].astype(np.int64)
        if kind != "rank":
            index = (ranks, epoch, step) if rank else (epoch, step)
            ids = trace_ids(self.run, kind, *index)
            self.trace[rows] = ids[of]
        else:
            ids = np.zeros((len(groups), 2), np.uint64)
        numbers = {"rayio.epoch": epoch, "rayio.step": step} | ({"rayio.rank": ranks} if rank else {})
        columns = self._plain(len(groups), numbers) | {
            "name": numbered([name] * len(groups)), "trace": ids, "span": span, "start": first, "end": last,
            "resource": self.resource[member], "is_added": np.ones(len(groups), bool),
        }  # fmt: skip
        columns["kind"] = np.full(len(groups), KINDS[as_kind], np.int8)
        return _Added(Spans(**columns), self.step[member]), span[of]

    def _plain(self, number: int, numbers: dict[str, Ints]) -> dict[str, Any]:
        return {
            "parent": np.zeros(number, np.uint64), "kind": np.full(number, KINDS["internal"], np.int8),
            "link_trace": np.zeros((number, 2), np.uint64), "link": np.zeros(number, np.uint64),
            "resources": self.resources, "status": Texts(["ok"], np.zeros(number, np.int32)), "numbers": numbers,
            "texts": {}, "foreign": np.full(number, -1, np.int32), "foreign_spans": [],
            "is_added": np.zeros(number, bool),
        }  # fmt: skip

    def _recorded(self) -> Spans:
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
        foreign = np.flatnonzero(self.trace_kind == FOREIGN)
        if len(foreign):
            spans = replace(spans, foreign_spans=self._foreign_spans(spans, foreign))
        return spans

    def _numbers(self) -> dict[str, Ints]:
        column = {name: values.astype(np.int64) for name, values in self.column.items()}
        attributes = {f"rayio.{name}": column[name] for name in ("rank", "epoch", "step")}
        for name in ("lane", "attempt", "bytes", "requests"):
            attributes[f"rayio.{name}"] = np.where(column[name] > 0, column[name], -1)
        attributes["rayio.offset"] = column["offset"]
        attributes["thread.id"] = np.where(column["thread"] > 0, column["thread"], -1)
        return {name: values for name, values in attributes.items() if (values >= 0).any()}

    def _received(self, spans: Spans, is_wait: NDArray[np.bool_]) -> Spans:
        """Return the spans with waits as OpenTelemetry's receive spans, linked to the producer's."""
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
        traces = np.zeros((len(batches), 2), np.uint64)
        rows = np.flatnonzero(self.trace_kind == BATCH)
        own, first = np.unique(self.batch[rows], return_index=True)
        index = np.minimum(np.searchsorted(own, batches), max(len(own) - 1, 0))
        known = own[index] == batches if len(own) else np.zeros(len(batches), bool)
        traces[known] = self.trace[rows[first[index[known]]]]
        unknown = batches[~known]
        traces[~known] = trace_ids(self.run, "batch", unknown >> 42, unknown >> 30 & 0xFFF, unknown & 0x3FFFFFFF)
        return traces

    def _link_checkpoints(self, spans: Spans) -> None:
        """Link each rank's checkpoint to the trace of its writers, if recorded."""
        saved = np.unique(self.step[self.trace_kind == CHECKPOINT])
        linked = self.links_all | np.isin(self.step, saved)
        rows = np.flatnonzero(self._is("checkpoint") & (self.trace_kind == STEP) & linked)
        keys = self.step[rows]
        spans.link_trace[rows] = trace_ids(self.run, "checkpoint", keys >> 30, keys & 0x3FFFFFFF)
        spans.link[rows] = span_ids(self.run, "checkpoint", keys)

    def _foreign_spans(self, spans: Spans, rows: Ints) -> list[dict[str, Any]]:
        """Return the content of other libraries' spans, and set their original ids."""
        originals = []
        column = self.text["attributes"]
        try:
            for index, row in enumerate(rows.tolist()):
                original = json.loads(column.texts[column.codes[row]])
                spans.trace[row] = int(original["trace"][:16], 16), int(original["trace"][16:], 16)
                spans.span[row] = int(original["span"], 16)
                spans.parent[row] = int(original.get("parent", "0"), 16)
                spans.kind[row] = KINDS[original["kind"]]
                spans.foreign[row] = index
                originals.append(original)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise StorageError(
                f"a span of another library is damaged ({error!r}); its row cannot be exported"
            ) from None
        return originals


class _Added(NamedTuple):
    """Added spans, and the step of each."""

    spans: Spans
    step_key: Ints


def _before(keys: Ints, starts: Ints, parent_keys: Ints, parent_starts: Ints) -> Ints:
    """Return for each (key, start) the index of its last parent that starts no later, else of its first (-1: none)."""
    number = len(parent_keys)
    if not number:
        return np.full(len(keys), -1, np.int64)
    both, is_child = np.concatenate([parent_keys, keys]), np.repeat([0, 1], [number, len(keys)])
    order = np.lexsort((is_child, np.concatenate([parent_starts, starts]), both))
    last = np.maximum.accumulate(np.where(is_child[order] == 0, np.arange(len(order)), -1))
    position = np.empty(len(order), np.int64)
    position[order] = np.where(last >= 0, order[last], 0)
    parent = position[number:]
    by_key = np.lexsort((parent_starts, parent_keys))
    first = by_key[np.minimum(np.searchsorted(parent_keys[by_key], keys), number - 1)]
    parent = np.where(parent_keys[parent] == keys, parent, first)
    return np.where(parent_keys[parent] == keys, parent, -1)
