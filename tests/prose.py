"""Check the language of pages, messages and docstrings: `python tests/prose.py [--count] [--all] [PATH ...]`.

Pages: a sentence has at most 30 words, a line at most 120 columns (rows of tables and blocks of code are exempt), an
entry of CHANGELOG at most two lines. Pages, and strings, docstrings and comments of rayio/: no banned phrase. Code: no
docstring begins with a clause ("What …"), no value or function is called by a bare verb (`found`).
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Rooms and pages whose text is still to be rewritten; a room that is done leaves this list, and stays done.
TODO: tuple[str, ...] = ()
#: Pages written by commands from descriptions in the code: a fault in them is mended there.
GENERATED = ("docs/results.md", "docs/scenario.md")
WORDS, COLUMNS, ENTRY = 30, 120, 2

#: Phrases banned in pages, strings, docstrings and comments, with what to write.
BANNED = {
    r"(is|are|was|were|be) of (?!(no|little|any|some|use|interest)\b)": "name the owner: `X is a key of DLIO`",
    r"beside": "next to, with, in addition to",
    r"of (its|their) own": "own, separate, dedicated",
    r"(live[sd]?|living) (\w+ )?again": "replay",
    r"as it was": "baseline, unchanged",
    r"(comes|came) to\b(?! (a|an|the) (end|stop))": "is, equals",
    r"what there is of": "the available …",
    r"takes it that": "assumes that",
    r"(one is|is|was|are|were|been) told": "report, print, state",
    r"whose turn": "the next …",
    r"(what|who) (is|was|are|were|has|have) (been )?(said|asked|found|told)": "name the thing",
    r"who has the (answer|call|key|run)": "the caller",
    r"say(s|ing)? so|sa(ys?|id) of|said (to|by)": "report, state, name",
    r"ever after|at (its|their) word": "name the time, the source",
    r"(then|what|that) binds": "bottleneck; X-bound",
    r"ledger (is )?(un)?even|the books|its books": "all N samples delivered exactly once",
    r"partly that of filling|is filling\b": "exposed data loading, initial prefetch",
    r"overshoots?|late wake-ups?": "overhead",
    r"without a word": "silently",
    r"has no price": "the price ignores …",
}
#: Banned in pages alone: in code the word is a name or has another use.
BANNED_IN_PAGES = {r"(?<!Pareto\s)(?<!in\s)(?<!up\s)front(?! of)": "Pareto front"}
#: Banned in pages for users; contributors need the words.
BANNED_FOR_USERS = {
    r"leases?|leased": "batch",
    r"(?<!dedicated\s)(?<!rayio's\s)(?<!same\s)readers?(?![\s-](of|and path|nodes?|pools?|seconds)\b)": "worker",
}
FOR_CONTRIBUTORS = ("docs/decisions/", "docs/house.md", "CONTRIBUTING.md", "benchmarks/README.md")
FIRST_WORDS = re.compile(r"(What|Who|Whose|Whom|Whether|Say|Says)\b")
NAMES = frozenset({"found", "said", "told", "one", "asked"})

_FENCE = re.compile(r"^\s*```")
_ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s+")
_SENTENCE = re.compile(r".+?(?:(?<!e\.g)(?<!i\.e)(?<!vs)[.!?][)*\"'”]*(?=\s+\S)| · |$)", re.DOTALL)


@dataclass(frozen=True)
class Fault:
    """A place, its text and the rule that it breaks."""

    file: str
    line: int
    text: str
    rule: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}\n    {' '.join(self.text.split())}"


def _patterns(banned: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Return a pattern of whole words for each phrase; spaces match line breaks."""
    return [
        (re.compile(rf"\b(?:{phrase})\b".replace(" ", r"\s+"), re.IGNORECASE), remedy)
        for phrase, remedy in banned.items()
    ]


_IN_CODE = _patterns(BANNED)
_IN_PAGES = _IN_CODE + _patterns(BANNED_IN_PAGES)
_FOR_USERS = _IN_PAGES + _patterns(BANNED_FOR_USERS)


def phrases(text: str, patterns: list[tuple[re.Pattern[str], str]]) -> Iterator[tuple[int, str]]:
    """Return the offset of each banned phrase of a text, and its rule."""
    for pattern, remedy in patterns:
        for match in pattern.finditer(text):
            yield match.start(), f'banned: "{" ".join(match[0].split())}" ({remedy})'


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Return paragraphs, items, headings and cells of a Markdown page with their line numbers, without blocks."""
    page = re.sub(r"<!--.*?-->", lambda match: re.sub(r"[^\n]", "", match[0]), page, flags=re.DOTALL)
    begin, lines, fenced = 0, list[str](), False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        is_fence = bool(_FENCE.match(line))
        is_text = bool(line.strip()) and not is_fence and not fenced and not line.startswith(("|", "#"))
        if lines and (not is_text or _ITEM.match(line)):
            yield begin, "\n".join(lines)
            lines = []
        if line.startswith(("|", "#")) and not fenced:
            cells = re.split(r"(?<!\\)\||;(?=\s)", line)
            yield from ((number, cell.strip()) for cell in cells if re.search(r"\w", cell))
        elif is_text:
            begin = begin if lines else number
            lines.append(line)
        fenced ^= is_fence


def plain(text: str) -> str:
    """Return the text as read: a link is its words, code is one word; line breaks stay."""
    text = re.sub(r"(`+).+?\1", lambda match: "`" + "\n" * match[0].count("\n") + "`", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"<?https?://\S+", "URL", text)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Return the sentences of a plain paragraph with their offsets."""
    for match in _SENTENCE.finditer(text):
        if match[0].strip():
            yield match.start() + len(match[0]) - len(match[0].lstrip()), match[0].strip()


def words(sentence: str) -> int:
    """Return the number of words; code counts as one, signs as none."""
    return sum(bool(re.search(r"[\w`]", word)) for word in sentence.split())


def check_page(file: str, page: str) -> Iterator[Fault]:
    """Return the faults of a Markdown page."""
    patterns = _IN_PAGES if file.startswith(FOR_CONTRIBUTORS) else _FOR_USERS
    for begin, raw in paragraphs(page):
        text = plain(raw)
        if file == "CHANGELOG.md" and _ITEM.match(raw) and raw.count("\n") >= ENTRY:
            yield Fault(file, begin, raw, f"an entry of {raw.count(chr(10)) + 1} lines (at most {ENTRY})")
        for offset, sentence in sentences(text):
            line = begin + text[:offset].count("\n")
            if (count := words(sentence)) > WORDS:
                yield Fault(file, line, sentence, f"a sentence of {count} words (at most {WORDS})")
            for _, rule in phrases(sentence, patterns):
                yield Fault(file, line, sentence, rule)
    fenced = False
    for number, row in enumerate(page.splitlines() if file not in GENERATED else [], 1):
        fenced ^= (is_fence := bool(_FENCE.match(row)))
        if len(row) > COLUMNS and not (fenced or is_fence or row.startswith("|")):
            yield Fault(file, number, row, f"a line of {len(row)} columns (at most {COLUMNS})")


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return string literals with their lines; values of an f-string read `…`."""
    inside = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node) if isinstance(part, ast.Constant)}
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Return blocks of comments with their first lines."""
    begin, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] > last + 1:
                yield begin, "\n".join(lines)
                lines = []
            begin, last = begin if lines else token.start[0], token.start[0]
            lines.append(token.string)
    if lines:
        yield begin, "\n".join(lines)


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return names that are stored: functions, arguments, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def check_code(file: str, source: str) -> Iterator[Fault]:
    """Return the faults of a Python module."""
    tree = ast.parse(source)
    for line, text in [*strings(tree), *comments(source)]:
        if text.isidentifier():  # a name, such as a span's
            continue
        text = re.sub(r"``.+?``|`[^`\n]+`", "`", text)
        for offset, rule in phrases(text, _IN_CODE):
            begin, end = text.rfind("\n", 0, offset) + 1, text.find("\n", offset)
            yield Fault(file, line + text[:offset].count("\n"), text[begin : end if end >= 0 else None], rule)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node) or ""
            if (match := FIRST_WORDS.match(doc)) and "?" not in doc.partition("\n")[0]:
                line = node.body[0].lineno
                rule = f'a docstring begins with "{match[0]}" (Return …, Write …, A …)'
                yield Fault(file, line, doc.partition("\n")[0], rule)
    for line, name in names(tree):
        if name.strip("_") in NAMES:
            yield Fault(file, line, name, f"the name `{name}` (name what it is: verdict, message, capacity)")


def check_yaml(file: str, text: str) -> Iterator[Fault]:
    """Return the faults of the comments of a YAML file."""
    for number, line in enumerate(text.splitlines(), 1):
        for comment in re.findall(r"(?:^|\s)#(.*)", line):
            yield from (Fault(file, number, comment, rule) for _, rule in phrases(comment, _FOR_USERS))


def files() -> list[Path]:
    """Return all pages and modules that are checked."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md")]
    folders = {
        "docs": ("*.md",),
        "examples": ("*.py",),
        "k8s": ("*.py", "*.yaml"),
        "rayio": ("*.py",),
        "scenarios": ("*.yaml",),
    }
    return pages + [
        file for name, kinds in folders.items() for kind in kinds for file in sorted((ROOT / name).rglob(kind))
    ]


def room(file: str) -> str:
    """Return the room of a file: its folder under rayio/, or the page."""
    parts = file.split("/")
    return "/".join(parts[:2]) if parts[0] == "rayio" and len(parts) > 2 else file


def check(file: Path) -> list[Fault]:
    """Return the faults of a file, in the order of its lines."""
    name, text = str(file.relative_to(ROOT)), file.read_text()
    checks = {".py": check_code, ".md": check_page, ".yaml": check_yaml}
    return sorted(checks[file.suffix](name, text), key=lambda fault: fault.line)


def main(arguments: list[str]) -> int:
    """Print the faults, or their counts by room; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--count", action="store_true", help="print the number of faults of each room, also those to do"
    )
    parser.add_argument("--all", action="store_true", help="check rooms that are still to do as well")
    parser.add_argument("path", nargs="*", type=Path, help="files or folders (default: everything)")
    options = parser.parse_args(arguments)
    chosen = [path.resolve() for path in options.path]
    faults = [
        fault
        for file in files()
        if not chosen or any(file.is_relative_to(path) for path in chosen)
        if options.count or options.all or room(str(file.relative_to(ROOT))) not in TODO
        for fault in check(file)
    ]
    if options.count:
        counts = Counter(room(fault.file) for fault in faults)
        lines = [f"{n:6} {name}{'' if name in TODO else '  (not in TODO)'}" for name, n in counts.most_common()]
        lines += [f"{0:6} {name}  (take it out of TODO)" for name in TODO if not counts[name] and not chosen]
    else:
        lines = [*map(str, faults)]
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, f"{len(faults)} faults"]) if lines else "")
    return int(bool(faults) and not options.count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
