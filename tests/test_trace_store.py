from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from handmade import result

from rayio.errors import StorageError
from rayio.trace.arrow import from_ipc, to_ipc
from rayio.trace.parts import Parts
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory
from rayio.trace.span import ADDED, COLUMNS, schema


def spans(starts: list[int], role: str = "rank", index: str = "0") -> pa.Table:
    recorder = Recorder(chunk_rows=2)
    writer = recorder.register(role, index, 0)
    for start in starts:
        recorder.add(writer, "compute", start, start + 5, 0, 0, 0, start, 0, 1 << 40, 3, 1, 2)
    table = recorder.drain()
    assert table is not None
    return table


def one_line(error: pytest.ExceptionInfo[StorageError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs" / "try1", {"engine": "local"})
    run.write_scenario("name: tiny\n")
    run.write_result(result(au=0.5))
    run.log.write_text("a line\n")
    run.write_spans(spans([1, 2, 3]), "rank-0")
    again = RunDirectory.open(tmp_path / "runs" / "try1")
    assert again.info == {"version": 1, "engine": "local"}
    assert again.scenario == "name: tiny\n"
    assert again.result is not None
    assert replace(again.result, origin=None) == result(au=0.5)
    assert again.spans().to_pylist() == spans([1, 2, 3]).to_pylist()
    assert again.spans().schema.equals(schema())
    assert again.lost_files == ()
    assert sorted(path.name for path in again.path.rglob("*")) == [
        "log.txt", "rank-0.parquet", "result.json", "run.json", "scenario.yaml", "spans",
    ]  # fmt: skip


def test_spans_of_many_files_come_sorted_by_start(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(spans([7, 1], "reader", "0-0"), "a")
    run.write_spans(spans([4, 9]), "b")
    table = run.spans()
    assert table["start_ns"].to_pylist() == [1, 4, 7, 9]
    assert table["role"].to_pylist() == ["reader", "rank", "reader", "rank"]


def test_a_stem_that_is_taken_never_overwrites_spans(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    paths = [run.write_spans(spans([start]), "node-0") for start in (3, 2, 1)]
    assert [path.name for path in paths] == ["node-0.parquet", "node-0-1.parquet", "node-0-2.parquet"]
    assert run.spans()["start_ns"].to_pylist() == [1, 2, 3]


def test_a_part_is_written_without_a_look_into_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of hours has thousands: each was opened for every new one."""
    directory = RunDirectory.create(tmp_path / "run", {})
    for part in range(3):
        directory.write_spans(spans([part]), f"part-{part:05d}")
    opened: list[str] = []
    monkeypatch.setattr(pq, "read_metadata", lambda path, **_: opened.append(str(path)))
    directory.write_spans(spans([3]), "part-00003")
    monkeypatch.undo()
    assert not opened
    assert directory.spans()["start_ns"].to_pylist() == [0, 1, 2, 3]


def test_spans_written_after_a_first_look_are_seen(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert run.spans().num_rows == 0
    run.write_spans(spans([1]), "late")
    assert run.spans().num_rows == 1


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_span_file_is_named_and_the_rest_is_read(tmp_path: Path, keep: int) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(spans([1]), "whole")
    broken = run.write_spans(spans([2]), "broken")
    content = broken.read_bytes()
    broken.write_bytes(content[:keep])
    again = RunDirectory.open(run.path)
    assert again.lost_files == ("broken.parquet",)
    assert again.spans()["start_ns"].to_pylist() == [1]


@pytest.mark.parametrize("column", ["start_ns", "duration_ns", "bytes"])
def test_a_flipped_bit_in_the_numbers_of_a_span_file_never_gives_other_spans(tmp_path: Path, column: str) -> None:
    run = RunDirectory.create(tmp_path / "run")
    path = run.write_spans(spans(list(range(50))), "a")
    content, expected = path.read_bytes(), run.spans()
    pages = pq.ParquetFile(path).metadata.row_group(0).column(schema().names.index(column))
    for place in range(pages.data_page_offset, pages.data_page_offset + pages.total_compressed_size):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        again = RunDirectory.open(run.path)
        assert again.spans().equals(expected) or again.lost_files == ("a.parquet",)


def test_spans_of_another_schema_are_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    pq.write_table(pa.table({"name": ["x"]}), run.path / "spans" / "foreign.parquet")
    assert run.lost_files == ("foreign.parquet",)
    assert run.spans().num_rows == 0


def test_an_unfinished_span_file_is_not_read(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    (run.path / "spans" / "half.tmp").write_bytes(b"PAR1")
    assert (run.spans().num_rows, run.lost_files) == (0, ())


def test_compaction_keeps_every_span_in_few_files(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    for number in range(6):
        run.write_spans(spans([number, 100 - number], "reader", str(number % 3)), f"part-{number:05d}")
    before = sorted(run.spans().to_pylist(), key=str)
    run.compact(rows=8)
    assert [path.name for path in sorted((run.path / "spans").iterdir())] == [
        "spans-00000.parquet", "spans-00001.parquet",
    ]  # fmt: skip
    again = RunDirectory.open(run.path)
    assert sorted(again.spans().to_pylist(), key=str) == before
    assert again.spans()["start_ns"].to_pylist() == sorted(row["start_ns"] for row in before)
    assert again.stored == len(before) == 12


def test_compacting_twice_changes_nothing_and_later_parts_are_joined_too(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(spans([1]), "part-00000")
    run.compact()
    run.compact()
    late = run.write_spans(spans([2]), "part-00000")
    assert late.name == "part-00000-1.parquet"  # the first of that name counts no more
    assert run.spans()["start_ns"].to_pylist() == [1, 2]
    run.compact()
    assert (run.spans()["start_ns"].to_pylist(), run.stored) == ([1, 2], 2)
    assert len(list((run.path / "spans").iterdir())) == 2


@pytest.mark.parametrize(("rows", "before"), [(1000, ["spans-00000"]), (3, ["part-00000", "part-00001"])])
def test_what_was_held_to_the_end_is_written_once_and_compacted(tmp_path: Path, rows: int, before: list[str]) -> None:
    run = RunDirectory.create(tmp_path / "run")
    parts = Parts(run, rows)
    for table in (spans([2, 9], "reader"), spans([3]), spans([1], "reader")):
        parts.keep(table)
    parts.write(is_last=True)

    def stems() -> list[str]:
        return sorted(path.stem for path in (run.path / "spans").iterdir())

    assert stems() == before
    run.compact()
    assert stems() == ["spans-00000"]
    (stored,) = (run.path / "spans").iterdir()
    rows_ = pq.read_table(stored).select(["role", "start_ns"]).to_pylist()
    assert [(row["role"], row["start_ns"]) for row in rows_] == [
        ("reader", 1),
        ("reader", 2),
        ("reader", 9),
        ("rank", 3),
    ]
    assert run.spans()["start_ns"].to_pylist() == [1, 2, 3, 9]


def test_a_compaction_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(tmp_path / "run")
    for number in range(3):
        run.write_spans(spans([number]), f"part-{number}")

    def killed(self: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            run.compact()
    assert len(list((run.path / "spans").iterdir())) == 4
    again = RunDirectory.open(run.path)
    assert (again.spans()["start_ns"].to_pylist(), again.stored) == ([0, 1, 2], 3)
    again.compact()
    assert [path.name for path in (run.path / "spans").iterdir()] == ["spans-00000.parquet"]
    assert again.spans()["start_ns"].to_pylist() == [0, 1, 2]


def test_a_damaged_part_is_left_alone_by_compaction_and_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_spans(spans([1]), "a")
    broken = run.write_spans(spans([2]), "b")
    broken.write_bytes(broken.read_bytes()[:-1])
    run.compact()
    assert run.lost_files == ("b.parquet",)
    assert run.spans()["start_ns"].to_pylist() == [1]


def test_a_run_of_schema_version_1_is_read_with_the_new_columns_filled_in(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    old = spans([3, 1]).select(list(COLUMNS)[:17])
    pq.write_table(old.replace_schema_metadata({"rayio.span_schema": "1"}), run.path / "spans" / "part-0.parquet")
    expected = [{**row, **ADDED[2]} for row in old.sort_by("start_ns").to_pylist()]
    assert run.spans().to_pylist() == expected
    assert run.columns("pid", "file").to_pylist() == [{"pid": 0, "file": ""}] * 2
    run.compact()
    assert run.spans().to_pylist() == expected


def test_spans_of_a_newer_version_are_refused_by_name(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    path = run.write_spans(spans([1]), "a")
    pq.write_table(pq.read_table(path).replace_schema_metadata({"rayio.span_schema": "3"}), path)
    with pytest.raises(StorageError, match=r"a\.parquet has spans of schema version 3") as error:
        run.spans()
    one_line(error)


def test_whole_microseconds_are_stored_as_such_and_read_as_nanoseconds(tmp_path: Path) -> None:
    recorder = Recorder(resolution_ns=1000)
    writer = recorder.register("rank", "0", 0)
    for start, end in ((999, 5_001), (5_001, 7_999)):
        recorder.add(writer, "compute", 1_700_000_000_000_000_000 + start, 1_700_000_000_000_000_000 + end)
    run = RunDirectory.create(tmp_path / "run")
    table = recorder.drain()
    path = run.write_spans(table, "a")
    assert {"start_us", "duration_us"} <= set(pq.read_schema(path).names)
    assert [row["start_ns"] - 1_700_000_000_000_000_000 for row in run.spans().to_pylist()] == [0, 5000]
    assert run.columns("duration_ns")["duration_ns"].to_pylist() == [5000, 2000]


def test_some_columns_of_all_files_are_read_alone(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert run.columns("name", "bytes").num_rows == 0
    run.write_spans(spans([1, 2], "reader", "0-0"), "a")
    run.write_spans(spans([3]), "b")
    table = run.columns("role", "duration_ns").group_by("role").aggregate([("duration_ns", "sum")])
    assert sorted(table.to_pylist(), key=str) == [
        {"role": "rank", "duration_ns_sum": 5}, {"role": "reader", "duration_ns_sum": 10},
    ]  # fmt: skip


def test_a_run_that_broke_off_has_no_result_and_no_scenario(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run")
    again = RunDirectory.open(tmp_path / "run")
    assert (again.result, again.scenario) == (None, None)


def test_an_empty_directory_may_become_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert RunDirectory.create(tmp_path / "run").info == {"version": 1}


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run")
    with pytest.raises(StorageError, match="already holds a run") as error:
        RunDirectory.create(tmp_path / "run")
    assert str(tmp_path / "run") in one_line(error)


def test_a_directory_with_foreign_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(StorageError, match="not empty") as error:
        RunDirectory.create(tmp_path)
    one_line(error)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file") as error:
        RunDirectory.create(tmp_path / "file")
    one_line(error)
    with pytest.raises(StorageError, match="cannot make the run directory") as error:
        RunDirectory.create(tmp_path / "file" / "run")
    one_line(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied") as error:
        RunDirectory.create(tmp_path / "run")
    one_line(error)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (None, "no run.json"),
        ('{"version": 2}', "layout version 2"),
        ("{}", "layout version None"),
        ('{"version":', "not JSON"),
        ("[1]", "not an object"),
    ],
)
def test_what_is_not_a_run_of_this_version_is_refused(tmp_path: Path, info: str | None, message: str) -> None:
    if info is not None:
        (tmp_path / "run.json").write_text(info)
    with pytest.raises(StorageError, match=message) as error:
        RunDirectory.open(tmp_path)
    assert str(tmp_path) in one_line(error)


def test_a_path_that_does_not_exist_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such path"):
        RunDirectory.open(tmp_path / "nowhere")


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    (run.path / "result.json").write_text('{"au": 0.')
    with pytest.raises(StorageError, match=r"result\.json is not JSON"):
        _ = run.result


@pytest.mark.parametrize("au", [float("nan"), object()])
def test_a_result_that_is_no_json_leaves_the_old_one(tmp_path: Path, au: Any) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_result(result(au=0.25))
    with pytest.raises((ValueError, TypeError)):
        run.write_result(result(au=au))
    assert run.result is not None
    assert replace(run.result, origin=None) == result(au=0.25)
    assert json.loads((run.path / "result.json").read_text())["au"] == 0.25


def test_a_span_file_that_cannot_be_written_says_where_and_leaves_nothing(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    (run.path / "spans").rmdir()
    (run.path / "spans").touch()
    with pytest.raises(StorageError, match=r"spans: a part of this path is a file") as error:
        run.write_spans(spans([1]), "a")
    one_line(error)


def test_a_table_survives_its_message() -> None:
    table = pa.concat_tables([spans([1, 2, 3], "reader", "0-0"), spans([4], "rank", "7")])
    assert from_ipc(to_ipc(table)).to_pylist() == table.to_pylist()
    assert from_ipc(to_ipc(table)).schema.equals(schema())
