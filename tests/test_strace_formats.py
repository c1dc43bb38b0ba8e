"""The requests of text formats are those that strace sees of Python's json and files, and of pandas."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_strace import IN_ORDER, NUM_FILES, planned, seen, written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
FILES = [[*range(8 * number, 8 * number + 8)] for number in range(NUM_FILES)]


def test_json_reads_the_whole_file_in_one_request_whatever_is_wanted_of_it(tmp_path: Path) -> None:
    layout = written(tmp_path, "json", 20_000)
    script = "import json\nfor name in (0, 1, 2):\n with open(str(name)) as file: json.load(file)"
    assert seen(tmp_path, script) == planned(layout, "json", "per_sample", [[3], [9, 12], [20]])


def test_lines_of_a_file_are_a_stream_of_pythons_buffers(tmp_path: Path) -> None:
    layout = written(tmp_path, "jsonl", 20_000)
    script = "for name in (0, 1, 2):\n with open(str(name), 'rb') as file:\n  for line in file: pass"
    ours = planned(layout, "jsonl", "streamed", IN_ORDER, buffer_bytes=4096)
    assert seen(tmp_path, script) == ours
    assert len(ours) == NUM_FILES * (1 + -(-8 * 20_000 // 4096))


@pytest.mark.parametrize(("form", "separator"), [("csv", ","), ("tsv", "\\t")])
def test_pandas_reads_numbers_in_requests_of_256_kib(form: str, separator: str, tmp_path: Path) -> None:
    layout = written(tmp_path, form, 100_000)
    script = (
        f"import pandas\nfor name in (0, 1, 2): pandas.read_csv(str(name), header=None, sep='{separator}', engine='c')"
    )
    ours = planned(layout, form, "streamed", FILES)
    assert seen(tmp_path, script) == ours
    assert [nbytes for number, call, _, nbytes in ours if number == 0 and call == "read"] == [262_144] * 3 + [13_568]
