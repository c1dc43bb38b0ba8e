"""The least dataset by the rules of MLPerf Storage as text."""

from __future__ import annotations

from rayio.records.sizing import DatasetSize
from rayio.report.text.terms import counted
from rayio.units import format_bytes


def text(size: DatasetSize) -> str:
    """Return the answer as lines for a terminal."""
    memory, per_file = size.hosts * size.memory_bytes, size.samples_per_file * size.sample_bytes
    accelerators, hosts = counted(size.accelerators, "accelerator"), counted(size.hosts, "host")
    ratio = f"5 × {format_bytes(memory)} / {format_bytes(per_file)}"
    remedy = ", which is enough" if size.files_now >= size.files else f"; use dataset.num_files={size.num_files}"
    now = f"it has {size.files_now:,}{remedy}"
    return "\n".join(
        [
            f"{size.scenario} needs {counted(size.files, 'file')} ({format_bytes(size.dataset_bytes)}) for "
            f"{accelerators} on {hosts} of {format_bytes(size.memory_bytes)}; {now}",
            f"  by memory {size.files_by_memory:>14,} files  {ratio} a file" + _holds(size, "memory"),
            f"  by steps  {size.files_by_steps:>14,} files  500 × {size.shares} × {size.batch_size} samples / "
            f"{size.samples_per_file} a file" + _holds(size, "steps"),
            f"  an epoch has {size.steps_per_epoch:,} steps per accelerator",
            *(f"  note: {note}" for note in size.notes),
        ]
    )


def _holds(size: DatasetSize, bound: str) -> str:
    return "  (holds)" if size.bound == bound else ""
