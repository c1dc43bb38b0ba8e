"""A test that is tried again passes if it ever does, and fails with its last words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tries import TRIES, tried_again


@pytest.mark.parametrize("failures", [0, 2, TRIES - 1, TRIES])
def test_a_try_that_passes_is_the_last(failures: int, tmp_path: Path) -> None:
    tried: list[Path] = []

    @tried_again
    def story(tmp_path: Path) -> None:
        tried.append(tmp_path)
        assert len(tried) > failures, f"try {len(tried)}"

    if failures < TRIES:
        story(tmp_path=tmp_path)
    else:
        with pytest.raises(AssertionError, match=f"try {TRIES}"):
            story(tmp_path=tmp_path)
    assert len({*tried}) == min(failures + 1, TRIES)
