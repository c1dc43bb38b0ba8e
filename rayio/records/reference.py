"""The schema of results as a page: ``docs/results.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import cast

from rayio.records.published import PUBLISHED, Published
from rayio.records.record import Record, members, nested, type_name

_HEAD = """\
# Results

`result.json` in a [run directory](runs.md) has the results of a run. `rayio explain --json` and
`rayio compare --json` print theirs in the same form. `rayio schema result`, `rayio schema explain` and
`rayio schema compare` print the JSON Schemas (draft 2020-12). This page is made from the schemas, by
`rayio schema result --markdown`.

```sh
rayio schema result > result.schema.json
rayio schema explain > explain.schema.json
```

In Python results are typed values: `run.result.au`, `run.result.ledger.even`,
`run.result.percentiles.data_wait.p99`. Keys work too (`run.result["au"]`), and `run.result.as_json()` returns plain
dictionaries.

- Times are seconds, shares are fractions from 0 to 1, sizes are bytes, MiB are 2**20 bytes. DLIO's numbers are percent,
  as DLIO prints them.
- `null` means "unknown"; one of the `notes` explains it. A key that is *left out when unknown* is missing instead.
- The window is the measured part of a run. It starts when every rank is warm, and ends with the last step that all
  ranks share and the pause after it.
- `version` is 2 for `result.json` and 1 for the others. Results of version 1 are still read: there the window ended
  when the first rank was done, and `time` and `share` left out the time of ranks that had ended. Within a version
  keys are only added: programs should ignore unknown keys. A damaged file is refused in one line that names the key.
  A span file with missing or impossible values is refused in one line that names the column.

All metrics of a result can be used in `expect:` by their dotted names
(`expect: {percentiles.data_wait.p99: "< 0.1"}`). `rayio compare` compares them, and a [sweep](sweep.md) has them as
columns.
"""


def to_markdown() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(line for published in PUBLISHED.values() for line in _sections(published))])


def _sections(published: Published) -> Iterator[str]:
    for place, record in nested(published.record):
        yield from _section(published.where if not place else f"{published.where}: {_title(place)}", record)


def _title(place: str) -> str:
    """Return the title of a record's place: ``ranks[]`` is "one of ``ranks``"."""
    outer = place.removesuffix("[]").removesuffix(".*")
    return f"`{place}`" if outer == place else f"one of `{outer.replace('[]', '')}`"


def _section(title: str, record: type[Record]) -> Iterator[str]:
    about = (record.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    yield from (f"## {title}", "", about, "", "| key | type | unit | meaning |", "|---|---|---|---|")
    for each in fields(cast("type", record)):
        kind = type_name(members(record)[each.name])
        if each.metadata["can_be_absent"]:
            kind = f"{kind.removesuffix(' or null')}, left out when unknown"
        yield f"| `{each.name}` | {kind} | {each.metadata['unit']} | {each.metadata['about'].replace('|', '/')} |"
    yield ""
