"""Definitions of the numbers of a report; every number on the page links to its definition."""

from __future__ import annotations

from rayio.analyze.stages import shown
from rayio.analyze.stalls import CAUSES
from rayio.report.markup import Html, escape
from rayio.trace.span import SPANS

#: Anchor -> title and text. Causes and spans are added from their own tables.
TERMS: dict[str, tuple[str, str]] = {
    "au": (
        "AU, accelerator utilisation",
        "Σ compute / Σ step time over the whole steps in the window, per rank; of a run the mean over ranks. "
        "Compute is the requested time; sleeping longer counts as overhead.",
    ),
    "window": (
        "window",
        "The measured part of a run: from the moment every rank has done its warm-up steps to the end of the last step "
        "that all ranks share, with the checkpoint or evaluation after it, on whichever rank that takes longest.",
    ),
    "step": (
        "step time",
        "From where a rank asks for its batch to where it asks for the next one; sync, blocking checkpoints and "
        "evaluations included.",
    ),
    "rate": (
        "throughput",
        "Samples whose wait ended in the window, over the window's length. In the figure each step's samples are "
        "spread evenly over that step.",
    ),
    "fetched": (
        "from device, from server, from network, from storage",
        "Bytes that came from the device, over the network or from modelled storage for what workers read in the whole "
        "run. The rest came from the page cache, in memory (storage.page_cache), or from a modelled one "
        "(storage.cache): where that is much, the other numbers measure memory and not storage.",
    ),
    "read-rate": (
        "read",
        "Bytes that storage was really asked for, of the batches consumed in the window, over its length; MiB = 2^20.",
    ),
    "exposed": (
        "exposed data loading time",
        "What prefetching did not hide: the time in which a rank had asked for a batch that was not yet there, over "
        "its step time.",
    ),
    "share": ("share of step time", "Summed over the whole steps in the window, over the sum of their step times."),
    "overhead": ("overhead", "The share of step time that no phase covers: rayio's own."),
    "goodput": (
        "goodput",
        "Compute of steps that count over the wall time, mean over ranks; start, failures and checkpoints included.",
    ),
    "au-dlio": (
        "as DLIO",
        "AU by DLIO's formula, for comparison with published MLPerf Storage results: per rank and epoch, without "
        "the first step; mean over ranks, then over epochs.",
    ),
    "draining": (
        "draining",
        "Mean time from when a checkpoint was in the burst tier to when all its files were in checkpoint.path too.",
    ),
    "saving": (
        "saving",
        "Bytes of checkpoints over the time from the first request of each to its last durable file, of all ranks. A "
        "simulation adds costs.checkpoint to that time.",
    ),
    "restoring": (
        "restoring",
        "Bytes of checkpoints read back over the time from the first request of each to the last, of all ranks.",
    ),
    "eval-au": ("AU of evaluation", "Compute over time of the evaluations, mean over ranks."),
    "wall": ("wall time", "From when the first rank began to when the last one ended."),
    "steps": ("steps", "Steps that were completed, of all ranks together; one done again after a failure counts once."),
    "split": (
        "time of the ranks",
        "The wall time of each rank cut into intervals that do not overlap, and sum to it to the nanosecond; other is "
        "the rest of its life, and ended the time after it.",
    ),
    "au-over-time": (
        "AU over time",
        "In each bin of time: compute over the time of the ranks that were alive. Start and warm-up are shown too, "
        "so that the mean over all bins is lower than AU. Work that a failure threw away is shown as what it was, and "
        "the time from the failure to the next attempt as restart.",
    ),
    "queue": (
        "queue depth",
        "Batches per prefetch queue, averaged over a bin of time exactly: being read from their lease to when they "
        "were ready at the queue, ready from then until their rank had them in hand. The window is what workers × "
        "prefetch factor permits.",
    ),
    "pace": (
        "pace",
        "Time that a rank needs for a step without the wait for other ranks, over that of the (lower) median rank in "
        "the same bin of time: 1.5 × is a rank that needs half as long again.",
    ),
    "percentile": ("percentiles", "Nearest rank: each is a time that occurred."),
    "loss": (
        "losses",
        "Every nanosecond of a step that was not compute, charged to one cause: a wait for a batch is cut at the "
        "stages of that batch, time before a worker took it is charged to what that worker did then, and the wait for "
        "other ranks to what the slowest of them had more of. Shares are means over ranks and sum with AU to 100 %.",
    ),
    "capacity": (
        "capacity",
        "How many workers there are over the mean time that a batch took in that stage: what they could deliver if "
        "they did nothing else. Busy is their time in the stage over the window.",
    ),
    "counterfactual": (
        "what would change it",
        "A replay of the run on the virtual clock, with its own measured times and one thing changed. The share "
        "of the loss that this removes is the decrease of 1 − AU; shares need not sum to 100 %, as one cause may hide "
        "another.",
    ),
    "requests": ("requests", "What the operating system or the storage was asked for, each once."),
    "sequential": (
        "sequential",
        "Requests at or after the end of the one before them, by the same role to the same file.",
    ),
    "consecutive": ("consecutive", "Requests exactly at the end of the one before them."),
    "amplification": ("read amplification", "Bytes read over bytes of the batches that ranks consumed."),
    "io-time": (
        "time in I/O",
        "Time with at least one request in flight over the wall time of the rank that it was for, and the part of "
        "it in which that rank did not compute.",
    ),
    "workers": (
        "workers",
        "Workers that came and went with the load: paid is each from when it was wanted until it had gone, at work "
        "while it got batches to read.",
    ),
    "ledger": (
        "ledger",
        "What was planned against what ranks had in hand, by sample, from the ids inside the data: every planned "
        "sample must have been delivered once.",
    ),
    "stored": ("spans", "How many the roles recorded, and how many the run directory holds."),
}
TERMS |= {f"span-{name}": (name, f"Span: {span.meaning}.") for name, span in SPANS.items()}
TERMS |= {f"cause-{name}": (shown(name), f"Cause of loss: {meaning}.") for name, meaning in CAUSES.items()}
TERMS["cause-data_wait"] = ("data_wait", "Cause of loss, of imported results: waiting for a batch, nobody says why.")
TERMS["span-other"] = ("other", "What no span covers: rayio's own overhead.")
TERMS["span-ended"] = ("ended", "The time after a rank's end, until the last rank's end.")
TERMS["span-restart"] = ("restart", "Time lost to a failure: steps done again, and the time until they began.")


def term(name: str, text: str) -> Html:
    """Return text with a link to its definition."""
    if name not in TERMS and name.startswith("cause-"):  # a layer's: the table has its meaning
        return escape(text)
    if name not in TERMS:
        raise KeyError(name)
    return Html(f'<a class="t" href="#d-{name}">{escape(text)}</a>')


def definitions() -> str:
    """Return all of them as a list."""
    rows = "".join(
        f'<dt id="d-{name}">{escape(title)}</dt><dd>{escape(text)}</dd>' for name, (title, text) in TERMS.items()
    )
    return f'<details><summary>{len(TERMS)} definitions</summary><dl class="definitions">{rows}</dl></details>'
