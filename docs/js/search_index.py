"""A step of the documentation's build: the index of the search as a script, which pages of files can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority


@event_priority(-100)  # after the search has written its index
def on_post_build(config: Any) -> None:
    """Write ``search/index.js``."""
    folder = Path(config["site_dir"], "search")
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "index.js").write_text(f"window.searchIndex = {index};\n", encoding="utf-8")
