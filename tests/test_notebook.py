"""What a notebook shows, and what is different there: a loop that already runs, errors, answers as objects."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from pages import CHROMIUM, Page

import rayio
from rayio import cli
from rayio.cli.scenarios import DESCRIBED
from rayio.records.record import Record
from rayio.records.sizing import CapacityFound

SLOW = {"loader.decode": "60 ms", "train.epochs": 2}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> rayio.Run:
    return rayio.simulate("unet3d-small", SLOW, out=tmp_path_factory.mktemp("runs") / "slow")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> rayio.Sweep:
    keys = {**SLOW, "loader.num_workers": [1, 2, 4]}
    return rayio.sweep("unet3d-small", keys, out=tmp_path_factory.mktemp("sweeps") / "s")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> CapacityFound:
    small = ["storage.model=s3", "train.epochs=1", "dataset.num_files=336"]
    return rayio.capacity("unet3d-small", small, most=8, out=tmp_path_factory.mktemp("capacity") / "c")


def text_of(html: str) -> str:
    """What a reader reads of one block of text in columns."""
    page = Page(html)
    assert not page.loads
    assert html.count("<pre ") == 1
    assert "monospace" in html.partition(">")[0]
    assert "white-space:pre;" in html.partition(">")[0]
    return unescape(re.sub(r"</?pre[^>]*>", "", html))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    return capsys.readouterr().out


def test_an_explanation_is_the_commands_as_a_record_and_as_text(
    slow: rayio.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = rayio.explain(slow.path)
    assert answer == slow.explain() == rayio.explain(slow)
    assert answer.verdict.cause == "decode"
    said = printed(capsys, "explain", slow.address)
    assert str(answer) == said
    assert text_of(str(answer._repr_html_())).split() == said.split()
    assert not rayio.explain(slow, simulate=False).simulated
    assert slow.explain(target_au=0.5).verdict.target_au == 0.5


def test_a_calibration_is_a_scenario_to_simulate_and_its_file(tmp_path: Path) -> None:
    measured = rayio.run("unet3d-small", {"train.compute": "5 ms"}, engine="local", root=tmp_path, out="run")
    learned = rayio.calibrate(measured, out=tmp_path / "learned.yaml")
    assert learned.scenario == rayio.calibrate(measured.path).scenario
    assert (tmp_path / "learned.yaml").read_text() == str(learned)
    assert learned.as_json()["file"] is None
    assert learned.as_json()["notes"] == [*learned.notes]
    again = rayio.simulate(learned.scenario, out=tmp_path / "again")
    assert again.result.scenario == "unet3d-small"
    page = Page(shown := learned._repr_html_())
    assert all(word in page.words for note in learned.notes for word in note.split()[:4])
    assert unescape(shown).count(str(learned).rstrip()) == 1, "the file as it is"


def test_a_sweep_shows_its_table_and_draws_its_curves(swept: rayio.Sweep, tmp_path: Path) -> None:
    shown = text_of(swept._repr_html_())
    for point in swept.points:
        (line,) = [line for line in shown.splitlines() if line.split()[:1] == [str(point.values[0])]]
        assert f"{100 * (point.mean('au') or 0):.1f}" in line
    drawn = swept.plot()
    page = Page(drawn.save(tmp_path / "curves.html").read_text())
    assert page.text.count("<svg") >= 3
    assert "AU over the swept keys" not in page.words
    assert "throughput, samples/s" in page.words


def test_a_capacity_shows_its_answer_and_not_its_fields(found: CapacityFound) -> None:
    shown = text_of(str(found._repr_html_()))
    assert "CapacityFound" not in shown
    assert str(found).split() == shown.split()
    assert max(map(len, shown.splitlines())) <= 110
    assert [line for line in shown.splitlines() if "accelerators" in line]


def test_every_answer_of_a_command_that_a_function_returns_says_how_it_is_shown() -> None:
    functions = [getattr(rayio, name) for name in dir(rayio) if name in {*DESCRIBED} - {"generate"}]  # that: a path
    assert len(functions) > 5
    for function in functions:
        kind = inspect.signature(function, eval_str=False).return_annotation
        module = inspect.getmodule(function)
        answer = getattr(module, str(kind))
        assert "_repr_html_" in dir(answer), kind
        assert not issubclass(answer, Record) or answer.worded_by, kind
        parameters = inspect.signature(function).parameters
        needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        needed = [name for name in needed if (function, name) != (rayio.datasize, "memory")]  # nor has its command
        assert len(needed) <= 1, f"{function.__name__} needs {needed}, and the command has defaults"


def test_a_run_works_where_a_loop_is_running_as_in_a_notebook(tmp_path: Path) -> None:
    async def cell() -> tuple[rayio.Run, Any]:
        ran = rayio.run("unet3d-small", {"train.epochs": 1, "train.compute": "1 ms"}, engine="local", root=tmp_path)
        await asyncio.sleep(0)  # the notebook's own loop goes on
        return ran, asyncio.get_running_loop()

    ran, loop = asyncio.run(cell())
    assert ran.result.ledger is not None
    assert ran.result.ledger.even
    assert loop.is_closed()


def test_simulations_work_where_a_loop_is_running(tmp_path: Path) -> None:
    async def cell() -> float | None:
        return rayio.simulate("unet3d-small", {"train.epochs": 1}, out=tmp_path / "run").au

    assert asyncio.run(cell()) is not None


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: rayio.simulate("unet3d-small", {"loader.num_worker": 4}),
        lambda: rayio.simulate("unet3d-smal"),
        lambda: rayio.explain("nowhere"),
        lambda: rayio.Run.open("nowhere"),
    ],
)
def test_a_mistake_is_one_line_in_a_notebook(mistake: Callable[[], object]) -> None:
    with pytest.raises(rayio.errors.RayioError) as caught:
        mistake()
    (line,) = caught.value._render_traceback_()
    assert line == f"{type(caught.value).__name__}: {caught.value}"
    assert "\n" not in line


def test_ipython_shows_views_and_one_line_for_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # it would warn of another one
    shell = shells.InteractiveShell()
    shown: list[Any] = []
    monkeypatch.setattr(shell, "_showtraceback", lambda *said: shown.append(said))
    shell.run_cell("import rayio\nrun = rayio.simulate('unet3d-small', {'train.epochs': 1}, out='run')")
    data, _ = shell.display_formatter.format(shell.user_ns["run"].explain())
    assert data["text/html"].startswith("<pre ")
    assert "Explained(" not in data["text/plain"]
    shell.run_cell("rayio.simulate('unet3d-small', {'loader.num_worker': 4})")
    ((_, error, lines),) = shown
    assert lines == [f"ScenarioError: {error}"]


#: Tells how high a frame is, and where its figures end: as shown, and after it was made narrower.
AROUND = """<!doctype html><meta charset="utf-8"><pre id="found"></pre><div style="width:1000px">FRAMED</div><script>
const frame = document.querySelector("iframe"), found = [];
const end = () => frame.contentDocument.querySelector("main").getBoundingClientRect().bottom;
const tick = () => requestAnimationFrame(tick);  // a browser with nothing to draw tells nobody of changed sizes
tick();
const look = (left, then) => {
  const [height, bottom] = [frame.clientHeight, end()];
  if (left && (height < bottom || height > bottom + 40)) { setTimeout(() => look(left - 1, then), 50); return; }
  found.push([height, bottom, frame.contentDocument.documentElement.clientWidth]);
  then();
};
window.onload = () => look(100, () => {
  frame.parentElement.style.width = "420px";
  setTimeout(() => look(100, () => { document.getElementById("found").textContent = JSON.stringify(found); }), 200);
});
</script>"""


@pytest.mark.browser
@pytest.mark.parametrize("of", ["run", "sweep"])
def test_the_frame_of_figures_shows_them_whole_at_any_width(
    of: str, slow: rayio.Run, swept: rayio.Sweep, tmp_path: Path
) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    drawn = slow.plot() if of == "run" else swept.plot()
    (tmp_path / "around.html").write_text(AROUND.replace("FRAMED", drawn._repr_html_()), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1500,1000",
         f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=20000",
         "--dump-dom", (tmp_path / "around.html").absolute().as_uri()],
        capture_output=True, text=True, timeout=180, check=True, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    looks = json.loads(unescape(re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[0]))
    assert len(looks) == 2
    for height, end, _ in looks:
        assert end <= height, "cropped"
        assert height <= end + 40, "an empty rest"
    assert [width for _, _, width in looks] == [1000, 420]
    assert looks[0][1] != looks[1][1], "the figures are laid out anew"
