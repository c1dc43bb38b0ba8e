"""The schema of results as a page to read: ``docs/results.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import cast

from rayio.records.published import PUBLISHED, Published
from rayio.records.record import Record, members, nested, type_name

_HEAD = """\
# Results

`result.json` in a [run directory](runs.md) holds what a run came to; `rayio explain --json` and `rayio compare --json`
print what they find in the same way. `rayio schema result`, `rayio schema explain` and `rayio schema compare` print the
JSON Schema of each (draft 2020-12), for programs; with `--markdown` they print this page, which is made from them.

```sh
rayio schema result > result.schema.json
rayio schema explain > explain.schema.json
```

In Python the same is a typed value: `run.result.au`, `run.result.ledger.even`, `run.result.percentiles.data_wait.p99`.
Keys work as well (`run.result["au"]`), and `run.result.as_json()` gives plain dictionaries.

- Times are seconds, shares are fractions from 0 to 1, sizes are bytes, MiB are 2**20 bytes; DLIO's own numbers are
  percent, as DLIO prints them.
- `null` says "not known", and one of the `notes` says why. A key that is *left out when unknown* is then not there.
- The window here is the measured part of a run, not the queue's: from when every rank is warm to the end of the last
  step that all ranks share, with the pause after it.
- `version` is 2 of `result.json`, 1 of the others. Results of version 1, in which the window ended when the first rank
  was done, are read and keep their numbers. Within a version keys are added, never changed or taken away: a reader
  passes over those that it does not know. A file that is damaged is refused in one line that names the key.

Every number of a result that is not a count of the books can be named in `expect:`, by its dotted place
(`expect: {percentiles.data_wait.p99: "< 0.1"}`), is compared by `rayio compare`, and is a column of a
[sweep](sweep.md).
"""


def to_markdown() -> str:
    """Write the page."""
    return "\n".join([_HEAD, *(line for one in PUBLISHED.values() for line in _published(one))])


def _published(one: Published) -> Iterator[str]:
    """Write a section for the whole, and one for each record in it."""
    for place, record in nested(one.record):
        yield from _section(one.where if not place else f"{one.where}: {_title(place)}", record)


def _title(place: str) -> str:
    """Name the place of a record: ``ranks[]`` is one of ``ranks``."""
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
