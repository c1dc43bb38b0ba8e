"""The section ``checkpoint``: the state that is saved, when, and by which writers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from rayio.kinds import SAVERS
from rayio.place import MAX_RANKS, MAX_STEPS, checkpoint_place
from rayio.scenario.address import Path
from rayio.scenario.burst import Burst
from rayio.scenario.incremental import Incremental
from rayio.scenario.parallelism import Division
from rayio.scenario.state import AnyState
from rayio.scenario.topology import PerNode, Topology
from rayio.scenario.writers import MAX_FILES, AnyWriters, BesideRanks, RankZero
from rayio.schema.choice import named
from rayio.schema.every import Every
from rayio.schema.fields import Bytes, Flag, Rate, Reads, RefusedError, Seconds, Section, none_is_null, whole
from rayio.units import BYTES, RATE

#: The most requests of writing one state: each is planned before it is made.
MAX_REQUESTS = 1 << 22


#: Values of ``restore`` besides the name of a checkpoint's folder.
NOTHING, NEWEST = "none", "newest"


def _restored(value: Any) -> str:
    if value is None or value == NOTHING:
        return NOTHING
    if value == NEWEST or (isinstance(value, str) and checkpoint_place(value) is not None):
        return str(value)
    raise RefusedError("must be none, newest, or a folder in checkpoint.path such as epoch-0000-step-00000099")


#: The value of ``phases.shift`` that means as many ranks as a node has.
NODE: Final = "node"

_FOLDERS = {"type": "string", "pattern": "^epoch-[0-9]{4,}-step-[0-9]{8,}$"}


class Phases(Section):
    """The phases of a checkpoint benchmark. All ranks begin each checkpoint together if ``train.sync`` meets."""

    writes: Annotated[int, whole(1, MAX_STEPS)] = Field(description="Checkpoints that are written, one after another.")
    reads: Annotated[int, whole(0, MAX_STEPS)] = Field(
        0, description="Checkpoints that are read back, from the first one on; at most writes."
    )
    gap: Seconds = Field(0.0, description="Pause between the last write and the first read.")
    pause: Seconds = Field(0.0, description="Pause before each checkpoint that is written or read.")
    shift: Annotated[int | Literal["node"], whole(0, MAX_RANKS, or_word=NODE)] = Field(
        0,
        description="Rank r reads back what rank r + shift saved. With node, shift is cluster.ranks_per_node, of "
        "unequal nodes the largest number: no node reads what its page cache has of its writing.",
    )

    def shifted(self, each: PerNode) -> int:
        """Return ``shift`` as a number of ranks; ``each`` are those of the nodes."""
        if isinstance(self.shift, int):
            return self.shift
        return each if isinstance(each, int) else max(each)


class Checkpoint(Section):
    """The state that is saved, when, and by which writers."""

    every: Annotated[Every | None, BeforeValidator(none_is_null)] = Field(
        None, description="When a checkpoint is due; none only with checkpoint.phases."
    )
    path: Path = Field(description="Folder of the checkpoints.")
    model: AnyState = Field(
        description="The state that a checkpoint holds: its bytes, a list of files, or the shape of a transformer."
    )
    writers: AnyWriters = Field(
        RankZero(),
        description="Who saves: rank_zero saves one state; all_ranks a whole copy each; sharded each rank's share of "
        "one state; {dedicated: n} one state in n parts; per_node and per_group one state, in a part for each node or "
        "data-parallel group; parallel each rank's part of a transformer.",
    )
    engine: Annotated[str, named(SAVERS)] = Field(
        "raw",
        description="What writes and reads the files: raw the bytes of the state, torch torch.save and torch.load, dcp "
        "torch.distributed.checkpoint. Modelled storage has the bytes of the state.",
    )
    asynchronous: Flag = Field(
        False, description="If true, ranks wait only until the state is copied, and train while it is written."
    )
    snapshot_bandwidth: Rate = Field(
        25e9, description="Bytes per second of that copy, for each rank: the speed of its link to host memory."
    )
    fsync: Flag = Field(True, description="If true, files are forced to the device before a checkpoint counts as done.")
    request_bytes: Bytes = Field(4 << 20, description="Bytes per write request, and per read request of a restore.")
    restore: Annotated[str, Reads(_restored, {"anyOf": [{"enum": [NOTHING, NEWEST, None]}, _FOLDERS]})] = Field(
        NOTHING,
        description="Checkpoint that the run reads back before its first step: the newest complete one of "
        "checkpoint.path, or a folder in it. Training then begins at its first step.",
    )

    keep: Annotated[int | None, whole(1, or_none=True)] = Field(
        None,
        description="Complete checkpoints that stay in checkpoint.path, of all runs: older ones are removed once a "
        "newer one is complete; none keeps all.",
    )
    incremental: Annotated[Incremental | None, BeforeValidator(none_is_null)] = Field(
        None,
        description="A full checkpoint now and then, and between them increments, which have what changed since the "
        "one before; none makes each full. keep then also keeps what the newest ones need.",
    )
    burst: Annotated[Burst | None, BeforeValidator(none_is_null)] = Field(
        None,
        description="A fast tier that checkpoints are written to first, and drained from behind training; none writes "
        "them to checkpoint.path alone.",
    )
    phases: Annotated[Phases | None, BeforeValidator(none_is_null)] = Field(
        None,
        description="Checkpoints alone, without training: ranks write some, pause, and read them back; none is "
        "training. The dataset is not read.",
    )

    parallelism: Annotated[Division | None, BeforeValidator(none_is_null)] = Field(
        None,
        description="How checkpoint.model is divided among ranks that all train on different batches, as DLIO's do; "
        "none is train.parallelism.",
    )

    subset_of: Annotated[int | None, whole(1, MAX_RANKS, or_none=True)] = Field(
        None,
        description="Ranks of the training whose first ranks these are: they save their parts of its model, and the "
        "others are left out (the subset mode of MLPerf Storage). These ranks train by themselves; none is all.",
    )

    def contradictions(self) -> Iterator[str]:
        """Refuse a state that cannot be, and checkpoints that are never due."""
        yield from self.model.contradictions()
        if self.every is None and self.phases is None:
            yield "checkpoint.every: is required and missing; give it, or checkpoint.phases"
        if self.phases is not None and self.phases.reads > self.phases.writes:
            yield f"checkpoint.phases.reads={self.phases.reads}: more than the {self.phases.writes} of writes"
        if self.burst is not None:
            yield from self.burst.contradictions()
        if self.phases is not None and self.keep is not None:
            yield f"checkpoint.keep={self.keep}: checkpoint.phases reads what it writes; leave one of the two out"
        if self.phases is not None and self.restore != NOTHING:
            yield (
                f"checkpoint.restore={self.restore}: checkpoint.phases reads the checkpoints that it writes; leave one "
                "of the two out"
            )

    def refusals(self, topology: Topology, ranks: int) -> Iterator[str]:
        """Refuse what these ranks cannot save: their parts, files of too many requests, too many files.

        Args:
            topology: all ranks that have the model; with ``subset_of`` more than the run's.
            ranks: those of the run.
        """
        each, phases = topology.ranks_per_node, self.phases
        shift = 0 if phases is None else phases.shifted(each)
        if self.parallelism is not None:
            yield from self.parallelism.refusals(topology.ranks, "checkpoint.parallelism")
        if (of := self.subset_of) is not None and (of < ranks or (isinstance(each, int) and of % each)):
            multiple = f"a multiple of cluster.ranks_per_node={each}, and " if isinstance(each, int) else ""
            yield f"checkpoint.subset_of={of}: must be {multiple}at least the {ranks} ranks of the run"
            return
        if of is not None and not isinstance(self.writers, BesideRanks):
            yield (
                f"checkpoint.subset_of={of}: with checkpoint.writers={self.writers.kind}, one rank saves for others; "
                "use parallel, sharded, all_ranks or per_group"
            )
            return
        if refused := [*self.model.refusals(topology)] or [*self.writers.refusals(self.model, topology)]:
            own = "train.parallelism" if self.parallelism is None else "checkpoint.parallelism"
            yield from (line.replace("train.parallelism", own) for line in refused)
            return
        if phases is not None and phases.shift == NODE and isinstance(each, tuple) and 2 * shift > ranks:
            yield (
                f"checkpoint.phases.shift=node: a node has {shift} of the {ranks} ranks, more than the others can read "
                "for it; use more equal cluster.ranks_per_node, or a number"
            )
            return
        if phases is not None and shift % ranks:
            numbers = {len(self.writers.of_rank(rank, topology)) for rank in range(ranks)}
            if len(numbers) > 1:
                yield (
                    f"checkpoint.phases.shift={phases.shift}: with these checkpoint.writers not every rank saves "
                    "a part; leave it out, or use checkpoint.writers=sharded"
                )
        largest = max(self.writers.loads(self.model, topology), default=0)
        if (requests := -(-largest // self.request_bytes)) > MAX_REQUESTS:
            least = -(-largest // (MAX_REQUESTS << 20)) << 20
            yield (
                f"checkpoint.request_bytes={BYTES.exact(self.request_bytes)}: a writer's {BYTES.exact(largest)} of "
                f"checkpoint.model take {requests} requests, at most {MAX_REQUESTS} are possible; use at least "
                f"{BYTES.exact(least)}"
            )
        files = sum(number for number, _ in self.writers.contents(self.model, topology).values())
        if files > MAX_FILES:
            yield f"checkpoint.model: {files} files; at most {MAX_FILES} are possible"

    def idle(self) -> Iterator[str]:
        """Name a copy bandwidth without an asynchronous checkpoint, and what of a state has no use."""
        yield from self.model.idle()
        if self.every is not None and self.phases is not None:
            yield "checkpoint.every: no effect, because checkpoint.phases has no training"
        if self.snapshot_bandwidth != type(self).model_fields["snapshot_bandwidth"].default and not self.asynchronous:
            rate = RATE.exact(self.snapshot_bandwidth)
            yield f"checkpoint.snapshot_bandwidth={rate}: nothing is copied without checkpoint.asynchronous=true"
