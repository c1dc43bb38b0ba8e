from __future__ import annotations

from pathlib import Path

import pytest

from rayio.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "run", "--csv", "s3://b/x.csv"],
        ["export", "run", "--perfetto", "s3://b/x.pftrace"],
        ["export", "run", "--otlp-json", "s3://b/x.json"],
        ["calibrate", "run", "--out", "s3://b/x.yaml"],
        ["sweep", "unet3d-small", "--points", "s3://b/x.csv"],
        ["import", "dlio-results", "s3://b/x"],
    ],
    ids=" ".join,
)
def test_a_file_of_this_machine_is_no_address(
    arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "s3://b/x" in said
    assert "is not on this machine" in said
    assert not [*home.iterdir()]
