"""The package as PyPI would have it: its metadata, its page, its files; built in this process, without a network."""

from __future__ import annotations

import re
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.spec import DEFAULT_METADATA_VERSION, get_core_metadata_constructors
from packaging.metadata import Metadata
from trove_classifiers import classifiers

import rayio
from rayio.scenario.load import packaged

ROOT = Path(__file__).parents[1]


def metadata_of(root: Path) -> str:
    """Write the metadata of the package whose pyproject.toml is in a folder."""
    metadata = WheelBuilder(str(root)).metadata
    written: str = get_core_metadata_constructors()[DEFAULT_METADATA_VERSION](metadata)
    return written


@pytest.fixture(scope="module")
def metadata() -> Message:
    return Parser().parsestr(metadata_of(ROOT))


def test_the_metadata_is_whole_and_right(metadata: Message) -> None:
    assert Metadata.from_email(metadata_of(ROOT)), "packaging raises where a field is wrong"
    assert (metadata["Name"], metadata["Version"]) == ("rayio", rayio.__version__)
    assert metadata["Author"] == "The rayio project"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert len(metadata["Keywords"].split(",")) >= 5
    said = metadata.get_all("Classifier") or []
    assert not {*said} - classifiers
    for wanted in ("Development Status", "Intended Audience", "Operating System", "Programming Language", "Topic"):
        assert any(one.startswith(f"{wanted} :: ") for one in said), wanted
    assert f"Programming Language :: Python :: {metadata['Requires-Python'].removeprefix('>=')}" in said


def links(page: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^```.*?^```$", "", page))


def test_no_link_of_the_page_is_relative(metadata: Message) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "emulates the data pipelines of deep-learning training" in page
    assert links(page)
    assert not [target for target in links(page) if not target.startswith("https://")]
    assert "![" not in page or "https://" in page.partition("![")[2].partition(")")[0]


def test_with_an_address_links_lead_to_files_that_are_there(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert text.count('repository = "') == 1
    (tmp_path / "pyproject.toml").write_text(re.sub('repository = ".*"', 'repository = "https://host.example/x"', text))
    for name in ("README.md", "hatch_build.py", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    known = Parser().parsestr(metadata_of(tmp_path))
    page = known.get_payload()
    assert isinstance(page, str)
    there = re.findall(rf"https://host\.example/x/(blob|raw)/v{re.escape(rayio.__version__)}/([^)\s#]+)", page)
    assert len(there) >= len(links((ROOT / "README.md").read_text())) - 2
    assert {kind for kind, name in there if name.endswith(".png")} == {"raw"}
    for _, name in there:
        assert (ROOT / name).exists(), name
    urls = dict(one.split(", ") for one in known.get_all("Project-URL") or [])
    assert urls["Homepage"] == "https://host.example/x"
    assert (ROOT / urls["Changelog"].rpartition("/")[2]).exists()


def test_a_wheel_has_all_that_rayio_needs_and_nothing_else(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as file:
        names = {*file.namelist()}
    own = {f"rayio/{path.relative_to(ROOT / 'rayio')}" for path in (ROOT / "rayio").rglob("*.py")}
    assert own <= names
    assert {f"rayio/scenarios/{name}.yaml" for name in packaged()} <= names
    assert {"rayio/py.typed", "rayio/report/style.css", "rayio/report/script.js"} <= names
    assert not {name.partition("/")[0] for name in names} - {"rayio", f"rayio-{rayio.__version__}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
