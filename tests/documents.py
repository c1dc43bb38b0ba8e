"""Pages of documentation taken apart, and their blocks run: what a reader would type, in the order of the page."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ports
from test_architecture import nodes

ROOT = Path(__file__).parents[1]
PAGES = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
#: What a block may be: commands, a program, a file, output, and text that is neither (a query, a drawing).
LANGUAGES = ("sh", "python", "yaml", "text", "sql", "json", "diagram", "diff")
#: Where the pages say that the reader is.
HOME = "/home/me"
#: The port of the server that a page starts; it runs on one that is free.
PORT = "47613"
_FENCE = re.compile(r"^```(\w*)$")
_REMARK = re.compile(r"^<!-- (not run|exit code|output|a workload of): (.+) -->$")
_UNITS = {
    "s", "ms", "us", "µs", "ns", "min", "h", "d", "B", "kB", "KiB", "MB", "MiB", "GB", "GiB", "TiB", "%", "pt", "pts",
    "B/s", "KiB/s", "MiB/s", "GiB/s", "MB/s", "GB/s", "·", "-",
}  # fmt: skip
_RULED = re.compile(r"^[\u2500-\u257f]+$")


@dataclass(frozen=True)
class Block:
    """One fenced block: its text, and what the remarks above it say."""

    page: str
    line: int
    language: str
    text: str
    #: ``not run``: why; ``exit code``: the one that is expected; ``output``: exact, of a text block; ``a workload of``:
    #: the program whose form it has.
    remarks: dict[str, str]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in ("sh", "python", "yaml") and "not run" not in self.remarks


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in its order."""
    found, remarks, opened = [], dict[str, str](), None
    lines = PAGES[page].read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if opened is not None:
            if line == "```":
                text = "\n".join(lines[opened[0] : number - 1]) + "\n"
                found.append(Block(page, opened[0], opened[1], text, remarks))
                opened, remarks = None, {}
        elif fence := _FENCE.match(line):
            opened = (number, fence[1])
        elif remark := _REMARK.match(line):
            remarks[remark[1]] = remark[2]
        elif line.strip():
            remarks = {}
    assert opened is None, f"{page}:{opened} is never closed"
    return found


def words(text: str) -> list[str]:
    """What of a text does not change from run to run: its words, without numbers, their units and ruled lines."""
    kept, after_number = [], False
    for token in text.split():
        is_number = any(c.isdigit() for c in token) or token in ("∞", "±")
        if not (is_number or _RULED.match(token) or (after_number and token.rstrip(",;.)") in _UNITS)):
            kept.append(token.rstrip(",;"))
        after_number = is_number
    return kept


def pieces(shown: str) -> list[str]:
    """What a block of output shows; lines of ``...`` stand for what it leaves out."""
    return re.split(r"(?m)^\s*\.\.\.\s*\n", shown)


def altered(shown: str, printed: str) -> str:
    """The first line without a number that was not printed to the letter, wherever lines break."""
    flat = " ".join(printed.split())
    lines = (" ".join(line.split()) for line in shown.splitlines() if not re.search(r"\d|^\s*\.\.\.$", line))
    return next((line for line in lines if line not in flat and not _RULED.match(line.replace(" ", ""))), "")


def missing(shown: str, printed: str) -> str:
    """The first piece of what a page shows that was not printed in its order, whatever its numbers."""
    rest = words(printed)
    for piece in pieces(shown):
        wanted = words(piece)
        begins = (i for i in range(len(rest) - len(wanted) + 1) if rest[i : i + len(wanted)] == wanted)
        begin = next(begins, None)
        if begin is None:
            return piece
        rest = rest[begin + len(wanted) :]
    return ""


def texts_of(folder: Path) -> str:
    """Every text in a package's code, a line each; what is filled in later is left out."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        inside = set()
        for node in nodes(file.read_text(encoding="utf-8")):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                inside |= {id(part) for part in node.values}
                found.append("…".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                found.append(node.value)
    return "\n".join(found)


#: A line that says how far a command is.
PROGRESS = re.compile(r"(?m)^rayio: \d+ s  .*\n")


def walk(page: str, folder: Path, commands: Sequence[str], variables: Mapping[str, str]) -> Iterator[tuple[Block, str]]:
    """Run a page's blocks as its reader would, in ``folder``; give each with what was printed by the last that ran.

    ``commands`` are the words that run rayio, or a text of Python (tests/forks.py).
    """
    tools = folder / ".bin"
    tools.mkdir()
    for name, words in (("rayio", [*commands, "rayio"]), ("python", [sys.executable])):
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    environment = os.environ | {"HOME": str(folder), "PATH": path, "COLUMNS": "120", **variables}
    port = str(ports.unused())
    printed = ""
    for block in blocks(page):
        if block.is_run and block.language == "yaml":
            name = block.text.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(block.text)
        elif block.is_run:
            shell = ["bash", "-eu", "-o", "pipefail", "-c"]
            command = shell if block.language == "sh" else [*commands, "python"]
            text = block.text.replace(PORT, port)
            done = subprocess.run(
                [*command, text], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=300,
            )  # fmt: skip
            printed = done.stdout.replace(str(folder), HOME).replace(port, PORT)
            printed = PROGRESS.sub("", printed)  # how much of it comes is the machine's doing
            expected = int(block.remarks.get("exit code", 0))
            assert done.returncode == expected, f"{block.place}: exit code {done.returncode}\n{printed}"
        yield block, printed
