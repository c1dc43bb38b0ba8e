"""The colours of all figures, bars and tables of a page: one for each kind of time."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.report.markup import escape


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour, in light and in dark, its meaning, and the phases, causes and spans that have it."""

    light: str
    dark: str
    meaning: str
    members: tuple[str, ...]


#: By name, in the order of the key on the page; the names are variables of the style.
COLOURS: dict[str, Colour] = {
    "compute": Colour("#1f77b8", "#4a9fe0", "computing", ("compute", "eval_compute")),
    "data_wait": Colour(
        "#d55e00", "#ee7733", "a rank waits for a batch", ("data_wait", "eval_data_wait", "unrecorded")
    ),
    "sync": Colour("#eba414", "#f2b84b", "ranks wait for each other", ("sync", "straggler", "allreduce")),
    "read": Colour("#7a4fc0", "#a98be8", "storage is asked", ("read", "open", "reading", "delay")),
    "device_copy": Colour("#117733", "#44aa77", "copies to accelerators", ("device_copy", "copy_ahead")),
    "bubble": Colour("#aa4499", "#cc77bb", "pipeline bubbles", ("bubble",)),
    "decode": Colour("#d3bf1e", "#e9dc66", "preprocessing", ("decode",)),
    "put": Colour(
        "#8a5a3c", "#b3805c", "the loader: messages, copies, order",
        ("unleased", "put", "transfer", "handoff", "reorder", "memory_bound", "pin"),
    ),
    "checkpoint": Colour(
        "#cc79a7", "#d992b8", "checkpoints",
        ("checkpoint", "snapshot", "write", "fsync", "checkpoint_wait", "restore", "broadcast", "load", "verify",
         "manifest", "serialise", "deserialise", "drain", "drain_wait"),
    ),
    "evaluate": Colour("#56b4e9", "#7cc8f2", "evaluations", ("evaluate",)),
    "startup": Colour("#c4cad1", "#5b6570", "starting, ended, or a pause", ("startup", "gap", "ended")),
    "other": Colour("#8b949e", "#8d97a3", "in no span, or a sleep that woke late", ("other", "overshoot")),
    "amount": Colour("#46566b", "#c3cedb", "how many, how fast: more is higher or darker", ("step", "ready", "rate")),
    "wrong": Colour(
        "#b3261e", "#ff7b72", "a failure, or a target that was missed", ("lost", "restart", "retry", "outage", "missed")
    ),
    "met": Colour("#1a7f37", "#3fb950", "a target that was met", ("met",)),
}  # fmt: skip


def style() -> str:
    """Return the colours as style: a variable for each, by light and dark, and a class for each member."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in COLOURS.items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in COLOURS.items())
    classes = "".join(
        f"{','.join(f'.c-{member}' for member in colour.members)}{{--c:var(--{name})}}"
        for name, colour in COLOURS.items()
    )
    # On paper a page is light, whatever the screen is: the light ones come last for it.
    dark_screen = f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f":root{{{light}}}{dark_screen}{classes}"


def key() -> str:
    """Return the meaning of each colour, as a list with its colour before it."""
    rows = "".join(
        f'<span><i class="c-{colour.members[0]}"></i>{escape(colour.meaning)}</span>' for colour in COLOURS.values()
    )
    return f'<p class="legend">{rows}</p>'
