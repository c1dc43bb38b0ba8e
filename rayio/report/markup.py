"""Text and markup of pages: every text is escaped where it is put into a table or a legend, markup is not."""

from __future__ import annotations

import html
from collections.abc import Iterable

from rayio.records.printed import escaped


class Html(str):
    """A text that is markup already; what is made of it, such as by an f-string, is text again."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Return a text as markup, without what a terminal would obey; markup stays as it is.

    >>> escape("a < b"), escape(Html("<b>"))
    ('a &lt; b', '<b>')
    """
    return text if isinstance(text, Html) else Html(html.escape(escaped(text)))


def code(text: str) -> Html:
    """Return a text as code, such as a key or a command."""
    return Html(f"<code>{escape(text)}</code>")


def trouble(texts: Iterable[str], kind: str = "") -> Html:
    """Return what a reader must know before the numbers as a list; nothing without any."""
    rows = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return Html(f'<ul class="trouble{kind and " "}{kind}">{rows}</ul>' if rows else "")
