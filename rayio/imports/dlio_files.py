"""The files of a result folder of DLIO."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rayio.errors import DataError
from rayio.files import parse_json, read_regular
from rayio.scenario.source import UNREADABLE, UnfitError, plain
from rayio.schema.fields import show
from rayio.units import parse_moment

SUMMARY, STATS = "summary.json", "per_epoch_stats.json"
#: Names of checkpoints in them, of all versions.
SAVED = r"(save_)?ckpt\d+"

#: Folders of the configuration, relative to the results.
CONFIGURED = ("", "configs", ".hydra_config", ".hydra")

#: Depths of results below a folder that has none: of a run, of a submission's runs.
_DEPTHS = ("*/", "*/*/")


def check_folder(folder: Path) -> None:
    """Refuse a path that is not a folder.

    Raises:
        DataError: it is not.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder with {SUMMARY}")


def stats_file(folder: Path) -> str:
    """Return the name of the file with rank 0's blocks: DLIO writes one for each rank since 2025."""
    of_rank_0 = f"0_{STATS}"
    return of_rank_0 if not (folder / STATS).exists() and (folder / of_rank_0).exists() else STATS


def rank_files(folder: Path) -> set[int]:
    """Return the ranks that have a file in a folder."""
    matches = (re.fullmatch(r"([0-9]+)_output\.json", path.name) for path in folder.iterdir())
    return {int(match[1]) for match in matches if match}


def load(folder: Path, name: str, whose: str = "") -> dict[str, Any]:
    """Return the JSON object of a file; ``whose`` is added to the path in errors.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = folder / name
    try:
        value = parse_json(read_regular(path), any_number=True)  # DLIO writes NaN for unmeasured values
    except FileNotFoundError:
        inside = [path.parent for depth in _DEPTHS for path in sorted(folder.glob(f"{depth}{SUMMARY}"))]
        more = f" and {len(inside) - 1} more folders" if len(inside) > 1 else ""
        hint = f"; there are results in {inside[0]}{more}" if inside else ""
        raise DataError(
            f"{path}: no such file; results need {SUMMARY}, {STATS} and RANK_output.json of each rank{hint}"
        ) from None
    except OSError as error:
        raise DataError(f"{path}{whose}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        what = "is truncated" if error.pos >= len(error.doc.rstrip()) - 1 else "is damaged"
        raise DataError(f"{path}{whose}: {what}: not JSON from line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        raise DataError(f"{path}{whose}: is damaged: {error}; restore it") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}{whose}: holds {type(value).__name__}, expected an object")
    return value


def whole(summary: Mapping[str, Any], key: str) -> int:
    """Return a whole number of at least 1 from the summary.

    Raises:
        DataError: it is missing or invalid.
    """
    value = summary.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise DataError(f"{SUMMARY}: {key} is {show(value)}; expected a whole number of at least 1")
    return value


def number(value: object) -> float | None:
    """Return a finite number below 1e15, None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
        return None
    return float(value)


def interval(epoch: str, name: str, entry: object, file: str = STATS) -> tuple[int, int]:
    """Return the start and end of an epoch's block or checkpoint, in ns since the Unix epoch.

    Raises:
        DataError: they are missing or invalid.
    """
    where = f"{file}: epoch {epoch} {name}"
    if not isinstance(entry, dict):
        raise DataError(f"{where}: holds {type(entry).__name__}, expected start and end")
    start, end = moment(entry, "start", where), moment(entry, "end", where)
    if end <= start:
        raise DataError(f"{where}: ends at {show(entry['end'])}, not after its start {show(entry['start'])}")
    return start, end


def moment(entry: Mapping[str, Any], key: str, where: str) -> int:
    """Return a time (UTC, as DLIO writes it without zone) in ns since the Unix epoch.

    Raises:
        DataError: it is missing or invalid.
    """
    text = entry.get(key)
    if text is None:
        raise DataError(f"{where}: has no {key}: the run failed, or the file is damaged")
    try:
        return parse_moment(str(text))
    except ValueError as error:
        raise DataError(f"{where}: {key} is {show(text)}; {error}") from None


@dataclass(frozen=True, slots=True)
class Configured:
    """The configured workload; ``source`` is its file, or empty.

    ``is_whole`` is False if only the overrides of DLIO's command line are known.
    """

    workload: dict[str, Any]
    source: str = ""
    is_whole: bool = True


def configured(folder: Path) -> Configured:
    """Return the configuration of results, else its overrides, else an empty one.

    Raises:
        DataError: a file is damaged.
    """
    for place in CONFIGURED:
        if (path := folder / place / "config.yaml").exists():
            value = _yaml(path)
            workload = value.get("workload", value) if isinstance(value, dict) else None
            if not isinstance(workload, dict):
                raise DataError(f"{path}: expected a mapping with workload; repair or remove it")
            return Configured(workload, str(Path(place) / "config.yaml"))
    for place, name in ((place, name) for name in ("overrides.yaml", "hydra.yaml") for place in CONFIGURED):
        if (path := folder / place / name).exists():
            changed = _yaml(path)
            for key in ("hydra", "overrides", "task") if name == "hydra.yaml" else ():
                changed = changed.get(key) if isinstance(changed, dict) else None
            if not isinstance(changed, list):
                raise DataError(f"{path}: expected a list of overrides; repair or remove it")
            return Configured(_overridden(changed), str(Path(place) / name), is_whole=False)
    return Configured({})


def _yaml(path: Path) -> Any:
    try:
        return plain(read_regular(path).decode())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnfitError as error:
        raise DataError(f"{path}: is damaged: {error.problem}; repair or remove it") from None
    except (yaml.YAMLError, *UNREADABLE):
        raise DataError(f"{path}: is damaged: not YAML; repair or remove it") from None


def _overridden(changes: list[Any]) -> dict[str, Any]:
    """Return the workload of Hydra's overrides: ``++workload.reader.read_threads=8`` is ``{reader: ...}``.

    >>> _overridden(["workload=unet3d_h100", "++workload.reader.read_threads=8"])
    {'model': 'unet3d_h100', 'reader': {'read_threads': 8}}
    """
    workload: dict[str, Any] = {}
    for change in changes:
        key, equals, text = str(change).lstrip("+").partition("=")
        first, *path = key.split(".")
        if first != "workload" or not equals:
            continue
        try:
            value = plain(text)
        except (yaml.YAMLError, *UNREADABLE):
            value = text
        *sections, last = path or ["model"]
        holder = workload
        for section in sections:
            inner = holder.get(section)
            if not isinstance(inner, dict):
                inner = holder[section] = {}
            holder = inner
        holder[last] = value
    return workload


def section(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the first existing section of these names, else an empty one."""
    return next((inner for name in names if isinstance(inner := config.get(name), Mapping)), {})


def few(names: list[str]) -> str:
    """Return a list of names as text, with at most six."""
    return ", ".join(names[:6]) + (f", ... ({len(names)})" if len(names) > 6 else "") if names else "none"


def name_of(text: str) -> str:
    """Return a text as a valid name of a folder and a scenario."""
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]", "-", text).strip("-.") or "imported"
