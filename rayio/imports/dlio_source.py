"""Workloads of DLIO as scenarios: ``dlio:workload.yaml``, and the text that ``rayio import dlio`` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rayio.errors import ScenarioError
from rayio.imports.dlio_workload import read_workload
from rayio.imports.hydra import Files, Override, override_of, parse_override
from rayio.scenario.complaints import one_of
from rayio.scenario.foreign import Converted, Opened
from rayio.scenario.source import Layer
from rayio.schema.fields import show
from rayio.version import __version__

#: The beginning of overrides in Hydra's form.
_OWN = re.compile(r"[+~]|workload(\.|$)|hydra[./]")


#: Keys of a scenario that no workload has.
_SCENARIO = ("extends", "cluster", "loader")


class Dlio:
    """Workload files of DLIO, with Hydra's overrides."""

    def is_own(self, key: str) -> bool:
        """Return True for ``++workload.…``, ``+workload.…``, ``~workload.…``, ``workload.…``, and groups."""
        return bool(_OWN.match(key)) or "/" in key

    def open(self, path: Path, label: str) -> Opened:
        """Read a workload once.

        Raises:
            ScenarioError: it cannot be read.
        """
        files = Files.open(path, label)
        if ours := [key for key in _SCENARIO if key in files.first.data]:
            keys = ", ".join(ours)
            raise ScenarioError(f"{label}: is a scenario of rayio ({keys}), not a workload of DLIO; leave dlio: out")

        def convert(overrides: Sequence[tuple[str, Any]]) -> Converted:
            return _converted(files, [_override(text, value) for text, value in overrides], path)

        return convert


DLIO = Dlio()


def _override(text: str, value: Any) -> Override:
    """Return an override from its text, or from its key and a program's value."""
    sign = next(sign for sign in ("++", "+", "~", "") if text.startswith(sign))
    if "=" in text or not sign:
        return parse_override(text) if value is None else override_of(sign, text, value)
    return override_of(sign, text.removeprefix(sign), value, has_value=value is not None or sign != "~")


def _converted(files: Files, overrides: Sequence[Override], path: Path) -> Converted:
    reading = read_workload(files.compose(overrides), path.stem)
    if reading.refused:
        raise one_of(ScenarioError, reading.refused, reading.refused)
    changes = "".join(f" {override.shown}" for override in overrides)
    data = {"source": f"DLIO's {path.name}{changes}", **reading.nested()}
    sources = {key: source for key, (_, source) in reading.out.items()}
    return Converted(Layer(data, files.label, path=path), sources, tuple(reading.changed), tuple(reading.idle))


#: Sections in the order of a scenario.
_ORDER = ("name", "source", "seed", "cluster", "dataset", "storage", "loader", "train", "checkpoint", "expect")


def to_text(converted: Converted, extra: Mapping[str, Any]) -> str:
    """Return a converted workload as the text of a scenario, with the source of each key as a comment.

    ``extra`` has further keys of the scenario, dotted, which replace those of the workload.
    """
    data = {"cluster": {"nodes": 1, "ranks_per_node": 1}, **converted.layer.data}
    sources = dict(converted.sources)
    for key in ("cluster.nodes", "cluster.ranks_per_node"):
        assumed = f": assumed, by {sources[key]}" if key in sources else " (mpirun says it)"
        sources[key] = f"not in such files{assumed}"
    sources["storage.model"] = "not in such files: assumed"
    for key, value in extra.items():
        _set(data, key.split("."), value)
        sources = {name: source for name, source in sources.items() if not f"{name}.".startswith(f"{key}.")}
    lines = [f"# Imported by rayio {__version__} from {show(data['source'])}; each comment names the key of DLIO."]
    for title, remarks in (("Acts otherwise than in DLIO", converted.changed), ("Has no effect here", converted.idle)):
        if remarks:
            folder = converted.layer.label.rpartition("/")[0]
            lines += [f"# {title}:", *(f"#   {_one_line(remark).removeprefix(f'{folder}/')}" for remark in remarks)]
    for key in sorted(data, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER)):
        lines += _written(key, data[key], sources, (), 0)
    return "\n".join(lines) + "\n"


def _set(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        inner = data.get(key)
        data[key] = dict(inner) if isinstance(inner, dict) else {}
        data = data[key]
    data[path[-1]] = value


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _written(key: str, value: Any, sources: Mapping[str, str], above: tuple[str, ...], depth: int) -> list[str]:
    """Return the lines of a key: sections in blocks, values in a line with the key's source."""
    name, indent = ".".join((*above, key)), "  " * depth
    is_section = isinstance(value, dict) and any(source.startswith(f"{name}.") for source in sources)
    if isinstance(value, dict) and (is_section or (depth == 0 and key != "expect")):
        inner = [line for k, v in value.items() for line in _written(k, v, sources, (*above, key), depth + 1)]
        return [f"{indent}{key}:", *inner]
    text = yaml.safe_dump({key: value}, default_flow_style=True, allow_unicode=True, width=1 << 20, sort_keys=False)
    text = text.strip()[1:-1]
    source = sources.get(name)
    return [f"{indent}{text}" + (f"  # {source}" if source else "")]
