"""The toy package is installed while laws run; those on buckets share the server of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from registered import toy_installed


@pytest.fixture(scope="module", autouse=True)
def _toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with toy_installed(tmp_path_factory.mktemp("toy")):
        yield


def pytest_itemcollected(item: pytest.Item) -> None:
    """Say which laws need the server, so that one process of a shared suite runs them all (tests/beside.py)."""
    if getattr(getattr(item, "callspec", None), "params", {}).get("scheme") == "s3":
        item.fixturenames.extend(["place", "s3_server"])  # type: ignore[attr-defined]
