"""Scenario files: libyaml, where it is used, reads each as PyYAML does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml

from rayio.errors import ScenarioError
from rayio.scenario.source import packaged_folder, parse

#: Pieces of YAML that the two parsers could take for different things.
PIECES = (
    *"\n\t{}[],\"'#|>@`?-:%!&*~ \r\\\x85\x07\u2028\ufeff\xa0é😀",
    *(
        "---",
        "...",
        ": ",
        "- ",
        "? ",
        " #",
        "&a ",
        "*a",
        "!!str ",
        "!x ",
        "!<x> ",
        "<<: ",
        "|2\n",
        ">-\n",
        "\n\n",
        "''",
    ),
    *(":a", '"\\x41"', '"\\ud800"', "%YAML 1.2\n---\n", "%TAG ! x\n---\n", "\n \t", "- \n", "-\n  - 3", "010", "0x"),
)
#: Texts that libyaml reads otherwise: with a value where PyYAML refuses, or with another line.
OTHERWISE = (
    "a: 3\t\n",
    "a: {b: 12 ? }\n",
    "a: {b?: 12}\n",
    "a: !!str\t 3\n",
    "a: >#\n  text\n",
    "a: 3\n\ufeff\n",
    "%TAG ! \tx\n---\na: 3\n",
    "a:\n- \n- 3\n",
    "a:\n- # none\n- 3\n",
    "---\n",
)


def read(text: str, *, fast: bool) -> Any:
    """Return the keys and lines of a text, or the error's line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", fast)
        try:
            layer = parse(text, "mine.yaml")
        except ScenarioError as error:
            return str(error)
        return repr(layer.data), dict(layer.lines)


def packaged() -> list[str]:
    """Return the texts of the packaged scenarios."""
    return [path.read_text() for path in sorted(packaged_folder().glob("*.yaml"))]


def needs_libyaml() -> None:
    if not yaml.__with_libyaml__:
        pytest.skip("this PyYAML was built without libyaml")


@pytest.mark.parametrize("text", OTHERWISE)
def test_what_libyaml_reads_otherwise_is_left_to_pyyaml(text: str) -> None:
    needs_libyaml()
    assert read(text, fast=True) == read(text, fast=False)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_scenarios_read_alike_with_and_without_libyaml(seed: int) -> None:
    """Drawn: a few lines of a packaged scenario with pieces put in; both give the same keys, lines or error."""
    needs_libyaml()
    draw, texts, values = random.Random(seed), packaged(), 0
    for _ in range(400):
        lines = draw.choice(texts).splitlines()
        first = draw.randrange(len(lines))
        text = "\n".join(lines[first : first + draw.choice([1, 2, 4, 8])])
        for _ in range(draw.choice([1, 1, 2, 3, 6])):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(PIECES) + text[at + draw.choice([0, 0, 1, 2]) :]
        found = read(text, fast=True)
        assert found == read(text, fast=False), text
        values += not isinstance(found, str)
    assert values > 50


def test_packaged_scenarios_are_read_by_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_libyaml()
    monkeypatch.delattr(yaml, "SafeLoader")
    read = [parse(text, "mine.yaml").data for text in packaged()]
    assert len(read) > 30
