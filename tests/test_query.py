"""Questions in SQL about a run's spans: what is answered, what is refused, what a damaged file costs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from handmade import Trace

from rayio.cli import main
from rayio.errors import QueryError
from rayio.trace.query import query
from rayio.trace.run_directory import RunDirectory
from rayio.trace.span import ADDED
from rayio.trace.span_files import write


@pytest.fixture
def run(home: Path) -> RunDirectory:
    """Three span files: ranks 0, 1 and 2, each three steps of 4 ns wait and 95 ns compute."""
    directory = RunDirectory.create(home / "r1")
    for rank in range(3):
        trace = Trace()
        trace.rank(rank, [("data_wait", 4), ("compute", 95)] * 3)
        directory.write_spans(trace.spans, f"part-{rank}")
    return directory


def rows(run: RunDirectory, sql: str) -> list[dict[str, object]]:
    answer = query(run, sql)
    assert answer.damaged == ()
    return list(answer.table.to_pylist())


def test_the_view_has_every_span_of_every_file(run: RunDirectory) -> None:
    asked = (
        "select name, count(*) n, sum(duration_ns)::bigint ns from spans where name <> 'life' group by name order by 1"
    )
    assert rows(run, asked) == [{"name": "compute", "n": 9, "ns": 855}, {"name": "data_wait", "n": 9, "ns": 36}]
    assert rows(run, "select count(*) n from spans") == [{"n": run.spans().num_rows}]
    assert rows(run, "with a as (from spans where rank = 2) select max(step) s from a") == [{"s": 2}]
    assert rows(run, "select column_name from (describe spans) limit 2") == [
        {"column_name": "name"}, {"column_name": "role"},
    ]  # fmt: skip


def test_a_run_without_spans_answers_with_nothing(home: Path) -> None:
    assert rows(RunDirectory.create(home / "empty"), "select name from spans") == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec", 'syntax error at or near "selec"'),
        ("select nam from spans", 'Referenced column "nam" not found'),
        ("select * from span", "Table with name span does not exist! The table is spans"),
        ("select offset from spans", 'the column is written "offset", in quotes'),
        ("select 'a'::int", "Could not convert string 'a'"),
        ("select name || 1 / 'x' from spans", "'x'"),
        ("", "nothing to run; give a query such as"),
        ("-- nothing", "nothing to run"),
        ("select 1; select 2", "2 statements; give one at a time"),
        ("drop view spans", "DROP is not allowed: a run is only read"),
        ("create table t as select 1", "CREATE is not allowed"),
        ("insert into spans select * from spans", "INSERT is not allowed"),
        ("delete from spans", "DELETE is not allowed"),
        ("copy spans to 'stolen.csv'", "COPY is not allowed"),
        ("copy (select 1) to 'r1/spans/part-0.parquet'", "COPY is not allowed"),
        ("attach 'other.db'", "ATTACH is not allowed"),
        ("explain analyze copy spans to 'stolen.csv'", "EXPLAIN is not allowed"),
        ("set enable_external_access = true", "SET is not allowed"),
        ("install httpfs", "LOAD is not allowed"),
        ("select * from read_csv('secret.csv')", "disabled"),
        ("select * from 'secret.csv'", "secret.csv"),
        ("select * from read_text('secret.csv')", "disabled"),
        ("select * from glob('*')", "disabled"),
        ("select * from directory", "Table with name directory does not exist"),
        ("select * from query('drop view spans')", "SELECT"),
    ],
)
def test_what_is_no_question_about_spans_is_refused_in_one_sentence(run: RunDirectory, sql: str, said: str) -> None:
    Path("secret.csv").write_text("a\n1\n")
    before = sorted(Path().rglob("*"))
    with pytest.raises(QueryError) as caught:
        query(run, sql)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(Path().rglob("*")) == before


def test_a_long_question_can_be_interrupted(run: RunDirectory) -> None:
    program = f"""if True:
        import os, signal, sys, threading, time, traceback
        from rayio.cli import main

        def interrupt():
            while True:  # until it waits for the answer
                stack = traceback.walk_stack(sys._current_frames()[threading.main_thread().ident])
                if {{"within", "_run", "query"}} <= {{frame.f_code.co_name for frame, _ in stack}}:
                    break
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        sql = "select count(*) from range(1000000) a, range(1000000) b where a.range * b.range % 1000003 = 7"
        threading.Thread(target=interrupt).start()
        main(["query", {str(run.path)!r}, sql])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rayio: interrupted\n")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    """Change one byte in the middle of the first column's data, which leaves the footer as it is."""
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_file_is_named_and_the_others_answer(run: RunDirectory, damage: Callable[[Path], None]) -> None:
    damage(run.path / "spans" / "part-1.parquet")
    answer = query(run, "select distinct rank, name from spans where name = 'compute' order by rank")
    assert answer.damaged == ("part-1.parquet",)
    assert answer.table.column("rank").to_pylist() == [0, 2]


def test_files_of_every_kind_are_asked_together_and_replaced_ones_not_twice(run: RunDirectory) -> None:
    import pyarrow.parquet as pq

    folder = run.path / "spans"
    old = pq.read_table(folder / "part-0.parquet")
    kept = [name for name in old.column_names if name not in ADDED[2]]
    pq.write_table(old.select(kept).replace_schema_metadata({"rayio.span_schema": "1"}), folder / "part-0.parquet")
    trace = Trace()
    trace.rank(3, [("data_wait", 4000), ("compute", 95000)] * 3)
    write(folder / "spans-00000.parquet", trace.spans, replaces=["part-2.parquet"])
    assert "start_us" in pq.read_schema(folder / "spans-00000.parquet").names
    asked = (
        "select rank, sum(duration_ns)::bigint ns, max(file) f, max(pid) = 0 as old from spans where name = 'compute'"
    )
    assert rows(run, f"{asked} group by rank order by 1") == [
        {"rank": rank, "ns": ns, "f": "", "old": rank == 0} for rank, ns in ((0, 285), (1, 285), (3, 285_000))
    ]
    assert rows(run, "select count(*) n from spans") == [{"n": run.spans().num_rows}]


def test_a_file_of_other_columns_is_left_out(run: RunDirectory) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"name": ["x"]}), run.path / "spans" / "other.parquet")
    assert query(run, "select count(*) from spans").damaged == ("other.parquet",)


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, Sequence[str]]:
    with pytest.raises(SystemExit) as left:
        main(["query", *arguments])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err.splitlines()


def test_the_command_prints_a_table_csv_or_json(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select rank, sum(duration_ns) ns, 1/0 inf, null none from spans where name = 'compute' group by 1 order by 1"
    code, out, err = command(capsys, "r1", sql)
    assert (code, err) == (0, [])
    assert next(line.split() for line in out.splitlines() if line.startswith("│")) == [
        "│",
        "0",
        "│",
        "285",
        "│",
        "inf",
        "│",
        "│",
    ]
    assert command(capsys, "r1", sql, "--csv")[1] == "rank,ns,inf,none\n0,285,inf,\n1,285,inf,\n2,285,inf,\n"
    _, out, _ = command(capsys, "r1", sql, "--json")
    assert json.loads(out) == [{"rank": rank, "ns": 285, "inf": None, "none": None} for rank in range(3)]
    assert command(capsys, "r1", "from spans where false", "--json")[1] == "[]\n"


def test_a_long_answer_is_cut_on_the_screen_and_whole_in_a_file(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "select a.rank r from spans a cross join spans b"
    _, out, _ = command(capsys, "r1", sql)
    assert out.splitlines()[-1] == "and 241 more rows; --csv and --json print all"
    assert len(command(capsys, "r1", sql, "--csv")[1].splitlines()) == 1 + 441


def test_the_command_ends_with_code_2_and_one_line(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["r1", "selec"], ["nope", "select 1"], ["r1", "select 1", "--csv", "--json"]):
        code, out, err = command(capsys, *arguments)
        assert (code, out, len(err)) == (2, "", 1)
    assert "two columns are named a" in command(capsys, "r1", "select 1 a, 2 a", "--json")[2][0]
    truncate(run.path / "spans" / "part-1.parquet")
    code, _, err = command(capsys, "r1", "select count(*) from spans")
    assert (code, err) == (0, ["rayio: r1/spans/part-1.parquet is damaged; its spans are left out"])
