"""The schema of results as a page to read: ``docs/results.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import cast

from rayio.results.record import Record, members, type_name
from rayio.results.run_result import (
    Books,
    Evaluation,
    Imported,
    ImportedEpoch,
    LostPoints,
    Percentiles,
    Rank,
    RunResult,
    Seconds,
    Shares,
    Statistics,
    TraceCounts,
)

_HEAD = """\
# Results

`result.json` in a [run directory](runs.md) holds what a run came to. `rayio schema result --markdown` prints this page
from the schema; `rayio schema result` prints the JSON Schema itself (draft 2020-12), for programs.

```sh
rayio schema result > result.schema.json
```

In Python the same is a typed value: `run.result.au`, `run.result.ledger.even`, `run.result.percentiles.data_wait.p99`.
Keys work as well (`run.result["au"]`), and `run.result.as_json()` gives plain dictionaries.

- Times are seconds, shares are fractions from 0 to 1, sizes are bytes, MiB are 2**20 bytes; DLIO's own numbers are
  percent, as DLIO prints them.
- `null` says "not known", and one of the `notes` says why. A key that is *left out when unknown* is then not there.
- The window here is the measured part of a run, not the queue's: from when every rank is warm to when the first rank
  is done.
- `version` is 1. Within a version keys are added, never changed or taken away: a reader passes over those that it does
  not know. A file that is damaged is refused in one line that names the key.

Every number here that is not a count of the books can be named in `expect:`, by its dotted place
(`expect: {percentiles.data_wait.p99: "< 0.1"}`), is compared by `rayio compare`, and is a column of a
[sweep](sweep.md).
"""

#: The records in the order in which a reader meets them, with the key under which each is found.
_RECORDS: tuple[tuple[str, type[Record]], ...] = (
    ("The result", RunResult),
    ("`time`", Seconds),
    ("`share`", Shares),
    ("`percentiles`", Percentiles),
    ("One kind of `percentiles`", Statistics),
    ("`evaluation`", Evaluation),
    ("One of `ranks`", Rank),
    ("`ledger`", Books),
    ("`trace`", TraceCounts),
    ("`imported`", Imported),
    ("`imported.lost_points`", LostPoints),
    ("One of `imported.epochs`", ImportedEpoch),
)


def to_markdown() -> str:
    """Write the page."""
    return "\n".join([_HEAD, *(line for title, record in _RECORDS for line in _section(title, record))])


def _section(title: str, record: type[Record]) -> Iterator[str]:
    about = (record.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    yield from (f"## {title}", "", about, "", "| key | type | unit | meaning |", "|---|---|---|---|")
    for each in fields(cast("type", record)):
        kind = type_name(members(record)[each.name])
        if each.metadata["can_be_absent"]:
            kind = f"{kind.removesuffix(' or null')}, left out when unknown"
        yield f"| `{each.name}` | {kind} | {each.metadata['unit']} | {each.metadata['about'].replace('|', '/')} |"
    yield ""
