from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import rayio
from rayio import cli
from rayio.cli import main
from rayio.cli.grouped import GROUPS
from rayio.errors import StorageError
from rayio.records.derived import EACH_RANK
from rayio.scenario.load import build, load, packaged

Rayio = Callable[..., tuple[int, str, str]]

#: What the numbers below depend on, whatever the packaged scenario says.
SIZES = ("dataset.num_files=64", "train.epochs=3")

LOOKING = ("validate", "show", "scenarios", "schema")


@pytest.mark.parametrize("sign", ["SIGTERM", "SIGINT"])
def test_a_signal_while_the_command_line_is_loaded_is_one_line(tmp_path: Path, sign: str) -> None:
    (tmp_path / "typer.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{sign})\n")
    path = os.pathsep.join([str(tmp_path), str(Path(rayio.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", "import rayio.__main__ as door; door.main()", "run", "x.yaml"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rayio: interrupted\n")


@pytest.mark.parametrize(
    ("how", "closed"),
    [
        pytest.param(("simulate",), (1,), marks=pytest.mark.slow), (("simulate",), (0, 1, 2)),
        pytest.param(("run", "--engine", "local"), (2,), marks=pytest.mark.slow),
        (("run", "--engine", "local"), (1, 2)),
    ],
)  # fmt: skip
def test_closed_streams_change_nothing_but_what_is_seen(home: Path, closed: tuple[int, ...], how: Any) -> None:
    keys = ("train.epochs=1", "train.compute=1 ms", "checkpoint=none", "dataset.path=model://x")

    def close() -> None:
        for number in closed:
            os.close(number)

    done = subprocess.run(
        [sys.executable, "-m", "rayio", how[0], "unet3d-small", *keys, *how[1:], "--out", "r"], cwd=home, check=False,
        stdin=subprocess.PIPE, capture_output=True, text=True, preexec_fn=close,
    )  # fmt: skip
    run = rayio.Run.open(home / "r")
    assert (done.returncode, run.exit_code) == (0, 0), done.stderr
    assert run.result.trace is not None
    assert run.result.trace.stored == len(run.spans()) > 0
    assert ("AU" in done.stdout) == (1 not in closed)
    assert "our fault" not in done.stderr


def test_a_name_that_is_not_utf8_is_one_line(command: Rayio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (("simulate", "unet3d-small", "--out", "r\udcff"), ("report", "r\udcff")):
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith(r"rayio: r\xff is not UTF-8; ")
    with pytest.raises(StorageError, match=r"r\\xff: the path is not UTF-8, .*; choose another path"):
        rayio.simulate("unet3d-small", out="r\udcff")
    (there := tmp_path / "\udcfe").mkdir()
    monkeypatch.chdir(there)
    code, out, err = command("simulate", "unet3d-small", "train.epochs=1", "--out", "r")
    assert (code, out) == (2, "")
    assert r"/\xfe/r: the path is not UTF-8" in err.splitlines()[-1]
    assert [*tmp_path.iterdir()] == [there]
    assert [*there.iterdir()] == []


def test_an_end_of_file_within_is_no_interrupt(command: Rayio, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise EOFError("a connection")

    monkeypatch.setattr("rayio.scenario.load.load", broken)
    code, _, err = command("validate", "unet3d-small")
    assert code == 1
    assert "our fault: EOFError: a connection; the traceback is in" in err


@pytest.mark.parametrize("path", ["/dev/null", "/etc/passwd"])
@pytest.mark.parametrize("key", ["checkpoint.path", "dataset.path"])
def test_a_folder_that_is_a_file_is_not_valid(command: Rayio, key: str, path: str) -> None:
    code, out, err = command("validate", "unet3d-small", f"{key}={path}")
    assert (code, out) == (2, "")
    assert err == f"rayio: {key}={path} is a file; choose a folder\n"


@pytest.mark.parametrize(
    ("key", "path", "reason"),
    [
        ("dataset.path", "/dev/null/x", "a part of this path is a file, not a folder"),
        ("dataset.path", "file", "is a file; choose a folder"),
        ("dataset.eval.path", "file/x/y", "a part of this path is a file, not a folder"),
        ("checkpoint.path", "nowhere", "this symbolic link leads nowhere"),
        ("dataset.path", "nowhere/x", "this symbolic link leads nowhere"),
    ],
)
def test_a_run_and_validate_refuse_the_same_paths(command: Rayio, key: str, path: str, reason: str) -> None:
    Path("file").touch()
    Path("nowhere").symlink_to("gone")
    evaluated = ["dataset.eval.num_files=14", "train.evaluate={every: {epochs: 1}, compute: 1 ms}"]
    given = [f"{key}={path}", *(evaluated if "eval" in key else ())]
    code, out, err = command("validate", "unet3d-small", *given)
    assert (code, out, reason in err, err.count("\n")) == (2, "", True, 1), err
    assert command("run", "unet3d-small", "--engine", "local", *given) == (2, "", err)
    assert not Path("data").exists()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch, command: Rayio) -> Path:
    """Make a folder that nobody may write to, not even root."""
    folder, may = Path("closed"), os.access
    folder.mkdir()
    monkeypatch.setattr(
        os, "access", lambda p, mode: may(p, mode) and not (mode & os.W_OK and Path(p).name == folder.name)
    )
    return folder


@pytest.mark.parametrize(("key", "path"), [("dataset.path", "closed/x/y"), ("checkpoint.path", "closed")])
def test_a_run_is_refused_without_permission_and_validate_is_not(
    command: Rayio, closed: Path, key: str, path: str
) -> None:
    """A scenario of a cluster has folders that this machine need not permit."""
    code, out, err = command("run", "unet3d-small", "--engine", "local", f"{key}={path}")
    assert (code, out, "no permission to write in" in err, err.count("\n")) == (2, "", True, 1), err
    assert not Path("data").exists()
    assert command("validate", "unet3d-small", f"{key}={path}")[0] == 0


@pytest.mark.parametrize("path", ["closed", "new/below", "linked"])
def test_a_folder_that_can_be_made_or_read_is_valid(command: Rayio, closed: Path, path: str) -> None:
    Path("linked").symlink_to(closed)
    assert command("validate", "unet3d-small", f"dataset.path={path}")[0] == 0


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rayio:
    """Run a command in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, out, err

    return run


def test_validate_says_in_one_line_that_all_is_well_and_what_is_left_out(command: Rayio) -> None:
    code, out, err = command("validate", "unet3d-small", *SIZES, "loader.batch_size=3", "train.steps=4")
    assert (code, err) == (0, "")
    assert out == (
        "unet3d-small: ok: 2 ranks × 12 steps, 64 samples, 65.4 MiB; 4 samples per epoch dropped by drop_last; "
        "36 samples per epoch not visited because of train.steps\n"
    )
    assert "per epoch" not in command("validate", "unet3d-small", *SIZES, "loader.batch_size=4")[1]
    uneven = ("loader.batch_size=3", "loader.drop_last=false", "cluster.ranks_per_node=5")
    said = command("validate", "unet3d-small", *SIZES, *uneven)[1]
    assert said.startswith("unet3d-small: ok: 5 ranks × 12 to 15 steps, 64 samples"), "12 and 13 samples each"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["validate", "unet3d-smal"], "did you mean unet3d-small?"),
        (
            ["validate", "unet3d-small", "loader.batch_szie=3"],
            "loader.batch_szie=3: no such key; did you mean batch_size?",
        ),
        (["show", "unet3d-small", "seed=x"], "seed=x: must be a whole number"),
        (
            ["validate", "unet3d-small", "storage.model=nvm"],
            "storage.model=nvm: no storage model named 'nvm'; there are",
        ),
        (["validate", "unet3d-small", "expect.aux=> 1"], "aux"),
        (["validate"], "(see rayio validate --help)"),
        (["vlidate"], "validate"),
        (["validate", "unet3d-small", "--foo"], "--foo (see rayio validate --help)"),
    ],
)
def test_bad_input_is_one_line_on_standard_error_and_exit_code_2(
    command: Rayio, arguments: list[str], said: str
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("rayio: ")
    assert err.count("\n") == 1
    assert said in err


def test_show_prints_a_scenario_file_with_the_derived_numbers_as_comments(command: Rayio) -> None:
    code, out, _ = command("show", "unet3d-small", *SIZES, "loader.batch_size=4", "cluster.nodes=4")
    assert code == 0
    assert build(yaml.safe_load(out)) == load("unet3d-small", [*SIZES, "loader.batch_size=4", "cluster.nodes=4"])
    assert "# world_size: 8\n" in out
    assert "# batch_bytes: 4.09 MiB each rank\n" in out
    assert "# requests_per_sample: 3\n" in out
    Path("shown.yaml").write_text(out, encoding="utf-8")
    assert command("show", "shown.yaml")[1] == out


def test_show_tells_what_one_rank_asks_for_from_what_all_ask_for(command: Rayio) -> None:
    code, out, _ = command("show", "unet3d-h100", "cluster.ranks_per_node=8", "dataset.num_files=1000")
    assert code == 0
    assert "# read_demand: 3.01 GiB/s each rank\n" in out
    assert "# total_read_demand: 24.1 GiB/s\n" in out
    assert [line.split(":")[0][2:] for line in out.splitlines() if line.endswith(" each rank")] == [*EACH_RANK]


def test_every_derived_number_is_described_in_the_schema_of_show(command: Rayio) -> None:
    described = json.loads(command("schema", "show")[1])["properties"]["derived"]["properties"]
    for more in ((), ("train.compute=0",)):
        derived = json.loads(command("show", "unet3d-small", *more, "--json")[1])["derived"]
        assert [*derived] == [key for key in described if "missing without" not in described[key]["description"]]
        assert (derived["read_demand"] is None) == (derived["total_read_demand"] is None) == bool(more)


def test_scenarios_lists_every_packaged_one_with_a_description(command: Rayio) -> None:
    code, out, _ = command("scenarios")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [*packaged()]
    assert all(len(line.split()) > 3 for line in out.splitlines())


def test_schema_prints_json(command: Rayio) -> None:
    code, out, _ = command("schema")
    assert code == 0
    assert "loader" in json.loads(out)["properties"]


def test_every_command_has_help_with_an_example(command: Rayio) -> None:
    names = [" ".join(words) for words in COMMANDS if words and words[0] != "import"]
    assert set(LOOKING) < set(names)
    listed = command("--help")[1]
    for name in names:
        code, out, _ = command(*name.split(), "--help")
        assert code == 0
        assert f"Example:  rayio {name}" in out
        assert f"  {name}" in listed


#: Every command by its words; none is that of the application.
COMMANDS = [(), ("import",), *(("import", name) for name in ("dlio-results", "dlio", "torch-profiler", "dftracer"))] + [
    tuple((info.name or info.callback.__name__).split())
    for info in cli.application().registered_commands
    if info.callback
]


@pytest.mark.parametrize(
    ("words", "columns"), [*((words, 80) for words in COMMANDS), (("run",), 110), (("run",), 60)], ids=str
)
def test_no_help_is_wider_than_a_terminal_and_none_of_it_is_cut_off(
    command: Rayio, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = command(*words, "--help")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if len(line) > columns] == []
    assert "…" not in out
    assert not re.findall(r"<(?:str|int|float|bool|Path|list)\b.*>", out), "types of Python's"
    assert "--verbose" in out
    assert "--quiet" in out


def test_help_lists_every_command_once_in_a_group_with_its_whole_description(
    command: Rayio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = command("--help")[1]
    listing = out[out.index("Run a scenario:") :]
    heads = [line for line in listing.splitlines() if line and not line.startswith(" ")]
    assert heads == [f"{title}:" for title in GROUPS.values()]
    for words in COMMANDS:
        if words and (words[0], len(words)) != ("import", 2):
            name = " ".join(words)
            (line,) = [line for line in listing.splitlines() if line.startswith(f"  {name}  ")]
            about = command(*words, "--help")[1].split("\n\n")[1]
            assert line.removeprefix(f"  {name}").split() == about.split()
            assert line.endswith((".", "?"))


@pytest.mark.parametrize("name", ["run", "simulate", "generate", "sweep", "capacity", "advise"])
def test_a_root_that_does_not_exist_is_refused_and_not_made(command: Rayio, name: str, tmp_path: Path) -> None:
    missing = tmp_path / "typo" / "data"
    code, out, err = command(name, "unet3d-small", "--root", str(missing))
    assert (code, out) == (2, "")
    assert f"{missing} does not exist; make it (mkdir -p {missing}), or correct it" in err
    assert not missing.parent.exists()
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is not a folder" in command(name, "unet3d-small", "--root", str(tmp_path / "file"))[2]


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 130)])
def test_on_a_terminal_a_root_that_does_not_exist_is_asked_about(tmp_path: Path, answer: str, code: int) -> None:
    missing = tmp_path / "new"
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "rayio", "simulate", "unet3d-small", "train.epochs=1", "--root", str(missing)],
        stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True, check=False,
    )  # fmt: skip
    asked = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert f"--root {missing} does not exist. Make it?" in asked
    assert done.returncode == code
    assert missing.is_dir() is (answer == "y")


def test_verbose_and_quiet_may_stand_before_or_after_the_command(command: Rayio, tmp_path: Path) -> None:
    simulate = ("simulate", "unet3d-small", "train.epochs=1", "--out")
    plain = command(*simulate, "plain")
    assert "rayio: report: " in plain[2]
    for number, quiet in enumerate((("-q", *simulate, "q0"), (*simulate, "q1", "-q"), (*simulate, "q2", "--quiet"))):
        code, out, err = command(*quiet)
        assert (code, err) == (0, "")
        assert out == plain[1].replace("/plain", f"/q{number}")
    assert re.search(r"rayio: +\d+\.\d s  report: ", command(*simulate, "v", "-v")[2])
    assert "rayio: report: " in command(*simulate, "again")[2], "options are of one command"
    assert "Traceback" in command("-v", "validate", "nowhere.yaml")[2]
    assert "Traceback" not in command("validate", "nowhere.yaml")[2]


def test_version_and_a_bare_command(command: Rayio) -> None:
    assert command("--version") == (0, f"rayio {rayio.__version__}\n", "")
    code, out, err = command()
    assert code == 2
    assert "Usage: rayio" in out + err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "rayio: interrupted"),
        (rayio.errors.LedgerError("uneven\nlines"), 4, "rayio: uneven lines"),
        (rayio.errors.ExpectationError("too slow"), 3, "rayio: too slow"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "runs/xx"), 2, "rayio: runs/xx: File name too long"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_every_end_has_its_exit_code(
    command: Rayio, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    _ending_with(monkeypatch, error)
    assert command("end") == (code, "", said and said + "\n")


def test_our_fault_is_one_line_and_the_traceback_is_kept(
    command: Rayio, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _ending_with(monkeypatch, KeyError("missing"))
    code, _, err = command("end")
    assert code == 1
    assert err.startswith("rayio: our fault: KeyError: 'missing'; the traceback is in ")
    assert err.count("\n") == 1
    assert "Traceback" in Path(err.split()[-1]).read_text()


def _ending_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Give the command line one command, which raises this error."""

    def application() -> typer.Typer:
        app = typer.Typer()
        app.callback()(lambda: None)

        def end() -> None:
            raise error

        app.command()(end)
        return app

    monkeypatch.setattr(cli, "application", application)


def test_looking_at_scenarios_imports_neither_ray_nor_torch() -> None:
    program = """
import sys
from rayio import cli
for arguments in (["--help"], ["validate", "unet3d-small"], ["show", "unet3d-small"], ["scenarios"], ["schema"]):
    try:
        cli.main(arguments)
    except SystemExit as left:
        assert left.code == 0, arguments
found = {"ray", "torch", "pandas", "pyarrow"} & {*sys.modules}
assert not found, found
assert "asyncio" not in sys.modules, "it takes a tenth of the command"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_commands_import_no_records_layers_and_commands_that_they_do_not_use(home: Path) -> None:
    program = """
import sys
from rayio import cli
def call(*arguments):
    try:
        cli.main(arguments)
    except SystemExit as left:
        assert left.code == 0
call("validate", "unet3d-small")
used = {"rayio.records.record", "rayio.records.printed"}
found = {name for name in sys.modules if name.startswith("rayio.records.")} - used
assert not found, found
unused = {"storage.layers.throttle", "storage.layers.faults", "storage.layers.cache", "cli.runs", "cli.jobs"}
assert not {f"rayio.{name}" for name in unused} & {*sys.modules}, "only what the scenario and the command name"
from rayio import registry
assert not registry._installed.cache_info().misses, "looking for other packages takes a tenth of the command"
call("simulate", "unet3d-small", "train.steps=2", "--no-report", "--out", "run")
call("report", "run", "--no-html")
assert "rayio.records.answers" not in sys.modules, "of --json alone"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_of_our_output_may_leave_early() -> None:
    inlet, outlet = os.pipe()
    os.close(inlet)
    done = subprocess.run(
        [sys.executable, "-m", "rayio", "schema"],
        stdout=outlet,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
    )
    os.close(outlet)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_training_no_steps_samples_or_reads_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["unet3d-h100", "checkpoint.every=none", "checkpoint.phases={writes: 2, reads: 1}"]
    for command in (["validate", *told], ["show", *told, "--json"]):
        with pytest.raises(SystemExit):
            main(command)
    validated, _, shown = capsys.readouterr().out.partition("{")
    assert "2 ranks × 2 checkpoints written and 1 read" in validated
    assert " steps" not in validated.splitlines()[0]
    derived = json.loads("{" + shown)["derived"]
    for name in ("steps_per_epoch", "total_steps", "samples_per_epoch", "read_demand", "window_bytes"):
        assert derived[name] == 0
    assert derived["num_checkpoints"] == 2
