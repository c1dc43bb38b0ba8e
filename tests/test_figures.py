"""Figures in the documentation are measured ones: each is in the table of the benchmark that it is said to be of.

In README and docs a figure that was measured stands between ``<!-- figures: ceiling.py -->`` and ``<!-- end -->``, in
a line or around paragraphs; every number between them must be in the section of benchmarks/README.md that has the
script in its heading, rounded as one likes. Sentences that speak of what something takes, and have a number that is in
none of their page's own blocks, are not measured figures only where ``<!-- not measured: reason -->`` says so.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from documents import PAGES, ROOT

MEASURED = (ROOT / "benchmarks" / "README.md").read_text()
#: Pages that are made from the code, and have its examples.
GENERATED = ("docs/scenario.md", "docs/results.md", "docs/findings.md", "docs/workloads.md")
_REGION = re.compile(r"<!-- (figures|not measured): ([^>]+?) -->(.*?)<!-- end -->", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?: \d{3})+(?:\.\d+)?(?!\d)|(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
_TAKES = re.compile(r"\b(took|takes?|costs?|faster|slower|overhead)\b")
_QUANTITY = re.compile(r"(?<![\w.])\d[\d .]*? ?(?:ms|µs|s|seconds|KiB|MiB|GiB|MB/s|×|points)(?!\w)")


def numbers(text: str) -> set[Decimal]:
    """All numbers of a text; groups of three digits may be apart."""
    return {Decimal(re.sub(r"[ ,]", "", found)) for found in _NUMBER.findall(text)}


def unmeasured(text: str, tables: str) -> list[str]:
    """The numbers of a text to which none of those of the tables comes when it is rounded to their digits."""
    known = numbers(tables)
    return sorted(
        str(number)
        for number in numbers(re.sub(r"<!--.*?-->|\]\([^)]*\)|`[^`]*`", " ", text, flags=re.DOTALL))
        if not any(round(one, -int(number.as_tuple().exponent)) == number for one in known)
    )


def sections(text: str) -> dict[str, str]:
    """The sections of benchmarks/README.md by the scripts that their headings name."""
    return {
        script: section
        for section in re.split(r"(?m)^(?=## )", text)[1:]
        for script in re.findall(r"`(\w+\.py)`", section.partition("\n")[0])
    }


def outside(text: str) -> str:
    """A page without its blocks, its regions and its code."""
    without = re.sub(r"(?ms)^```.*?^```$", "", _REGION.sub(" ", text))
    return re.sub(r"(?s)<!--.*?-->|\]\([^)]*\)", " ", without)


def paragraphs(text: str) -> list[str]:
    """Paragraphs, items of lists and rows of tables, each on a line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*[-|] ?)", text)]


def wrong(page: str, measured: str) -> list[str]:
    """What is wrong with the figures of a page, a line each."""
    tables, found = sections(measured), []
    for kind, names, inside in _REGION.findall(page):
        if kind == "not measured":
            continue
        scripts = [name.strip() for name in names.split(",")]
        if unknown := [name for name in scripts if name not in tables]:
            found.append(f"no section of benchmarks/README.md is of {', '.join(unknown)}")
        elif missing := unmeasured(inside, "\n".join(tables[name] for name in scripts)):
            found.append(f"{names}: its tables do not have {', '.join(missing)}")
    found += [
        f"a comment without its end: {text}" for text in re.findall(r"<!-- figures[^>]*-->", outside_regions(page))
    ]
    shown = "\n".join(re.findall(r"(?ms)^```.*?^```$", page))
    for paragraph in paragraphs(outside(page)):
        if "benchmarks/" in paragraph and re.search(r"benchmarks/\w+\.py", paragraph) and _QUANTITY.search(paragraph):
            found.append(f"not between <!-- figures: ... --> and <!-- end -->: {paragraph}")
        for sentence in re.split(r"(?<=[.:;]) ", re.sub(r"`[^`]*`", " ", paragraph)):
            figures = " ".join(_QUANTITY.findall(sentence))
            if _TAKES.search(sentence) and figures and unmeasured(figures, shown):
                found.append(f"neither a benchmark's nor shown in a block of this page: {sentence}")
    return found


def outside_regions(page: str) -> str:
    """A page without what its comments enclose."""
    return _REGION.sub(" ", page)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in GENERATED and "decisions/" not in page])
def test_figures_are_those_of_a_benchmark(page: str) -> None:
    assert not (found := wrong(PAGES[page].read_text(), MEASURED)), f"{page}: " + "\n".join(found)


@pytest.mark.parametrize("page", [page for page in PAGES if "decisions/" in page])
def test_decisions_that_name_a_benchmark_have_its_figures(page: str) -> None:
    text = PAGES[page].read_text()
    found = [line for line in wrong(text, MEASURED) if not line.startswith("neither")]
    assert not found, f"{page}: " + "\n".join(found)


def test_every_section_is_of_a_script_that_is_there() -> None:
    assert {*sections(MEASURED)} <= {path.name for path in Path(ROOT, "benchmarks").glob("*.py")}


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("<!-- figures: a.py -->1.8 × as fast, 12 345 spans<!-- end -->", ""),
        ("<!-- figures: a.py -->1.9 × as fast<!-- end -->", "a.py: its tables do not have 1.9"),
        ("<!-- figures: b.py -->1.8 × as fast<!-- end -->", "no section of benchmarks/README.md is of b.py"),
        ("<!-- figures: a.py -->1.8 × as fast", "a comment without its end"),
        ("`benchmarks/a.py`: 1.79 s", "not between"),
        ("A step costs 3 ms more.", "neither a benchmark's"),
        ("A step costs 3 ms more.\n```yaml\nstep: 3 ms\n```\n", ""),
        ("<!-- not measured: a formula -->A step costs 3 ms more.<!-- end -->", ""),
    ],
)
def test_a_figure_that_is_in_no_table_is_found(page: str, found: str) -> None:
    said = wrong(page, "# Benchmarks\n## `a.py`: speed\n| 1.79 | 12 345 |\n")
    assert [line[: len(found)] for line in said] == ([found] if found else [])
