"""The documentation does what it says: its blocks run, its links lead somewhere, its site builds and loads nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import forks
import pytest
from documents import LANGUAGES, PAGES, ROOT, altered, blocks, missing, pieces, texts_of, walk, words
from test_architecture import LEVEL

from rayio.cli import application
from rayio.scenario.load import load
from rayio.scenario.reference import to_markdown
from rayio.scenario.write import json_schema

RUNNABLE = [page for page in PAGES if any(block.is_run for block in blocks(page))]
ON_RAY = [page for page in RUNNABLE if "<!-- ray -->" in PAGES[page].read_text()]


@pytest.fixture(scope="module")
def rayio_commands() -> Iterator[list[str]]:
    """The words that run rayio, or a text of Python, in a process that need not load it."""
    with forks.serving() as words_before:
        yield words_before


def run_page(page: str, folder: Path, commands: list[str], **variables: str) -> None:
    """Type what a page says, and hold what is printed against what it shows."""
    for block, printed in walk(page, folder, commands, variables):
        if block.language != "text" or "not run" in block.remarks:
            continue
        if block.remarks.get("output") == "exact":
            for piece in pieces(block.text):
                assert piece in printed, f"{block.place}: was printed differently: {piece}\n{printed}"
        assert not (line := altered(block.text, printed)), f"{block.place}: was printed differently: {line}\n{printed}"
        assert not (piece := missing(block.text, printed)), f"{block.place}: was not printed: {piece}\n{printed}"
        # How a run on a wall clock fills its windows is this machine's doing, as what is predicted of one; a head alone
        # concludes nothing.
        is_sure = "warning: " not in printed or "warning: " in block.text or "measured on" in printed
        is_head = len(block.text.splitlines()) == 1
        assert is_sure or is_head, f"{block.place}: concludes from numbers in doubt\n{printed}"


@pytest.mark.parametrize("page", [page for page in RUNNABLE if page not in ON_RAY])
def test_what_a_page_says_to_type_prints_what_it_shows(page: str, tmp_path: Path, rayio_commands: list[str]) -> None:
    run_page(page, tmp_path, rayio_commands)


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", ON_RAY)
def test_so_does_a_page_whose_runs_are_on_ray(
    page: str, tmp_path: Path, rayio_commands: list[str], local_ray: None
) -> None:
    import ray

    run_page(page, tmp_path, rayio_commands, RAY_ADDRESS=ray.get_runtime_context().gcs_address)


def test_pieces_that_were_not_printed_are_found() -> None:
    printed = "AU  62.2 %  min 61 %\nnote: none\nlast line, 3 ms\n"
    assert words("AU 12 % └─┘ 3 ms,") == ["AU"]
    assert missing("AU  99 %  min 1 %\n...\nlast line, 14 s\n", printed) == ""
    assert missing("AV  99 %\n", printed) == "AV  99 %\n"
    assert missing("last line\n...\nnote: none\n", printed).strip() == "note: none"
    assert missing("AU 62.2 %\nlast line\n", printed) != "", "lines in between are left out without a word"
    assert altered("AU  1 %\n...\nnote:\nnone\n", printed) == ""
    assert altered("note:  nothing\n", printed) == "note: nothing"
    assert pieces("a\n  ...\nb\n") == ["a\n", "b\n"]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are_and_why_they_are_not_run(page: str) -> None:
    text = PAGES[page].read_text()
    assert not re.search(r"(?m)^[ \t]+```|^~~~", text), "a fence that is indented would not be seen"
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: {block.language!r}"
        if block.is_run and block.language == "yaml":
            assert re.match(r"# [\w-]+\.yaml\n", block.text), f"{block.place}: says no file to write it to"
        if block.is_run and block.language == "sh":
            assert not re.search(r"(?m)^\$ ", block.text), f"{block.place}: has a prompt"
        assert "run" not in block.remarks.get("not run", "reason").split()[:1], f"{block.place}: says no reason"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "yaml" and b.is_run for b in blocks(page))]
)
def test_scenarios_of_a_page_are_valid(page: str, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml" and block.is_run:
            file = tmp_path / block.text.partition("\n")[0].removeprefix("# ")
            file.write_text(block.text)
            load(f"dlio:{file}" if block.remarks.get("a workload of") == "DLIO" else file)


def anchors(page: Path) -> set[str]:
    """Ids that a page's headings get, on the site and where the files are shown."""
    found = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text())):
        plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
        found |= {re.sub(r"[-\s]+", "-", plain), plain.replace(" ", "-")}
    return found


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "benchmarks/README.md"])
def test_links_lead_to_files_and_headings_that_are_there(page: str) -> None:
    source = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^```.*?^```$", "", source.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (source.parent / path).resolve() if path else source
        assert file.is_relative_to(ROOT), f"{page}: {target}"
        assert file.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(file), f"{page}: {target}"
        if page.startswith("docs/"):
            assert file.is_relative_to(ROOT / "docs"), f"{page}: {target} is not on the site"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "benchmarks/README.md"])
def test_files_that_are_named_are_there(page: str) -> None:
    folders = (".", "rayio", "benchmarks")
    for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|png|toml))(?: \d+)?`", (ROOT / page).read_text()):
        assert any((ROOT / folder / name).exists() for folder in folders), f"{page}: {name}"


def test_the_map_has_every_room_and_no_file_that_is_gone() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)/` \| ([^|]+) \| `([^`]+)` \|$", text)
    folders = {path.name for path in (ROOT / "rayio").iterdir() if (path / "__init__.py").exists()}
    assert [name for name, _, _ in rows] == [*dict.fromkeys(name for name, _, _ in rows)]
    assert {name for name, _, _ in rows} == folders
    for name, purpose, first in rows:
        assert (ROOT / "rayio" / first).exists(), first
        for file in re.findall(r"`([a-z_]+(?:\.py|/))`", purpose):
            assert (ROOT / "rayio" / name / file).exists(), f"{name}/{file}"
    (levels,) = re.findall(r"(?ms)^```$\n(.*?)^```$", text)
    assert {
        word: int(n) for n, words in re.findall(r"(?m)(?:^|\| )(\d+) ([^|\n]+)", levels) for word in words.split()
    } == LEVEL


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].read_text().splitlines()) <= 130


def test_the_scenario_reference_is_that_of_the_schema_and_leaves_no_key_unexplained() -> None:
    page = to_markdown(json_schema())
    assert page == PAGES["docs/scenario.md"].read_text(), "stale: rayio schema --markdown > docs/scenario.md"
    assert not re.findall(r"(?m)^\| `.*\|\s*\|$", page)
    rows = re.findall(r"(?m)^\| `([\w.]+)` \|", page)
    assert {"name", "train.compute", "dataset.eval.num_files", "checkpoint.every.steps", "lognormal"} <= {*rows}
    assert len(rows) > 80


def test_messages_that_are_explained_are_those_that_are_printed() -> None:
    said = texts_of(ROOT / "rayio")
    rows = re.findall(r"(?m)^\| `(.+?)` \|", PAGES["docs/troubleshooting.md"].read_text())
    fragments = [
        fragment.strip(" `()")
        for row in rows
        for fragment in re.split(r"…|\b[A-Z]+\b|\brank-0\b|\([A-Z]\w+ \w+\)|\d[\d.]*(?: MiB)?|`[^`]*`|//", row)
    ]
    known = [fragment for fragment in fragments if len(fragment) > 8]
    assert len(known) > 15
    assert not [fragment for fragment in known if fragment not in said]


def test_every_command_is_described() -> None:
    import typer.main

    group = typer.main.get_command(application())
    text = PAGES["docs/commands.md"].read_text()
    commands = getattr(group, "commands", {})
    assert len(commands) > 10
    assert not [name for name in commands if f"rayio {name}" not in text]


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        for url in _loaded(page.read_text()):
            assert not re.match(r"(https?:)?//", url), f"{page.name} loads {url}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?\s*(https?:)?//", style.read_text()), style.name


def _loaded(text: str) -> list[str]:
    """What a browser fetches to show a page."""
    found: list[str] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            if tag == "link" and given.get("rel") == "canonical":
                return
            keys = ("src", "srcset", "data", "poster") + (("href",) if tag == "link" else ())
            found.extend(value for key in keys if (value := given.get(key)))

    Elements().feed(text)
    assert found
    return found
