"""The toy package is installed while laws run; laws that need what is costly are run where it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from registered import toy_installed

#: What laws of a kind need, that takes seconds to load or to start (tests/beside.py).
COSTLY = {("scheme", "s3"): "s3_server", ("loader", "torch"): "test_torch"}


@pytest.fixture(scope="module", autouse=True)
def _toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with toy_installed(tmp_path_factory.mktemp("toy")):
        yield


def pytest_itemcollected(item: pytest.Item) -> None:
    """Say which laws need what is costly, so that one process of a shared suite runs them all."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    item.extra_keyword_matches |= {
        COSTLY[each] for each in params.items() if isinstance(each[1], str) and each in COSTLY
    }
