"""Tab completion: what comes next where the cursor is, and that shells put it there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rayio.cli import application, completion, main
from rayio.scenario.load import load, packaged
from rayio.scenario.write import json_schema

#: ``rayio`` of this interpreter, wherever it is installed.
RAYIO = Path(sys.executable).with_name("rayio")


def answers(line: str) -> list[str]:
    """Give the words that may come at the end of a line."""
    return [told.partition("\t")[0] for told in completion.answer(application(), line).splitlines()]


def test_commands_options_and_their_values() -> None:
    assert {"run", "simulate", "explain", "schema", "completion"} <= {*answers("rayio ")}
    assert answers("rayio simu") == ["simulate"]
    assert answers("rayio run --eng") == ["--engine"]
    assert answers("rayio run unet3d-small --engine ") == ["ray", "local"]
    assert answers("rayio run unet3d-small --trace sa") == ["sample"]
    assert answers("rayio import dl") == ["dlio-results", "dlio"]
    assert "result" in answers("rayio schema ")


def test_scenarios_are_those_that_are_packaged_and_files(home: Path) -> None:
    assert {*answers("rayio simulate ")} == {*packaged()}
    (home / "own.yaml").write_text("")
    (home / "notes.txt").write_text("")
    (home / "others").mkdir()
    (home / "others" / "other.yml").write_text("")
    assert answers("rayio simulate o") == ["others/", "own.yaml"]
    assert answers("rayio simulate others/") == ["others/other.yml"]
    assert answers("rayio simulate nowhere/at/all") == []


def test_runs_are_the_folders_that_are_some(home: Path) -> None:
    (home / "runs" / "one").mkdir(parents=True)
    (home / "runs" / "one" / "run.json").write_text("{}")
    assert answers("rayio explain ") == ["runs/"]
    assert answers("rayio compare runs/one runs/") == ["runs/one"]


def test_every_key_is_reached_section_by_section() -> None:
    known = {name for name, _ in completion.keys(json_schema())} - {"extends"}
    assert {"loader.shuffle", "seed", "checkpoint.every.epochs", "loader.shuffle_block"} <= known

    def below(prefix: str) -> set[str]:
        return {told for told, _ in completion.overrides(prefix)}

    first = below("")
    assert first == {name.partition(".")[0] + ("." if "." in name else "=") for name in known}
    loader = {f"{name}=" for name in known if name.startswith("loader.")}
    assert below("loader.") == loader
    assert {"checkpoint.every.", "checkpoint.path="} <= below("checkpoint.")
    assert answers("rayio show unet3d-small loader.num_w") == ["loader.num_workers="]


def test_values_that_are_offered_are_allowed() -> None:
    assert answers("rayio show unet3d-small loader.worker=") == ["loader.worker=process", "loader.worker=thread"]
    assert answers("rayio sweep unet3d-small loader.in_order=true,f") == ["loader.in_order=true,false"]
    assert "storage.model=nvme" in answers("rayio show unet3d-small storage.model=")
    assert answers("rayio show unet3d-small no.such=") == []
    tried = 0
    for name in ("loader.partition", "storage.model"):
        for word in answers(f"rayio show unet3d-small {name}="):
            load("unet3d-small", [word])
            tried += 1
    assert tried > 5


def test_commands_are_completed_without_loading_what_only_runs_need() -> None:
    program = """
import sys
from rayio.cli import application, completion
assert completion.answer(application(), "rayio sim").startswith("simulate")
heavy = {"ray", "torch", "numpy", "pyarrow", "rich", "rayio.scenario.model"} & {*sys.modules}
assert not heavy, heavy
completion.answer(application(), "rayio run unet3d-small loader.")
heavy = {"ray", "torch", "pyarrow", "pandas", "duckdb", "rich"} & {*sys.modules}
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_what_to_do(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["completion", shell])
    script = capsys.readouterr().out
    assert left.value.code == 0
    assert completion.VARIABLE in script
    if (program := shutil.which(shell)) is not None:
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([program, "-n", str(file)], check=True, timeout=60)


def completed(line: str, *words: str) -> list[str]:
    """Have bash complete a line whose words are those that it makes of it."""
    program = """
        source <("$0" completion bash)
        COMP_LINE="$1" COMP_POINT="${#1}"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
        _rayio_complete "$RAYIO"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    done = subprocess.run(
        [bash, "--norc", "-c", program, str(RAYIO), line, *words],
        env={**os.environ, "RAYIO": str(RAYIO)}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout.split()


def test_bash_puts_in_what_is_missing() -> None:
    known = "rayio", "show", "unet3d-small"
    assert completed("rayio show unet3d-small loader.in_order=", *known, "loader.in_order", "=") == ["true", "false"]
    assert completed("rayio show unet3d-small loader.sh", *known, "loader.sh") == [
        "loader.shuffle=", "loader.shuffle_block=", "loader.shuffle_buffer=",
    ]  # fmt: skip
