"""Import of traces of training loops as run directories: torch.profiler and DFTracer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayio.errors import DataError
from rayio.imports.dlio_files import name_of
from rayio.imports.loops import Loads, RankLoop
from rayio.session.result import Run
from rayio.session.watched import Observed, write
from rayio.trace.run_directory import RunDirectory

#: Why a trace without reads has none.
UNSEEN = "torch.profiler sees no worker processes of the DataLoader; rayio.watch does"


def import_torch_profiler(
    traces: Sequence[str | Path], out: str | Path | None = None, *, batch_size: int | None = None
) -> Run:
    """Import traces of torch.profiler, one for each rank, as a run.

    Args:
        traces: files (``.json`` or ``.json.gz``), or folders of them.
        out: run directory to make; None picks ``runs/<first file's name>``.
        batch_size: samples of a batch, which no trace has.

    Raises:
        DataError: a file is no such trace, or has no batch in it; nothing is written.
        StorageError: the run directory exists or cannot be written.
    """
    from rayio.imports.torch_profiler import read_traces

    loops, loads, notes, is_inline = read_traces([Path(trace) for trace in traces])
    facts: dict[str, Any] = {"is_dataloader": True, "num_workers": 0}
    if is_inline:
        notes.append("without workers a rank loads while it waits: read has decoding in it, which no trace separates")
    else:
        notes.append("workers, prefetch_factor and the files are not in the trace: scenario.yaml has none of them")
    without = "" if is_inline else UNSEEN
    return _written("torch-profiler", traces, out, loops, loads, facts, notes, batch_size, without)


def import_dftracer(
    traces: Sequence[str | Path], out: str | Path | None = None, *, batch_size: int | None = None
) -> Run:
    """Import traces of DFTracer, such as DLIO's, as a run.

    Args:
        traces: files (``.pfw`` or ``.pfw.gz``) of all processes of a run, or their folder.
        out: run directory to make; None picks ``runs/<first file's name>``.
        batch_size: samples of a batch, where the samples of the trace have no step.

    Raises:
        DataError: a file is no such trace, or no process waited for a batch; nothing is written.
        StorageError: the run directory exists or cannot be written.
    """
    from rayio.imports.dftracer import read_traces

    loops, loads, facts, notes, without = read_traces([Path(trace) for trace in traces], batch_size)
    if facts["num_workers"]:
        notes.append("prefetch_factor is not in the trace: scenario.yaml has PyTorch's default, 2")
    return _written("dftracer", traces, out, loops, loads, facts, notes, batch_size, without)


def _written(
    engine: str,
    traces: Sequence[str | Path],
    out: str | Path | None,
    loops: Sequence[RankLoop],
    loads: Sequence[Loads],
    facts: dict[str, Any],
    notes: Sequence[str],
    batch_size: int | None,
    without_reads: str,
) -> Run:
    if not any(len(loop.step) for loop in loops):
        raise DataError(f"{traces[0]}: no batch in it has any work after it, so there is no step")
    if batch_size is not None:
        facts["batch_size"] = batch_size
    first = Path(traces[0]).absolute().name
    name = name_of(first.removesuffix(".gz").removesuffix(".json").removesuffix(".pfw").removesuffix(".pt.trace"))
    directory = RunDirectory.create(out if out is not None else Path("runs") / name)
    try:
        seen = Observed(
            name=directory.name,
            engine=engine,
            world_size=1 + max(loop.rank for loop in loops),
            hosts=len({loop.node for loop in loops}),
            loops=(*loops,),
            loads=(*loads,),
            facts=facts,
            source=f"imported from {first}",
            info={"traces": [str(Path(trace).absolute()) for trace in traces]},
            notes=(*notes, *([f"no reads are known: {without_reads}"] if without_reads else [])),
            without_reads=without_reads,
        )
        write(directory, seen)
    except BaseException:
        directory.unmake()
        raise
    return Run(directory)
