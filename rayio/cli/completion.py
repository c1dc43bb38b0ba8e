"""Tab completion: scripts for shells, and the candidates at the cursor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer

from rayio.cli.grouped import TOOLS

#: Environment variable with the line up to the cursor, set by a shell that asks for candidates.
VARIABLE = "_RAYIO_COMPLETE"

#: The longest description of a candidate, in characters.
_ABOUT = 70

_BASH = """\
_rayio_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" whole word
    whole="${line##*[[:space:]]}"
    word="${COMP_WORDS[COMP_CWORD]:0:${#whole}}"
    # bash breaks words at = and : and expects only the part after them
    [[ "$word" == [=:] ]] && word=""
    COMPREPLY=()
    while IFS=$'\\t' read -r value _; do
        [[ -n "$value" ]] && COMPREPLY+=("${value:$(( ${#whole} - ${#word} ))}")
    done < <(_RAYIO_COMPLETE="$line" "$1" 2>/dev/null)
    [[ "${COMPREPLY[*]}" == *[=/.] ]] && compopt -o nospace 2>/dev/null
}
complete -o nosort -o bashdefault -o default -F _rayio_complete rayio
"""

_ZSH = """\
_rayio_complete() {
    local -a plain open
    local value about
    while IFS=$'\\t' read -r value about; do
        [[ -z "$value" ]] && continue
        value="${value//:/\\\\:}"
        if [[ "$value" == *[=/.] ]]; then open+=("$value${about:+:$about}"); else plain+=("$value${about:+:$about}"); fi
    done < <(_RAYIO_COMPLETE="${(j: :)words[1,CURRENT]}" "${words[1]}" 2>/dev/null)
    (( $#plain )) && _describe -V rayio plain
    (( $#open )) && _describe -V rayio open -S ''
    (( $#plain + $#open )) || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }
compdef _rayio_complete rayio
"""

_FISH = """\
function __rayio_complete
    set -l candidates (env _RAYIO_COMPLETE=(commandline -cp | string collect) rayio 2>/dev/null)
    if test -n "$candidates"
        printf '%s\n' $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command rayio --no-files --arguments '(__rayio_complete)'
"""


class Shell(StrEnum):
    """A shell with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SCRIPTS = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print a shell's completion script.

    It completes commands, options, scenarios, keys and values. Add one line to the shell's start-up file:
    eval "$(rayio completion bash)" to ~/.bashrc, the same with zsh to ~/.zshrc, or
    rayio completion fish | source to ~/.config/fish/config.fish.

    Example:  rayio completion bash > rayio.bash
    """
    print(_SCRIPTS[shell], end="")


def answer(app: typer.Typer, line: str) -> str:
    """Return the candidates at the end of a line: one per line, with a tab and its description.

    It uses click's engine, because typer's own shells would load rich for each answer.
    """
    click = typer.Context.__mro__[1].__module__.rpartition(".")[0]
    engine = import_module(f"{click}.shell_completion")
    words = engine.split_arg_string(line)[1:]
    incomplete = words.pop() if words and not line[-1:].isspace() else ""

    def written(_: object, item: Any) -> str:
        about = " ".join((item.help or "").split())
        about = about if len(about) <= _ABOUT else f"{about[: _ABOUT - 1]}…"
        return f"{item.value}\t{about}" if about else str(item.value)

    shell: Any = type(
        "AnyShell",
        (engine.ShellComplete,),
        {
            "format_completion": written,
            "get_completion_args": lambda _: (words, incomplete),
            "source_vars": lambda _: {},
        },
    )
    candidates: str = shell(typer.main.get_command(app), {}, "rayio", VARIABLE).complete()
    return candidates


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=TOOLS)(completion)


def scenarios(incomplete: str) -> list[tuple[str, str]]:
    """Return packaged scenarios and scenario files below the working directory."""
    from rayio.scenario.source import packaged

    names = [(name, about) for name, about in packaged().items() if name.startswith(incomplete)]
    return [*names, *((path, "") for path in _paths(incomplete, (".yaml", ".yml")))]


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Return run directories, and folders that may contain some."""
    from pathlib import Path

    candidates = []
    for path in _paths(incomplete):
        is_run = Path(path, "run.json").is_file()
        candidates.append((path.rstrip("/") if is_run else path, "a run" if is_run else ""))
    return candidates


def exported(incomplete: str) -> list[tuple[str, str]]:
    """Return what can follow ``export``: runs, or the word of its second command."""
    return [
        *([("sdk", "any exporter of OpenTelemetry's SDK")] if "sdk".startswith(incomplete) else []),
        *runs(incomplete),
    ]


def _paths(incomplete: str, suffixes: tuple[str, ...] = ()) -> Iterator[str]:
    """Iterate over folders, and files with these suffixes, whose path starts with ``incomplete``."""
    folder, _, name = incomplete.rpartition("/")
    above = f"{folder}/" if folder or incomplete.startswith("/") else ""
    try:
        entries = sorted(os.scandir(above or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
            if entry.is_dir():
                yield f"{above}{entry.name}/"
            elif entry.name.endswith(suffixes) and suffixes:
                yield f"{above}{entry.name}"


def overrides(incomplete: str) -> list[tuple[str, str]]:
    """Return keys of scenarios; after ``=`` a key's values, also after a comma (for sweeps)."""
    from rayio.scenario.write import json_schema

    schema = json_schema()
    key, equals, value = incomplete.partition("=")
    if equals:
        last = value.rpartition(",")[2]
        before = incomplete[: len(incomplete) - len(last)]
        known = next((inner for name, inner in keys(schema) if name == key), {})
        return [(f"{before}{word}", "") for word in words(known) if word.startswith(last)]
    candidates: dict[str, str] = {}
    depth = key.count(".") + 1
    for name, inner in keys(schema):
        if name.startswith(key) and name != "extends":
            parts = name.split(".")
            if len(parts) > depth:  # a section: its keys come next
                candidates.setdefault(f"{'.'.join(parts[:depth])}.", "")
            else:
                candidates[f"{name}="] = str(inner.get("description", ""))
    return [*candidates.items()]


def keys_of_numbers(incomplete: str) -> list[tuple[str, str]]:
    """Return keys with whole numbers, those that count accelerators first."""
    from rayio.scenario.write import json_schema

    descriptions = {
        name: str(inner.get("description", ""))
        for name, inner in keys(json_schema())
        if "integer" in (inner.get("type"), *(part.get("type") for part in inner.get("anyOf", ())))
    }
    first = ("cluster.ranks_per_node", "cluster.nodes")
    return [
        (name, descriptions[name]) for name in dict.fromkeys((*first, *descriptions)) if name.startswith(incomplete)
    ]


def keys(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Iterate over every dotted key of scenarios, except sections, with its schema."""
    definitions = schema.get("$defs", {})

    def inside(properties: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, value in properties.items():
            parts = [value, *value.get("anyOf", ())]
            section = next((definitions[p["$ref"].rpartition("/")[2]] for p in parts if "$ref" in p), None)
            if section is None and len(parts) > 1 and all("properties" in kind for kind in parts[1:]):
                section = {
                    "properties": {key: inner for kind in parts[1:] for key, inner in kind["properties"].items()}
                }
            if section is None:
                yield prefix + name, value
            else:
                yield from inside(section.get("properties", {}), f"{prefix}{name}.")

    yield from inside(schema["properties"], prefix)


def words(value: Mapping[str, Any]) -> list[str]:
    """Return the words that a schema accepts, in YAML's spelling."""
    accepted: list[str] = []
    for part in (value, *value.get("anyOf", ())):
        known = part.get("enum", [part["const"]] if "const" in part else [])
        accepted += [str(word).lower() if isinstance(word, bool) else str(word) for word in known if word is not None]
    return [*dict.fromkeys(accepted)]


def exporters(incomplete: str) -> list[str]:
    """Return the exporters that are installed for OpenTelemetry's SDK."""
    from rayio.export.collectors.installed import installed_exporters

    return [name for name in installed_exporters() if name.startswith(incomplete)]


def among(*known: str) -> Callable[[str], list[str]]:
    """Return a completion of these words."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]
