"""What result.json holds: its schema, its types, and results that were written before."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from handmade import Trace, result

import rayio
from rayio.analyze.arrays import Reads, RunArrays, Timed
from rayio.analyze.metrics import measure
from rayio.analyze.shape import RunShape
from rayio.analyze.timeline import PHASES, STEP_PHASES, Lives, Steps
from rayio.cli import main
from rayio.errors import StorageError
from rayio.records.metric_names import METRICS, SPLIT, lookup
from rayio.records.published import PUBLISHED, schema_of
from rayio.records.record import units
from rayio.records.reference import to_markdown
from rayio.records.run_result import Rank, RunResult, Seconds, Shares, read_result
from rayio.report.explain import explain
from scenarios import scenario

#: A run directory as version 0.1 wrote it: two ranks, two epochs, evaluations and checkpoints.
OLD = Path(__file__).parent / "runs" / "version-0.1"

UNITS = {
    "readers",
    "worker-seconds",
    "nodes",
    "node-seconds",
    "rank-seconds",
    "batches",
    "changes",
    "",
    "s",
    "fraction",
    "percent",
    "bytes",
    "bit/s",
    "cores",
    "steps",
    "samples",
    "samples/s",
    "MiB/s",
    "ranks",
    "spans",
    "things",
    "evaluations",
    "ratio",
    "batches/s",
    "requests/s",
    "opens/s",
    "epochs",
    "bytes/s",
    "requests",
    "workers",
    "files",
    "opens",
    "runs",
}


#: Phases that version 0.1 did not have.
NEWER = ("restore", "gap", "device_copy", "bubble", "drain_wait")


def closed(schema: Any) -> Any:
    """The same schema, but a key that it does not name is an error."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(part) for key, part in schema.items()}
    is_record = schema.get("type") == "object" and "properties" in schema
    return inner | ({"additionalProperties": False} if is_record else {})


def check(content: Any, what: str = "result") -> None:
    """Let a validator that is not ours look at a result: nothing in it may be without a description."""
    jsonschema.Draft202012Validator(closed(schema_of(what))).validate(content)


@pytest.mark.parametrize("what", PUBLISHED)
def test_every_number_in_the_schema_has_a_unit_and_a_meaning(what: str) -> None:
    for name, unit, about in units(PUBLISHED[what].record):
        assert unit in UNITS, name
        assert about, name


def test_times_shares_and_bytes_have_their_units() -> None:
    of = {name: unit for name, unit, _ in units(RunResult)}
    assert (of["au"], of["wall_seconds"], of["ledger.delivered_bytes"], of["ranks[].wall"]) == (
        "fraction", "s", "bytes", "s",
    )  # fmt: skip


def test_nothing_in_the_result_of_a_run_is_without_a_description(tmp_path: Path) -> None:
    wanted = scenario(
        dataset__eval={"num_files": 12},
        train={"epochs": 2, "compute": "5 ms", "evaluate": {"compute": "2 ms"}},
        checkpoint={"every": {"epochs": 1}, "path": "c", "model": {"bytes": "1 MB"}},
    )
    for level in ("none", "step", "batch"):
        one = wanted.model_copy(update={"trace": wanted.trace.model_copy(update={"level": level})})
        run = rayio.simulate(one, out=tmp_path / level, root=tmp_path)
        check(json.loads((run.path / "result.json").read_text()))


def test_what_the_schema_does_not_know_is_found() -> None:
    whole = result(au=0.5).as_json()
    check(whole)
    for broken in (whole | {"more": 1}, whole | {"au": "x"}, whole | {"time": whole["time"] | {"nap": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            check(broken)


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    titles = [(["schema", name], f"rayio {name}, version {PUBLISHED[name].version}") for name in PUBLISHED]
    for arguments, title in (*titles, (["schema", "scenario"], None)):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
        printed = json.loads(capsys.readouterr().out)
        assert title is None or printed["title"] == title
    with pytest.raises(SystemExit) as left:
        main(["schema", "resutl"])
    assert left.value.code == 2
    assert "resutl" in capsys.readouterr().err


def test_the_page_of_results_is_that_of_the_schema() -> None:
    page = to_markdown()
    assert page == (OLD.parents[2] / "docs" / "results.md").read_text(), "stale: rayio schema result --markdown"
    rows = re.findall(r"(?m)^\| `(\w+)` \|", page)
    published = [name for one in PUBLISHED.values() for name, _, _ in units(one.record)]
    assert {*rows} == {name.rpartition(".")[2] for name in published}
    assert not re.findall(r"(?m)^\| `.*\|\s*\|$", page)


def test_what_explain_and_compare_print_is_what_their_schemas_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = scenario(
        dataset__eval={"num_files": 12},
        train={"epochs": 2, "compute": "5 ms", "evaluate": {"compute": "2 ms"}},
        loader__decode="9 ms",
        checkpoint={"every": {"epochs": 1}, "path": "c", "model": {"bytes": "1 MB"}},
    )
    other = wanted.model_copy(update={"seed": 11})
    for name, one in (("batch", wanted), ("other", other)):
        rayio.simulate(one, out=tmp_path / name, root=tmp_path)
    fine = wanted.model_copy(update={"trace": wanted.trace.model_copy(update={"level": "io"})})
    rayio.simulate(fine, out=tmp_path / "io", root=tmp_path)
    two = [str(tmp_path / "batch"), str(tmp_path / "other")]
    for arguments in (
        ["explain", two[0]], ["explain", str(tmp_path / "io")], ["explain", str(OLD), "--no-simulate"],
        ["compare", *two], ["compare", *two, str(OLD)],
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            main([*arguments, "--json"])
        printed = json.loads(capsys.readouterr().out)
        check(printed, arguments[0])
        for broken in (printed | {"more": 1}, printed | {"notes": "x"}, {**printed, "version": 2}):
            with pytest.raises(jsonschema.ValidationError):
                check(broken, arguments[0])
        assert PUBLISHED[arguments[0]].record.of_json(printed).as_json() == printed


# --- results of version 0.1 -----------------------------------------------------------------------------------------


def test_a_run_of_version_0_1_is_read_to_the_last_key() -> None:
    content = json.loads((OLD / "result.json").read_text())
    check(content)
    run = rayio.Run.open(OLD)
    origin = {"kind": "predicted", "storage": "modelled", "leaves_out": []}
    window = dict.fromkeys(("au_interval_low", "au_interval_high", "window_epochs"))
    came_later = {"percentiles": content["percentiles"] | {"fsync": None}, "origin": origin, **window}
    came_later |= {table: content[table] | dict.fromkeys((*NEWER, "ended")) for table in ("time", "share")}
    came_later["ranks"] = [row | dict.fromkeys((*NEWER, "ended")) for row in content["ranks"]]
    assert run.result.as_json() == content | came_later
    assert run.result["ledger"] == content["ledger"]
    assert run.result.ledger is not None
    assert run.result.ledger.even
    assert "AU" in run.summary()


#: What is not of the window, which then ended when the first rank was done.
_OF_THE_RUN = (
    "goodput", "wall_seconds", "world_size", "steps", "startup_skew_seconds", "au_dlio", "au_dlio_stdev",
    "samples_per_second_dlio", "samples_per_second_dlio_stdev", "time", "evaluation",
)  # fmt: skip


def test_what_was_measured_of_it_then_is_measured_of_it_now() -> None:
    content = json.loads((OLD / "result.json").read_text())
    spans = rayio.Run.open(OLD).directory.spans()
    again = measure(RunArrays.of_spans(spans), RunShape(2, 2, 1, 2, 12)).as_json()
    assert again["steps"] == 48
    for name in NEWER:
        assert {again[table].pop(name) for table in ("time", "share")} == {0}, "none was recorded then"
    ended, wall = again["time"].pop("ended"), 2 * again["wall_seconds"]
    assert again["share"] == pytest.approx({name: s / wall for name, s in {**content["time"], "ended": ended}.items()})
    assert {key: again[key] for key in _OF_THE_RUN} == {key: content[key] for key in _OF_THE_RUN}
    assert again["window_steps"] >= content["window_steps"]
    assert again["au"] < content["au"], "its last pause counts too"


def test_it_is_explained_with_the_window_of_now_and_the_difference_is_said(tmp_path: Path) -> None:
    found = explain(OLD, simulate=False)
    spans = rayio.Run.open(OLD).directory.spans()
    assert found["verdict"]["au"] == pytest.approx(measure(RunArrays.of_spans(spans), RunShape(2, 2, 1, 2, 12)).au)
    assert any("result.json has version 1" in note for note in found["notes"])


# --- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time": {"compute": "x"}}, 'time.compute is "x", expected a number or null'),
        ({"notes": ["a", 3]}, "notes[1] is 3, expected a text"),
        ({"ranks": [{"rank": 0}]}, "it has no ranks[0].au"),
        ({"steps": True}, "steps is true, expected a number or null"),
        ({"ledger": 3}, "ledger is 3, expected an object"),
        ({"window_steps": 1.5}, "window_steps is 1.5, expected a number or null"),
        ({"version": 3}, "has version 3; read it with the rayio that wrote it"),
    ],
)
def test_damage_is_named_by_its_place(change: dict[str, Any], said: str) -> None:
    content = result(au=0.5, world_size=1).as_json() | change
    with pytest.raises(StorageError) as refused:
        read_result(content, "r/result.json")
    assert said in str(refused.value)


def test_a_key_of_a_later_version_is_passed_over_and_one_that_came_later_has_its_default() -> None:
    content = result(au=0.5).as_json()
    assert read_result(content | {"of_tomorrow": {}}, "") == read_result(content, "")
    assert read_result(content, "").au == 0.5
    del content["ranks"]
    assert read_result(content, "").ranks == ()


def test_a_result_is_a_mapping_of_its_json_too() -> None:
    one = result(au=0.5, notes=("a",))
    assert dict(one) == one.as_json() == copy.deepcopy(one).as_json()
    assert one["notes"] == ["a"]
    assert "ledger" not in one
    assert one.get("ledger") is None
    with pytest.raises(AttributeError):
        one.au = 1.0  # type: ignore[misc]


def test_the_parts_of_the_time_are_the_same_everywhere() -> None:
    assert [each.name for each in fields(Seconds)] == [each.name for each in fields(Shares)] == [*SPLIT]
    assert {each.name for each in fields(Rank)} - {"rank", "au", "steps", "wall"} == {*SPLIT}
    assert {*PHASES} < {*SPLIT}


# --- arrays ---------------------------------------------------------------------------------------------------------


def test_numbers_need_no_spans() -> None:
    """Two ranks of twelve steps, as an engine without spans would give them: wait 10, compute 80, sync 10 ns."""
    ranks, steps = 2, 12
    number = ranks * steps
    life = np.repeat(np.arange(ranks), steps)
    step = np.tile(np.arange(steps), ranks)
    start = step * 100
    nothing = np.zeros(number, np.int64)
    parts = {"data_wait": nothing + 10, "compute": nothing + 80, "sync": nothing + 10}
    parts |= {name: nothing for name in STEP_PHASES if name not in parts}
    table = Steps(
        life=life, epoch=nothing, step=step, attempt=nothing, batch=np.arange(number), start=start, end=start + 100,
        arrived=start + 10, computed=start + 90, saving=start + 100, parts=parts,
    )  # fmt: skip
    split = {name: np.full(ranks, 0) for name in SPLIT}
    split |= {name: np.full(ranks, 12 * ns) for name, ns in (("data_wait", 10), ("compute", 80), ("sync", 10))}
    lives = Lives(np.arange(ranks), np.zeros(ranks, np.int64), np.full(ranks, 1200), split)
    read = Timed(life, nothing, start, nothing + 7)
    run = RunArrays(lives, table, {"read": read}, Reads(np.arange(number), nothing + (1 << 20)))

    trace = Trace(origin=0)
    for rank in range(ranks):
        trace.rank(rank, [("data_wait", 10), ("compute", 80), ("sync", 10)] * steps)
    found, of_spans = (
        measure(arrays, RunShape(ranks, 3, 1, 1, steps)) for arrays in (run, RunArrays.of_spans(trace.spans))
    )
    assert found.au == 0.8
    assert found.mib_per_second == pytest.approx(2 * 11 / 1100e-9)
    assert found.percentiles.read is not None
    assert found.percentiles.read.p50 == 7e-9
    of_reads = ("mib_per_second", "percentiles.read")
    for name in METRICS:
        if not name.startswith(of_reads):
            assert lookup(found, name) == lookup(of_spans, name), name
