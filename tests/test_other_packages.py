"""What other packages add and get wrong: shuffles that are none, kinds that raise, names that are ours."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packages import installed
from test_kinds import USED
from test_kinds import toy as toy  # the fixture

import rayio
from rayio import seeds
from rayio.cli import main
from rayio.data import permuted
from rayio.data.shuffle import Sizes
from rayio.errors import ScenarioError
from rayio.kinds import SHUFFLES
from rayio.scenario.load import load

SHUFFLING = """\
import numpy as np

still = lambda num_samples, key, positions, sizes: positions * 0
beyond = lambda num_samples, key, positions, sizes: positions + 1
text = lambda num_samples, key, positions, sizes: [str(one) for one in positions]
short = lambda num_samples, key, positions, sizes: positions[:1]
moody = lambda num_samples, key, positions, sizes: np.random.default_rng(key).permutation(positions)
once = lambda num_samples, key, positions, sizes: positions if key == FIRST else positions // 2 * 2
fails = lambda num_samples, key, positions, sizes: 1 / 0
mirror = lambda num_samples, key, positions, sizes: num_samples - 1 - positions
"""


@pytest.mark.parametrize(
    ("shuffle", "said"),
    [
        ("still", "is no permutation: epoch 0 has sample 0 48 times; tell its authors, or use another"),
        ("beyond", "is no permutation: epoch 0 has sample 48, and there are 48; "),
        ("text", "is no permutation: for 48 positions it returns 48 values of <U2, not one sample for each; "),
        ("short", "is no permutation: for 48 positions it returns 1 values of int64, not one sample for each; "),
        ("moody", "is no permutation: epoch 0 has other samples at the same positions in a second call; "),
        ("once", "is no permutation: epoch 1 has sample 0 2 times; "),
        ("fails", "shuffle 'fails' of package rayio-shuffling 0.2 failed: ZeroDivisionError: division by zero; "),
    ],
)
def test_a_shuffle_of_another_package_that_is_none_is_refused(
    toy: Path, monkeypatch: pytest.MonkeyPatch, shuffle: str, said: str
) -> None:
    (toy / "shuffling").mkdir()
    names = re.findall(r"^(\w+) =", SHUFFLING, re.MULTILINE)
    points = "".join(f'{name} = "some_shuffles:{name}"\n' for name in names)
    (toy / "shuffling.toml").write_text(
        f'[project]\nname = "rayio-shuffling"\nversion = "0.2"\n[project.entry-points."rayio.shuffle"]\n{points}'
    )
    (toy / "some_shuffles.py").write_text(f"FIRST = {seeds.key(load('toys.yaml').seed, 'shuffle', 0)}\n{SHUFFLING}")
    monkeypatch.syspath_prepend(str(toy))
    monkeypatch.syspath_prepend(installed(toy / "shuffling", toy / "shuffling.toml"))
    monkeypatch.delitem(sys.modules, "some_shuffles", raising=False)
    (toy / "other.yaml").write_text(USED.replace("shuffle: rotate, rotate_by: 3", f"shuffle: {shuffle}"))
    with pytest.raises(ScenarioError) as refused:
        rayio.simulate("other.yaml", out="simulated")
    line = str(refused.value)
    assert "shuffle '" + shuffle + "' of package rayio-shuffling 0.2 " in line
    assert said in line
    assert "\n" not in line
    assert not (toy / "simulated").exists()
    good = rayio.simulate("other.yaml", ["loader.shuffle=mirror"], out="good").result.ledger
    assert good is not None
    assert good.even


def test_of_an_order_that_is_too_long_parts_are_looked_at(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def late(num_samples: int, key: int, positions: Any, sizes: Any) -> Any:
        asked.append(positions)
        return np.minimum(positions, num_samples * 3 // 4)

    monkeypatch.setitem(SHUFFLES._loaded, "rotate", late)
    permuted.check.cache_clear()
    with pytest.raises(ScenarioError, match=r"epoch 0 has sample 750000000000 65536 times"):
        permuted.check("rotate", 10**12, 1, 5, Sizes())
    assert sum(map(len, asked)) <= permuted.MOST


RAISING = """\
from rayio_toy.format import ToyFormat

class Raising(ToyFormat):
    def requests(self, *_):
        return {}["missing"]
"""


def test_an_error_in_a_run_is_the_fault_of_the_package_that_raised_it(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (toy / "raising").mkdir()
    points = '[project.entry-points."rayio.format"]\nraising = "raising_format:Raising"\n'
    (toy / "raising.toml").write_text(f'[project]\nname = "rayio-raising"\nversion = "0.6"\n{points}')
    (toy / "raising_format.py").write_text(RAISING)
    monkeypatch.syspath_prepend(str(toy))
    monkeypatch.syspath_prepend(installed(toy / "raising", toy / "raising.toml"))
    monkeypatch.setattr("tempfile.tempdir", str(toy))
    with pytest.raises(SystemExit) as left:
        main(["simulate", "toys.yaml", "dataset.format=raising", "--out", "simulated"])
    assert left.value.code == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("rayio: fault of package rayio-raising 0.6: KeyError: 'missing'; the traceback is in ")


def test_a_kind_by_the_name_of_one_of_ours_is_said_to_be_unused(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy / "same").mkdir()
    points = '[project.entry-points."rayio.format"]\nnpz = "rayio_toy.format:ToyFormat"\n'
    (toy / "same.toml").write_text(f'[project]\nname = "rayio-same"\nversion = "0.5"\n{points}')
    monkeypatch.syspath_prepend(installed(toy / "same", toy / "same.toml"))
    note = "format 'npz' is rayio's own; the one of package rayio-same 0.5 is not used: its authors must rename it"
    ours = rayio.simulate("toys.yaml", ["dataset.format=npz"], out="ours")
    assert note in ours.result.notes
    assert note not in rayio.simulate("toys.yaml", out="theirs").result.notes
