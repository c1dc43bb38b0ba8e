"""Tables of answers on a narrow terminal: no line is wider, and no number that is shown is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import rayio
from rayio.report.text.advice import text as advice
from rayio.report.text.sizing import text as capacity
from rayio.report.text.sweep import text as sweep
from rayio.scenario.write import to_yaml
from scenarios import scenario

KEYS = ["loader.num_workers", "loader.prefetch_factor"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[int], str]]:
    """Give the texts of three searches, by width."""
    folder = tmp_path_factory.mktemp("narrow")
    file = folder / "s.yaml"
    file.write_text(to_yaml(scenario(dataset__num_files=96, dataset__sample_bytes="150 MB", loader__decode="10 ms")))
    swept = rayio.sweep(file, {KEYS[0]: [1, 2], KEYS[1]: [1, 2]}, processes=1, out=folder / "sweep").table
    advised = rayio.advise(file, vary=",".join(f"{key}=1..2" for key in KEYS), out=folder / "advice")
    found = rayio.capacity(file, out=folder / "capacity", most=4)
    return {
        "sweep": lambda width: sweep(swept, width),
        "advise": lambda width: advice(advised, width),
        "capacity": lambda width: capacity(found, width),
    }


@pytest.mark.parametrize("width", [60, 72, 100])
@pytest.mark.parametrize("which", ["sweep", "advise", "capacity"])
def test_a_table_fits_and_its_numbers_are_whole(texts: dict[str, Callable[[int], str]], which: str, width: int) -> None:
    wide, narrow = texts[which](200), texts[which](width)
    lines = [*narrow.splitlines(), ""]
    assert max(map(len, lines)) <= width
    first = next(number for number, line in enumerate(lines) if " AU" in line and "  " in line.strip())
    rows = [line for line in lines[first + 1 : lines.index("", first)] if line]
    assert rows
    cells = {cell for row in wide.splitlines() for cell in row.split("  ") if cell}
    assert all(cell.strip() in {each.strip() for each in cells} for row in rows for cell in row.split("  ") if cell)
