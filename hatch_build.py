"""What a build adds to the package's metadata: the page that PyPI shows, and where the project's own pages are.

PyPI shows the README away from its repository, where relative links lead nowhere. They become addresses of the
repository, at the version that is built; while that has no address, their words stay and pictures go.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A picture or a link of Markdown: the sign of a picture, the words, the target.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def page(readme: str, repository: str, version: str) -> str:
    """The README as PyPI can show it.

    >>> page("[Sweep](docs/sweep.md), [Ray](https://www.ray.io) ![top](top.png)", "https://host/rayio", "1.2")
    '[Sweep](https://host/rayio/blob/v1.2/docs/sweep.md), [Ray](https://www.ray.io) ![top](https://host/rayio/raw/v1.2/top.png)'
    >>> page("[Sweep](docs/sweep.md), [Ray](https://www.ray.io) ![top](top.png)", "", "1.2")
    'Sweep, [Ray](https://www.ray.io) '
    """

    def absolute(match: re.Match[str]) -> str:
        sign, words, target = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        if not repository:
            return "" if sign else words
        kind = "raw" if sign else "blob"
        return f"{sign}[{words}]({repository.rstrip('/')}/{kind}/v{version}/{target})"

    return _LINK.sub(absolute, readme)


def addresses(repository: str, version: str) -> dict[str, str]:
    """Where the project is, by PyPI's well-known names."""
    if not repository:
        return {}
    base = repository.rstrip("/")
    return {
        "Homepage": base,
        "Documentation": f"{base}/blob/v{version}/docs/index.md",
        "Changelog": f"{base}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{base}/issues",
    }


class RayioMetadata(MetadataHookInterface):
    """Asked by hatchling for what pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the page and the addresses."""
        repository, version = str(self.config.get("repository", "")), str(metadata["version"])
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(readme, repository, version)}
        metadata["urls"] = addresses(repository, version)
