"""Thousands of damaged files of other programs: one line that names file and sample, or the bytes that are there."""

from __future__ import annotations

import random
from pathlib import Path

import foreign
import numpy as np
import pytest

from rayio.data.formats import form_of, layout_of
from rayio.errors import RayioError
from rayio.kinds import EXTERNALS
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore

NUMBERS = (0, 1, 48, 1 << 16, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)


def mutated(content: bytes, drawn: random.Random) -> bytes:
    """Damage a file somewhere, often near its ends; half the time it keeps its size."""
    changed = bytearray(content)

    def place() -> int:
        near = drawn.randrange(min(700, len(content)))
        return drawn.choice([drawn.randrange(len(content)), near, len(content) - 1 - near])

    kind, begin, end, length = drawn.randrange(6), place(), place(), drawn.randrange(1, 600)
    if kind == 0:
        changed = changed[:begin]
    elif kind == 1:
        for _ in range(drawn.randrange(1, 6)):
            changed[place()] ^= drawn.randrange(1, 256)
    elif kind == 2:
        changed[begin : begin + 8] = drawn.choice(NUMBERS).to_bytes(8, "little")
    elif kind == 3:
        changed[begin : begin + length] = changed[end : end + length]
    elif kind == 4:
        changed[begin:begin] = changed[end : end + length]
    else:
        changed += drawn.randbytes(drawn.randrange(60))
    if drawn.randrange(2):
        changed = (changed + bytes(len(content)))[: len(content)]
    return bytes(changed)


def scenario_of(folder: Path) -> Scenario:
    """Give a scenario of somebody's files."""
    dataset = {"path": str(folder), "external": True}
    return build({"name": "x", "dataset": dataset, "train": {"compute": 0}, "loader": {"batch_size": 1}})


def damage(form: str, samples: int, number: int, folder: Path, seed: int) -> int:
    """Read a file that is damaged in many ways; give how often that was told."""
    paths, drawn, told = foreign.written(folder, form, files=2, samples=samples), random.Random(seed), 0
    layout, content = layout_of(scenario_of(folder)), paths[1].read_bytes()
    batch = layout.whole_file(1)
    for _ in range(number):
        paths[1].write_bytes(changed := mutated(content, drawn))
        out = np.empty(batch.total_bytes, np.uint8)
        try:
            form_of(form, layout).read(counted_opener(PosixStore(folder), Traffic()), layout, batch, out)
            line = ""
        except RayioError as error:
            line = str(error)
        told += bool(line)
        assert "\n" not in line
        assert f"{paths[1].name}: sample " in line if line else out.tobytes() == changed
    for _ in range(number // 4):  # and as the file whose samples are counted
        paths[0].write_bytes(mutated(content, drawn))
        try:
            scenario_of(folder)
            line = ""
        except RayioError as error:
            line = str(error)
        assert "\n" not in line
    return told


CASES = [(form, 1) for form in EXTERNALS] + [(form, 4) for form in EXTERNALS if form not in ("jpeg", "png")]
every_case = pytest.mark.parametrize(("form", "samples"), CASES)


@every_case
def test_a_damaged_file_is_told_or_read_as_it_is(form: str, samples: int, tmp_path: Path) -> None:
    assert damage(form, samples, 40, tmp_path, 1)


@pytest.mark.slow
@every_case
def test_thousands_of_damaged_files_are_told_or_read_as_they_are(form: str, samples: int, tmp_path: Path) -> None:
    assert damage(form, samples, 2000, tmp_path, random.randrange(1 << 32))
