"""Commands in groups, as ``rayio --help`` lists them, and the options that all of them have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rayio.cli.terminal import detail

#: The groups, in the order of their listing; a command names its own as ``rich_help_panel``.
RUN, ASK, LOOK, CLUSTERS, TOOLS = "run", "ask", "look", "clusters", "tools"
GROUPS = {
    RUN: "Run a scenario",
    ASK: "Ask what limits it and what would help",
    LOOK: "Look at a run",
    CLUSTERS: "Run on clusters",
    TOOLS: "Tools",
}


class Grouped(TyperGroup):
    """An application whose commands are listed by group, and have the options -v and -q."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        options = _options()
        for command in (self, *_within(self)):
            for parameter in command.params:
                parameter.get_help_record = _plainly(parameter.get_help_record)
            command.params += options

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, or the first two words, such as ``export sdk``."""
        if (two := " ".join(args[:2])) in self.commands and len(args) > 1:
            return two, self.commands[two], args[2:]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the candidates for one word; shells would quote two."""
        return [item for item in super().shell_complete(ctx, incomplete) if " " not in item.value]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups: a line for each command, with its whole description."""
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        widest = max(len(str(command.name)) for command in commands)
        for group, title in GROUPS.items():
            rows = [
                (f"{command.name:<{widest}}", command.get_short_help_str(limit=10_000))
                for command in commands
                if getattr(command, "rich_help_panel", None) == group
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def _within(group: TyperGroup) -> Iterator[Any]:
    """Iterate over the commands of a group and of the groups in it."""
    for command in group.commands.values():
        yield command
        if isinstance(command, TyperGroup):
            yield from _within(command)


def _plainly(record: Callable[[Any], tuple[str, str] | None]) -> Callable[[Any], tuple[str, str] | None]:
    """Return what describes a parameter in ``--help``, with N or the option's name in place of a type of Python's."""

    def plain(context: Any) -> tuple[str, str] | None:
        if (described := record(context)) is None:
            return None
        name = re.sub(r" <(int|float).*>$", " N", described[0])
        if option := re.search(r"--([a-z-]+) <.*>$", name):
            return re.sub(r"<.*>$", option[1].upper().replace("-", "_"), name), described[1]
        return re.sub(r" <.*>$", "", name), described[1]

    return plain


def _verbose(value: bool) -> None:
    detail.is_verbose |= value


def _quiet(value: bool) -> None:
    detail.is_quiet |= value


def _every(
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", callback=_verbose, help="Show when each message came, and the traceback of an error."
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", callback=_quiet, help="Show no progress and no messages, but warnings."),
    ] = False,
) -> None:
    """A command with nothing but the options of every command."""


def _options() -> list[Any]:
    """Return the options of every command, of which only the callbacks get the values."""
    bare = typer.Typer(add_completion=False, rich_markup_mode=None)
    bare.command()(_every)
    options = [option for option in typer.main.get_command(bare).params if option.name in ("verbose", "quiet")]
    for option in options:
        option.expose_value = False
    return options
