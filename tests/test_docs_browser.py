"""The documentation's site in a real browser, from files: search, narrow screens, light and dark colours."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from functools import cache
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pages import CHROMIUM

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed (extra: docs)"),
]

#: Looks at all pages in one that is 400 px wide: what sticks out, and the contrast of every text in both schemes.
PROBE = """<pre id="found"></pre><script>
const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => v / 255)
  .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const styles = (one) => getComputedStyle(one);
const back = (one) => { for (; one; one = one.parentElement) {
  const c = rgb(styles(one).backgroundColor); if (c.length === 3 || c[3] > 0.5) return c; } return [255, 255, 255]; };
window.onload = () => {
  const all = [...document.querySelectorAll(".rst-content *")], root = document.documentElement, found = {ground: {}};
  const place = (one) => `${one.closest("[data-page]")?.dataset.page}: ${one.outerHTML.slice(0, 100)}`;
  found.out = all.filter((one) => one.getBoundingClientRect().right > 400.5 &&
    !one.parentElement.closest("pre, .wy-table-responsive")).map(place);
  found.wide = all.filter((one) => one.matches("main, [data-page]") && one.scrollWidth > 400).map(place);
  found.texts = 0;
  for (const scheme of ["light", "dark"]) {
    root.dataset.scheme = scheme;
    const faint = new Map();
    for (const one of all) {
      const text = [...one.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join("");
      if (!text || one.closest(".headerlink") || !one.getClientRects().length) continue;
      const a = light(rgb(styles(one).color)), b = light(back(one));
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      found.texts += 1;
      if (contrast < 4.5) faint.set(`${one.tagName}.${one.className}`, `${contrast.toFixed(1)} ${place(one)}`);
    }
    found[scheme] = Object.fromEntries(faint);
    found.ground[scheme] = light(back(document.querySelector(".rst-content h1")));
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>"""


def opened(url: str, home: Path, *options: str) -> tuple[str, str]:
    """Open a page in the browser; give what it is in the end, and what it wrote to its console."""
    done = subprocess.run(
        [CHROMIUM or "", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--no-first-run", f"--user-data-dir={home / 'profile'}",
         "--enable-logging=stderr", "--virtual-time-budget=10000", *options, "--dump-dom", url],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.fixture(scope="module")
def searched(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, str]]:
    """Search for a word, once."""
    home = tmp_path_factory.mktemp("home")
    return cache(lambda word: opened(f"{(site / 'search.html').as_uri()}?q={word}", home))


@pytest.mark.parametrize(("word", "page"), [("prefetch", "loaders.html"), ("OTEL_TRACES_EXPORTER", "export.html")])
def test_the_search_finds_a_word_from_files(word: str, page: str, searched: Callable[[str], tuple[str, str]]) -> None:
    text, console = searched(word)
    results = text.partition('id="mkdocs-search-results"')[2]
    links = re.findall(r'<h3><a href="([^"]+)"', results)
    assert any(page in link for link in links), (links, console)
    assert "Error" not in console


def test_the_search_lists_pages_for_users_before_decisions_and_ends_a_summary_at_a_word(
    site: Path, searched: Callable[[str], tuple[str, str]]
) -> None:
    text, _ = searched("prefetch")
    results = text.partition('id="mkdocs-search-results"')[2]
    links = re.findall(r'<h3><a href="([^"]+)"', results)
    are_decisions = ["/decisions/" in f"/{link}" for link in links]
    assert any(are_decisions), links
    assert are_decisions == sorted(are_decisions), links
    summaries = re.findall(r"<p>(.*?)</p>", results, re.DOTALL)
    assert any(summary.endswith("…") for summary in summaries)
    contents = {unescape(re.sub(r"\s+", " ", entry["text"])) for entry in index_of(site)}
    for summary in summaries:
        shown = unescape(re.sub(r"\s+", " ", summary)).strip()
        begin = shown.removesuffix("…").rstrip()
        assert any(re.match(rf"{re.escape(begin)}(\s|$)", content.strip()) for content in contents), shown


def index_of(site: Path) -> list[dict[str, str]]:
    """Return the sections that the search knows."""
    docs: list[dict[str, str]] = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    return docs


def test_a_word_that_is_nowhere_is_not_found(searched: Callable[[str], tuple[str, str]]) -> None:
    text, _ = searched("xylophone")
    assert "No results found" in text.partition('id="mkdocs-search-results"')[2].partition("</div>")[0].split(">", 1)[1]


@pytest.fixture(scope="module")
def looked(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All pages on one, whose body is as wide as a phone."""
    contents = []
    for page in sorted(site.rglob("*.html")):
        body = page.read_text().partition('<div class="section" itemprop="articleBody">')[2]
        body = re.sub(r"(\s*</div>){2}\s*$", "", body.partition("<footer>")[0]).replace('src="../', 'src="')
        contents.append(f'<div data-page="{page.relative_to(site)}">{body}</div>')
    assert len(contents) > 30
    head, _, rest = (site / "export.html").read_text().partition('<div class="section" itemprop="articleBody">')
    after = rest.partition("<footer>")[2]
    narrow = "<style>body, .wy-grid-for-nav { width: 400px !important; position: static !important }</style>"
    (site / "all.html").write_text(f"{head}<div>{narrow}{''.join(contents)}</div><footer>{after}{PROBE}")
    text, _ = opened((site / "all.html").as_uri(), tmp_path_factory.mktemp("home"), "--window-size=500,900")
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)
    seen: dict[str, Any] = json.loads(unescape(found))
    assert seen["texts"] > 5000
    return seen


def test_no_page_is_wider_than_a_phone(looked: dict[str, Any]) -> None:
    assert not looked["out"]
    assert not looked["wide"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_both_schemes(scheme: str, looked: dict[str, Any]) -> None:
    assert looked["ground"][scheme] > 0.8 if scheme == "light" else looked["ground"][scheme] < 0.1
    assert not looked[scheme]


@pytest.mark.parametrize(("preferred", "is_dark"), [("0", True), ("1", False)])
def test_the_scheme_is_that_of_the_system_until_the_button_changes_it(
    preferred: str, is_dark: bool, site: Path, tmp_path: Path
) -> None:
    page = site / "scheme.html"
    colour = "getComputedStyle(document.querySelector('.wy-nav-content')).backgroundColor"
    probe = f"const was = {colour}; document.getElementById('scheme').click(); document.title = was + {colour}"
    text = (site / "export.html").read_text()
    page.write_text(text.replace("</body>", f"<script>{probe}</script></body>"))
    shown, _ = opened(page.as_uri(), tmp_path, f"--blink-settings=preferredColorScheme={preferred}")
    before, after = re.findall(r"rgb\((\d+), ", shown.partition("</title>")[0])
    assert [int(before) < 60, int(after) < 60] == [is_dark, not is_dark]
