"""The check of language finds each planted fault, and is silent about plain text."""

from __future__ import annotations

import prose
import pytest

LONG = "The rank " + "waits and " * 15 + "computes."


def rules(faults: list[prose.Fault]) -> list[tuple[int, str]]:
    return sorted((fault.line, fault.rule.partition(" (")[0]) for fault in faults)


@pytest.mark.parametrize(
    ("page", "line", "rule"),
    [
        (f"# Title\n\nShort.\n{LONG}\n", 4, "a sentence of 33 words"),
        (f"| key | meaning |\n|---|---|\n| `a` | {LONG} |\n", 3, "a sentence of 33 words"),
        (f"- Short.\n- {LONG}\n", 2, "a sentence of 33 words"),
        ("word " * 20 + "word.\n" + "word " * 24 + "end.\n", 2, "a line of 124 columns"),
        ("A key.\nIt is\nof DLIO.\n", 2, 'banned: "is of"'),
        ("The cost of a disk *beside* the rank.\n", 1, 'banned: "beside"'),
        ("[It comes to](a.md) 5 GiB.\n", 1, 'banned: "comes to"'),
        ("What is said of a run matters.\n", 1, 'banned: "What is said"'),
        ("Four readers read.\n", 1, 'banned: "readers"'),
        ("A worker finishes its lease.\n", 1, 'banned: "lease"'),
        ("<!-- a remark\nof two lines -->\n```sh\nrayio\n```\nThe run lives again.\n", 6, 'banned: "lives again"'),
    ],
)
def test_a_fault_of_a_page_is_found(page: str, line: int, rule: str) -> None:
    assert (line, rule) in rules([*prose.check_page("docs/page.md", page)])


@pytest.mark.parametrize(
    ("code", "line", "rule"),
    [
        ('"""What a queue holds."""\n', 1, 'a docstring begins with "What"'),
        ('class A:\n    """Say it."""\n', 2, 'a docstring begins with "Say"'),
        ('def f():\n    """Whether it is."""\n', 2, 'a docstring begins with "Whether"'),
        ('"""A module.\n\nIt is of DLIO.\n"""\n', 3, 'banned: "is of"'),
        ('raise E(f"{key}: is of DLIO")\n', 1, 'banned: "is of"'),
        ('x = f"{key} comes to {value}"\n', 1, 'banned: "comes to"'),
        ("x = 1\n# Two disks\n# beside it.\n", 3, 'banned: "beside"'),
        ("def told(x): ...\n", 1, "the name `told`"),
        ("def f(one): ...\n", 1, "the name `one`"),
        ("[said for said in ()]\n", 1, "the name `said`"),
        ("try: ...\nexcept E as found: ...\n", 2, "the name `found`"),
        ("class A:\n    asked: int\n", 2, "the name `asked`"),
        ("self._found = 1\n", 1, "the name `_found`"),
    ],
)
def test_a_fault_of_a_module_is_found(code: str, line: int, rule: str) -> None:
    assert (line, rule) in rules([*prose.check_code("rayio/module.py", code)])


def test_comments_of_a_scenario_are_checked() -> None:
    faults = [*prose.check_yaml("scenarios/mine.yaml", "# Readers wait.\npath: is of  # beside it\n")]
    assert rules(faults) == [(1, 'banned: "Readers"'), (2, 'banned: "beside"')]


def test_an_entry_of_the_changelog_has_two_lines() -> None:
    assert rules([*prose.check_page("CHANGELOG.md", "- One,\n  two.\n- One,\n  two,\n  three.\n")]) == [
        (3, "an entry of 3 lines")
    ]


def test_plain_text_has_no_fault() -> None:
    page = f"""# Storage

`is of` in code is quoted, [the *dedicated readers*](is-of.md) are a field term, and so is the Pareto front.
Four workers fill the queue, e.g. with `prefetch_factor: 2`. Reader nodes stand in front of nothing.

| key | {"a long cell without a sentence of words, " * 3} | {"another cell " * 10} |
|---|---|---|

```text
{LONG} beside
```
[Getting started](a.md) · {"[Concepts](b.md) · " * 4}
{"[Commands](c.md) · " * 5}
{"[Loaders](d.md) · " * 5}
"""
    assert not [*prose.check_page("docs/page.md", page)]
    code = '"""Return the capacity.\n\n``is of`` is a quotation.\n"""\nverdict = f"use {found!r}"\n'
    assert not [*prose.check_code("rayio/module.py", code)]


def test_rooms_to_do_are_counted_and_not_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main(["--count", str(prose.ROOT / "examples")]) == 0  # ``make check`` has all
    counted = capsys.readouterr().out
    assert "not in TODO" not in counted
    assert all((prose.ROOT / name).exists() for name in prose.TODO)
