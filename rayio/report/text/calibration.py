"""The sentences of a calibration's notes."""

from __future__ import annotations

from functools import singledispatch

from rayio.records import calibrated as records
from rayio.units import format_bytes, format_seconds

#: Notes without numbers.
PLAIN = {
    records.Usage: "rayio simulate takes this file; change loader.num_workers, loader.prefetch_factor and the like",
    records.OneRank: "costs.neighbour: this run has one rank on a node, so what ranks of a node add to each other is "
    "not known; calibrate a run of two to predict more",
    records.PutInTake: "costs.put: part of costs.take, for no lease ever waits at a reader in this run",
    records.BarrierHidden: "costs.barrier: hidden behind the compute of this run, so it is left at 0",
    records.MemoryBound: "costs.lease: the bound on bytes in flight closed the window at times, which may be part of "
    "it",
    records.NotFull: "costs.cpu.contention: the busy runs left processors free or others used them, so it is not "
    "fitted; the interval of predictions with full processors is wider",
    records.TierGiven: "checkpoint.burst.model: not fitted, so it is as the scenario gives it; what a checkpoint took "
    "beyond it is in costs.checkpoint, and a faster tier than the model is predicted too slow",
    records.NoCheckpoint: "costs.checkpoint: no checkpoint was saved, so what one takes is not known",
}


@singledispatch
def worded(note: records.Note) -> str:
    """Return the sentence of a note."""
    return PLAIN[type(note)]


@worded.register
def _(note: records.Calibrated) -> str:
    return f"{note.scenario}, calibrated from {note.run} ({note.engine} engine, rayio {note.version})"


@worded.register
def _(note: records.LayerDelays) -> str:
    return f"storage.{note.layer}: its delays are in the fitted storage; calibrate a run without it to predict others"


@worded.register
def _(note: records.OneSize) -> str:
    return (
        f"costs.cpu: every batch had about {format_bytes(note.nbytes)}, so what a byte takes of processors is counted "
        "as the batch's, and predictions of other sizes have a wide interval; name a second short run with samples of "
        "another size to tell them apart"
    )


@worded.register
def _(note: records.DecodeFitted) -> str:
    if note.stated is None:
        return f"loader.decode: fitted to the CPU time of {note.kind}"
    return f"loader.decode: measured; the scenario said {format_seconds(note.stated)} a sample"


@worded.register
def _(note: records.StorageFitted) -> str:
    if note.is_unlimited:
        fit = "its bytes came from memory, so no limit of a device is in it: processors are the limit"
    elif not note.is_saturated and note.is_unbounded:
        fit = (
            "they showed no limit that workers share, so more workers or requests in flight are served as quickly as "
            "these; calibrate a run with more of them to find one"
        )
    elif not note.is_saturated:
        fit = "the storage was never saturated, so storage.model.bandwidth is a guess"
    else:
        alone = "" if note.is_free else "; what one connection gives alone was not seen and is a guess"
        fit = f"they had the storage saturated, so what all share is known{alone}"
    if note.is_cached and not note.is_unlimited:
        fit = (
            f"they came from the page cache, so it is a model of memory (storage.page_cache=drop reads storage); {fit}"
        )
    return f"storage.model: fitted to the reads of the run; {fit}"


@worded.register
def _(note: records.FewWaits) -> str:
    return f"costs.lease and .take: ranks waited for {note.batches} batches only; a run with fewer workers tells more"


@worded.register
def _(note: records.TakeBounded) -> str:
    seconds = format_seconds(note.seconds)
    return f"costs.take: a batch is on its way no longer than in the busy runs, which leaves {seconds}"


@worded.register
def _(note: records.SimulatedBack) -> str:
    return (
        f"costs.cpu: simulated back on {note.cores} cores, a step of the run takes {format_seconds(note.simulated)}; "
        f"it took {format_seconds(note.measured)} ({100 * (note.simulated / note.measured - 1):+.1f} %)"
    )


@worded.register
def _(note: records.NoBusyRun) -> str:
    reason = f" ({note.reason})" if note.reason else ""
    return f"costs.cpu: no busy run{reason}, so the interval of predictions with full processors is wide"


@worded.register
def _(note: records.OthersWorked) -> str:
    return (
        f"costs.cpu.contention: other programs used {100 * note.share:.0f} % of this machine's processors before the "
        "busy runs, and count as contention; calibrate while nothing else runs"
    )


@worded.register
def _(note: records.LoneBack) -> str:
    runs = f"{note.runs} lone runs are" if note.runs > 1 else "a lone run are"
    return f"costs.cpu: simulated back, steps of {runs} within {100 * note.apart:.1f} % of theirs"


@worded.register
def _(note: records.CheckBack) -> str:
    runs = f"{note.runs} check runs are" if note.runs > 1 else "a check run are"
    return (
        f"costs.cpu: steps of {runs} within {100 * note.apart:.1f} % of their simulations; nothing was fitted to them"
    )


@worded.register
def _(note: records.FullBack) -> str:
    return (
        f"costs.cpu.contention: simulated back, steps of {note.runs} busy runs are within {100 * note.apart:.1f} % of "
        "theirs"
    )


@worded.register
def _(note: records.OneCheckpoint) -> str:
    return (
        f"costs.checkpoint: one checkpoint of {format_bytes(note.nbytes)} took {format_seconds(note.seconds)}; a run "
        "with several tells how much that varies"
    )


@worded.register
def _(note: records.Checkpoints) -> str:
    return (
        f"costs.checkpoint: {note.number} checkpoints of {format_bytes(note.nbytes)} took {format_seconds(note.least)} "
        f"to {format_seconds(note.most)}, usually {format_seconds(note.usual)}; how much of it is for bytes is not "
        "known"
    )
