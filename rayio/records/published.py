"""The JSON that commands print and files hold, by the name under which ``rayio schema`` has it: one line each."""

from __future__ import annotations

from dataclasses import dataclass

from rayio.records import comparison, explained, run_result
from rayio.records.record import Json, Record, schema


@dataclass(frozen=True, slots=True)
class Published:
    """A record whose schema is published: where it is found, and the version of the schema."""

    record: type[Record]
    version: int
    where: str
    #: Versions that are read, where there are more than that one.
    readable: tuple[int, ...] = ()


PUBLISHED: dict[str, Published] = {
    "result": Published(run_result.RunResult, run_result.VERSION, "`result.json`", run_result.READABLE),
    "explain": Published(explained.Explained, explained.VERSION, "`rayio explain --json`"),
    "compare": Published(comparison.Comparison, comparison.VERSION, "`rayio compare --json`"),
}


def schema_of(name: str) -> Json:
    """Describe what is published under a name as JSON Schema (draft 2020-12)."""
    one = PUBLISHED[name]
    title = {"$id": f"urn:rayio:{name}:{one.version}", "title": f"rayio {name}, version {one.version}"}
    described = schema(one.record)
    versions: Json = {"enum": [*one.readable]} if one.readable else {"const": one.version}
    described["properties"]["version"] = {"description": "version of this schema", **versions}
    return {"$schema": described.pop("$schema"), **title, **described}
