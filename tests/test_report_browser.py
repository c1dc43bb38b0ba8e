"""The page in a real browser: no error on its console, nothing loaded, readable on a phone, right numbers.

A page around it looks at it in frames of several widths; what it finds is in the text that the browser prints.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from pages import CHROMIUM

import rayio
from rayio.report.build import report
from scenarios import scenario

pytestmark = pytest.mark.browser

#: Looks at each page in a frame of each width, and uses its buttons and its timeline.
AROUND = """<!doctype html><meta charset="utf-8"><pre id="found"></pre><script>
const found = {};
const next = (views) => {
  if (!views.length) { document.getElementById("found").textContent = JSON.stringify(found); return; }
  const [name, url, wanted] = views[0];
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.style = `width:${wanted}px;height:900px;border:0`;
  frame.onload = () => {
    const page = frame.contentDocument, inside = frame.contentWindow;
    const all = (what) => [...page.querySelectorAll(what)];
    const drawn = () => (page.querySelector("#tracks svg") || {}).innerHTML;
    const first = drawn();
    const windows = all("#windows button").map((b) => { b.click(); return drawn().length > 100; });
    all("[data-zoom='0']").forEach((b) => b.click());
    const whole = drawn();
    all("[data-zoom='0.5']").forEach((b) => b.click());
    const closer = drawn();
    const area = page.querySelector("#tracks .area");
    const at = (type, x, y) => {
      const box = area.getBoundingClientRect();
      area.dispatchEvent(new inside.PointerEvent(type, {bubbles: true, button: 0, clientX: box.left + x * box.width,
                                                        clientY: box.top + y}));
    };
    if (area) at("pointermove", 0.5, 5);
    const tip = page.getElementById("tip").textContent;
    if (area) { at("pointerdown", 0.2, 5); at("pointermove", 0.6, 5); at("pointerup", 0.6, 5); }
    const dragged = drawn();
    const tipped = all("[data-tips]").map((one) => {
      const box = one.getBoundingClientRect();
      one.dispatchEvent(new inside.PointerEvent("pointermove", {bubbles: true, clientX: box.left + box.width / 2,
                                                                clientY: box.top + 5}));
      return page.getElementById("tip").textContent;
    });
    const heats = all("[data-show]").map((b) => {
      b.click(); return all("[id^=heat-]").filter((view) => !view.hidden).map((view) => view.id).join();
    });
    const width = page.documentElement.clientWidth;
    // Labels that stick out of the page, or lie on each other along one axis.
    const out = all("body *").filter((one) => !one.closest(".scroll, nav, #tip, [hidden], svg") &&
      one.getBoundingClientRect().right > width + 0.5).map((one) => one.outerHTML.slice(0, 90));
    const overlaps = all(".plot .x, .tracks .x").filter((axis) => axis.offsetParent).flatMap((axis) => {
      const boxes = [...axis.children].map((one) => one.getBoundingClientRect()).filter((box) => box.width);
      return boxes.slice(1).filter((box, n) => box.left < boxes[n].right).map(() => axis.textContent);
    });
    // Tables that are wider than their place; a grid of two keys may be.
    const wider = all(".scroll").filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1)
      .map((one) => one.textContent.slice(0, 60));
    const folded = all(".definitions").map((one) => one.closest("details").open);
    inside.location.hash = "#d-au";
    inside.dispatchEvent(new inside.Event("hashchange"));
    const unfolded = all(".definitions").map((one) => one.closest("details").open);
    (found[name] ||= {})[wanted] = {
      wider, folded, unfolded,
      wide: page.documentElement.scrollWidth, tip, tipped, heats, windows, out, overlaps,
      closer: closer !== whole, dragged: dragged !== closer, first: !!first,
      loaded: inside.performance.getEntriesByType("resource").map((one) => one.name),
      numbers: Object.fromEntries(all("[data-key]").map((one) => [one.dataset.key, one.textContent])),
      tall: all(".area").filter((one) => one.offsetParent).map((one) => one.getBoundingClientRect().height),
    };
    frame.remove();
    next(views.slice(1));
  };
  frame.src = url;
};
window.onload = () => next(VIEWS);
</script>"""
WIDTHS = 360, 1400

Seen = dict[str, Any]

#: A run whose page is used, and others whose pages are odd.
USUAL: dict[str, Any] = {"loader__decode": "20 ms", "trace__level": "io"}
ODD: list[dict[str, Any]] = [
    {"cluster__ranks_per_node": 1, "dataset__num_files": 2, "train__epochs": 1, "train__warmup_steps": 0},
    {"trace__level": "none"},
    {"loader__num_workers": 0},
    {"cluster__ranks_per_node": 70, "dataset__num_files": 1400, "train__epochs": 1},
    {"train__compute": "20 min"},
    {"train__compute": "3 us"},
    # Its window begins late, at three quarters of the run.
    {"failures": {"events": [{"kind": "node", "at": "0.2 s"}], "policy": "from_start", "restart": 0.6, "detect": 0}},
]


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[rayio.Run, Seen]]:
    """Runs by what they have of their own, and what the browser shows of their reports."""
    home = tmp_path_factory.mktemp("reports")
    runs = {str(own): rayio.simulate(scenario(**own), out=str(n), root=home) for n, own in enumerate([USUAL, *ODD])}
    seen = seen_in({name: report(run.path) for name, run in runs.items()}, home)
    return {name: (run, seen[name]) for name, run in runs.items()}


def seen_in(pages: Mapping[str, Path], home: Path) -> dict[str, Seen]:
    """Open pages one after the other, at two widths, in one browser, whose start takes a second; say what was seen."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    views = [(name, page.absolute().as_uri(), width) for name, page in pages.items() for width in WIDTHS]
    around = home / "around.html"
    around.write_text(AROUND.replace("VIEWS", json.dumps(views)), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM or "", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--no-first-run", f"--user-data-dir={home / 'profile'}",
         "--allow-file-access-from-files", "--enable-logging=stderr", "--window-size=1500,1000",
         f"--virtual-time-budget={10_000 * len(views)}", "--dump-dom", around.absolute().as_uri()],
        capture_output=True, text=True, timeout=180, check=True, env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    text = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text, done.stdout[:2000] + done.stderr
    assert text[0], "a page was never looked at to the end: " + done.stderr
    found: dict[str, Seen] = json.loads(unescape(text[0]))
    assert [*found] == [*pages]
    return found


def holds(seen: Seen) -> None:
    """Hold what was seen to what every page promises."""
    assert {*seen} == {"360", "1400"}
    for width, one in seen.items():
        assert one["wide"] <= int(width), "the page scrolls sideways"
        assert one["out"] == [], "something sticks out"
        assert one["overlaps"] == [], "labels of an axis lie on each other"
        assert one["loaded"] == [], "something was loaded"
        assert one["wider"] == [], "a table scrolls sideways"
        assert (one["folded"], one["unfolded"]) == ([False], [True]), "definitions are folded until a word leads there"
        assert all(height > 20 for height in one["tall"]), "an empty box"


def test_the_page_works_and_says_the_numbers_of_the_run(looked: dict[str, tuple[rayio.Run, Seen]]) -> None:
    run, seen = looked[str(USUAL)]
    holds(seen)
    for one in seen.values():
        assert one["numbers"]["au"] == f"{100 * (run.au or 0):.1f} %"
        assert one["numbers"]["goodput"] == f"{100 * run.result['goodput']:.1f} %"
        assert one["first"]
        assert all(one["windows"])
        assert one["closer"]
        assert one["dragged"]
        assert one["tip"].startswith("rank 0")
        assert all(one["tipped"])
        assert one["heats"] == ["heat-pace", "heat-data_wait", "heat-sync"]


@pytest.mark.parametrize("own", ODD, ids=str)
def test_odd_runs_are_well_shown(own: dict[str, Any], looked: dict[str, tuple[rayio.Run, Seen]]) -> None:
    holds(looked[str(own)][1])


def test_a_mistake_in_the_script_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rayio.simulate(scenario(), out="r", root=tmp_path)
    monkeypatch.setattr("rayio.report.page.NOTHING_OUTSIDE", "default-src 'none'")  # the browser refuses the script
    with pytest.raises(AssertionError, match="Security Policy"):
        seen_in({"a mistake": report(run.path)}, tmp_path)
