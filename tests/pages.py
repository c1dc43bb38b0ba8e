"""A report read back in tests: what it says, where it links, what it would load."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser

#: A browser to open pages with; None where there is none, and tests that want one are skipped.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

#: Elements without an end.
VOID = {"meta", "link", "br", "path"}


@dataclass
class Page(HTMLParser):
    """A page taken apart; an element that is not closed where it should be is an error."""

    text: str
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    #: Text by key of result.json.
    numbers: dict[str, str] = field(default_factory=dict)
    #: All that a reader sees without opening anything.
    words: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._key = ""
        self.feed(self.text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self._open.append(tag)
        if name := found.get("id"):
            self.ids.append(name)
        if tag == "a":
            self.links.append(found.get("href") or "")
        elif tag != "link":
            self.loads += [value for key in ("src", "href", "data", "action") if (value := found.get(key))]
        self._key = found.get("data-key") or ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> without a beginning"
        assert self._open.pop() == tag, f"</{tag}> ends something else"

    def handle_data(self, data: str) -> None:
        if self._key:
            self.numbers[self._key] = data
            self._key = ""
        if not {"style", "script"} & {*self._open}:
            self.words += data + " "


def check(text: str) -> Page:
    """Hold a page to what every page promises, and give it."""
    page = Page(text)
    assert len(page.ids) == len({*page.ids}), "an id twice"
    assert not page.loads, "loads something"
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links), "a link to nowhere"
    assert not (wrong := re.findall(r"\b(?:nan|NaN|None|inf|Infinity|undefined)\b", page.words)), wrong
    assert not re.search(r'(?:style|d|data-tips|data-grid)="[^"]*(?:nan|NaN|Infinity|None)', text)
    return page
