from __future__ import annotations

import pytest

from rayio.storage.address import join


@pytest.mark.parametrize(
    ("base", "address", "meant"),
    [
        ("/here", "data", "/here/data"),
        ("/here", "/there/data", "/there/data"),
        ("/here", "s3://b/data", "s3://b/data"),
        ("s3://b/r", "data", "s3://b/r/data"),
        ("s3://b/r/", "./data/./x/", "s3://b/r/data/x"),
        ("s3://b/r", ".", "s3://b/r"),
        ("s3://b/r", "../data", "s3://b/r/../data"),  # which the store refuses
        ("s3://", "data", "s3:///data"),  # likewise, for there is no bucket
    ],
)
def test_a_relative_path_starts_from_its_base(base: str, address: str, meant: str) -> None:
    assert join(base, address) == meant
