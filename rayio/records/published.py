"""Published JSON formats of commands and files, by their names in ``rayio schema``."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records import comparison, explained, run_result
from rayio.records.record import Json, Record, schema


@dataclass(frozen=True, slots=True)
class Published:
    """A record with a published schema: the place of its JSON, and the schema's version."""

    record: type[Record]
    version: int
    where: str
    #: All versions that can be read, if several.
    readable: tuple[int, ...] = ()


PUBLISHED: dict[str, Published] = {
    "result": Published(run_result.RunResult, run_result.VERSION, "`result.json`", run_result.READABLE),
    "explain": Published(explained.Explained, explained.VERSION, "`rayio explain --json`"),
    "compare": Published(comparison.Comparison, comparison.VERSION, "`rayio compare --json`"),
}


def schema_of(name: str) -> Json:
    """Return the JSON Schema (draft 2020-12) of a published format."""
    published = PUBLISHED[name]
    title = {"$id": f"urn:rayio:{name}:{published.version}", "title": f"rayio {name}, version {published.version}"}
    described = schema(published.record)
    versions: Json = {"enum": [*published.readable]} if published.readable else {"const": published.version}
    described["properties"]["version"] = {"description": "version of this schema", **versions}
    return {"$schema": described.pop("$schema"), **title, **described}
