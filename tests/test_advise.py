"""The cheapest setting that reaches a goal: against every setting of small grids, and with few simulations."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages import check

from rayio.cli import main
from rayio.errors import ScenarioError
from rayio.records.answers import answer_schema
from rayio.records.sizing import HOLDS, Advised, Price
from rayio.report.text.advice import text as advice
from rayio.reporter import Reporter
from rayio.study.sizing.advise import advise
from rayio.study.sizing.prices import Choice, cheapest, front, varied

#: Decoding takes three times as long as compute: three workers are enough, and hardly one batch ahead each.
SLOW = {
    "dataset.path": "model://slow", "dataset.sample_bytes": 4096, "dataset.num_files": 400, "storage.model": "memory",
    "loader.batch_size": 4, "loader.decode": 0.0375, "train.compute": 0.05, "train.epochs": 1, "train.steps": 60,
    "checkpoint": None, "cluster.ranks_per_node": 1,
}  # fmt: skip


def advised(folder: Path, vary: str, overrides: dict[str, Any] | None = None, **how: Any) -> Advised:
    return advise("unet3d-small", SLOW | (overrides or {}), vary=vary, out=folder / "advice", **how)


def test_the_fewest_readers_that_arithmetic_allows_are_advised(tmp_path: Path) -> None:
    """A batch takes 150 ms of a worker and 50 ms of the rank: W workers give AU min(1, W / 3)."""
    found = advised(tmp_path, "loader.num_workers=1..16", reach="au=0.95")
    assert found.advice is not None
    assert (found.advice.values, found.advice.status, found.advice.price.workers) == ((3,), HOLDS, 3)
    assert found.possible == 16
    assert len(found.tried) <= 7
    half = advised(tmp_path, "loader.num_workers=1..16", reach="au=0.6")
    assert half.advice is not None
    assert half.advice.values == (2,)
    assert (tmp_path / "advice" / "sweep.csv").is_file()


class Watching(Reporter):
    """Keeps what share of the search was said to be done."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    def live(self, text: str, share: float | None = None) -> None:
        """Keep it."""
        assert share is not None
        self.shares.append(share)


def test_it_says_how_far_the_search_is(tmp_path: Path) -> None:
    watching = Watching()
    found = advised(tmp_path, "loader.num_workers=1..16", reach="au=0.95", reporter=watching)
    made = len(found.tried)
    assert watching.shares == sorted(watching.shares), "what is done is never less than before"
    assert 0.0 <= watching.shares[0] < 0.5
    assert (made - 1) / made - 0.2 < watching.shares[-1] < 1.0, "as the last one runs, little is left"


def test_trying_every_setting_finds_the_same(tmp_path: Path) -> None:
    vary = "loader.num_workers=1..4,loader.prefetch_factor=1..3"
    jitter = {"loader.decode": {"kind": "exponential", "mean": 0.0375}}
    found = advised(tmp_path / "few", vary, jitter, reach="au=0.8")
    every = advised(tmp_path / "all", vary.replace("1..4", "1|2|3|4").replace("1..3", "1|2|3"), jitter, reach="au=0.8")
    assert found.advice is not None
    assert every.advice is not None
    assert (found.advice.values, found.advice.au) == (every.advice.values, every.advice.au)
    assert len(found.tried) < len(every.tried) <= 12
    by_memory = advised(tmp_path / "few", vary, jitter, reach="au=0.8", price="memory")
    assert by_memory.advice is not None
    assert by_memory.advice.price.memory <= found.advice.price.memory
    assert by_memory.priced_by == ("memory", "workers", "nodes")


def _grid(sizes: list[int], weights: list[float]) -> list[Choice]:
    """Settings whose price is a weighted sum of places, and memory their product."""
    found = []
    for places in itertools.product(*map(range, sizes)):
        cost = sum(place * weight for place, weight in zip(places, weights, strict=True))
        price = Price(workers=int(cost), memory=float(cost), nodes=1)
        found.append(Choice(places, places, (float(int(cost)), cost), price))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_whatever_reaches_and_costs_the_cheapest_is_found_with_fewer_questions(seed: int) -> None:
    """Goals that a random weighted sum of places must reach, on top of what each alternative gives."""
    draw = random.Random(seed)
    sizes = [draw.randint(2, 9), draw.randint(2, 9), draw.randint(1, 3)]
    ordered = [True, True, False]
    everything = _grid(sizes, [draw.uniform(0.5, 3) for _ in sizes])
    gains = [draw.uniform(0.2, 2), draw.uniform(0.2, 2)]
    extra = [draw.uniform(0, 3) for _ in range(sizes[2])]
    goal = draw.uniform(0.0, 1.1) * (gains[0] * (sizes[0] - 1) + gains[1] * (sizes[1] - 1) + max(extra))
    asked: list[tuple[int, ...]] = []

    def holds(one: Choice) -> bool:
        return one.places[0] * gains[0] + one.places[1] * gains[1] + extra[one.places[2]] >= goal

    def reaches(one: Choice) -> bool:
        asked.append(one.places)
        return holds(one)

    found = cheapest(everything, ordered, reaches, lambda one: sum(one.places))
    affordable = [one.cost for one in everything if holds(one)]
    assert (found.cost if found else None) == (min(affordable) if affordable else None)
    assert found is None or holds(found)
    assert len(asked) == len(set(asked)) <= len(everything) / (2 if len(everything) > 40 else 1)


#: A synchronous checkpoint of 4 ranks each 25 steps of 50 ms, which takes 250 ms of storage.
SAVED: dict[str, Any] = {
    "cluster.ranks_per_node": 4, "loader.decode": 0, "train.steps": 100, "dataset.num_files": 1600,
    "train.compute": {"kind": "gamma", "mean": 0.05, "stdev": 0.0075},
    "storage.model": {"first_byte": 0, "connection_bandwidth": 4e8, "bandwidth": 4e8, "scope": "cluster"},
    "checkpoint": {"every": {"steps": 25}, "path": "ck", "model": {"bytes": "100 MB"}, "writers": "sharded"},
}  # fmt: skip


def test_of_settings_at_one_price_the_best_is_advised_in_few_runs(tmp_path: Path) -> None:
    """A batch of 10 steps has a checkpoint or none, so single runs seem uncertain; those with other seeds agree."""
    import rayio

    found = advised(tmp_path, "checkpoint.every.steps=2..25", SAVED, reach="au=0.7")
    values = [
        rayio.simulate("unet3d-small", SLOW | SAVED | {"seed": seed}, out=tmp_path / str(seed)).au or 0.0
        for seed in range(4)
    ]
    assert found.advice is not None
    assert (found.advice.values, found.equally_priced, len(found.tried)) == ((25,), 24, 1)
    assert found.advice.au == pytest.approx(sum(values) / 4, abs=0.005)
    assert (found.advice.au_high or 0) - (found.advice.au or 0) < 0.01
    first = advice(found, 300).splitlines()[0]
    assert first == "steps 25: the highest AU of 24 settings at one price; it reaches AU ≥ 70 %"


def test_an_undecided_setting_is_no_miss(tmp_path: Path) -> None:
    """Two ranks wait for each other's exponential compute; the goal is the AU that one setting has."""
    ranks: dict[str, Any] = {
        "loader.decode": 0,
        "train.compute": {"kind": "exponential", "mean": 0.05},
        "cluster.ranks_per_node": 2,
    }
    au = advised(tmp_path / "au", "loader.num_workers=1..2", ranks, reach="au=0.99").tried[-1].au
    found = advised(tmp_path, "loader.num_workers=1..2", ranks, reach=f"au={au}")
    first = advice(found, 300).splitlines()[0]
    assert (found.advice, found.tried[-1].status) == (None, "undecided")
    assert first.startswith("undecided whether AU ≥ ")
    assert " % is reached: 2 workers, AU " in first
    assert first.endswith(" %, may reach it; use longer runs (train.epochs)")


def test_what_cannot_be_advised_is_one_line(tmp_path: Path) -> None:
    def refused(match: str, vary: str = "loader.num_workers=1..4", **how: Any) -> None:
        with pytest.raises(ScenarioError, match=match) as error:
            advised(tmp_path, vary, **how)
        assert "\n" not in str(error.value)

    refused(
        "--reach samples_per_second=9: not yet: samples_per_second; there are au and au_dlio",
        reach="samples_per_second=9",
    )
    refused("--reach au=90: must be above 0 and at most 1", reach="au=90")
    refused("--price money: money is not allowed; give workers, memory, nodes, each at most once", price="money")
    refused("--price nodes,nodes: nodes is given twice; give workers", price="nodes,nodes")
    refused("--check virtual: must be ray or local", check="virtual")
    refused("--vary loader.num_workers=4..1: must rise", "loader.num_workers=4..1")
    refused("--vary loader.num_workers=a..b: a range needs whole numbers", "loader.num_workers=a..b")
    refused("no '='; write section.key=1..16", "loader.num_workers")
    refused("loader.num_workers: a value is given twice", "loader.num_workers=2|2")
    refused("a value is empty", "loader.num_workers=2|")
    refused("train.compute is varied, and also set to", "train.compute=1|2")
    refused("6000 settings, but at most 5000", "loader.num_workers=1..1000,loader.prefetch_factor=1..6")
    refused("loader.shuffle=", "loader.shuffle=round|square")
    assert not (tmp_path / "advice").exists()


def test_advice_leaves_failures_out(tmp_path: Path) -> None:
    failing = {"failures": {"mtbf": "2 s", "restart": "1 s"}}
    found = advised(tmp_path / "with", "loader.num_workers=1..4", failing)
    without = advised(tmp_path / "without", "loader.num_workers=1..4", {})
    assert found.tried == without.tried
    assert next(note for note in found.notes if note not in without.notes).startswith("failures are left out")
    with pytest.raises(ScenarioError, match=r"--vary failures.mtbf: failures do not change AU; use rayio sweep"):
        advised(tmp_path / "no", "failures.mtbf=1..3", failing)


def test_advice_that_leaves_samples_out_says_so(tmp_path: Path) -> None:
    """One worker owns 8 files of 5 samples, 10 batches of 4; three own 15, 15 and 10 samples: 3, 3 and 2 batches."""
    owning = {
        "dataset.format": "tfrecord", "dataset.num_files": 8, "dataset.samples_per_file": 5,
        "loader.assignment": "by_file", "loader.file_access": "streamed", "loader.shuffle": "file",
        "train.steps": None,
    }  # fmt: skip
    found = advised(tmp_path, "loader.num_workers=1..3", owning)
    assert found.advice is not None
    assert found.advice.values == (3,)
    assert found.advice.left_out == pytest.approx(0.2)
    assert "The advised setting leaves 20 % of samples out of each epoch, unless loader.drop_last=false." in advice(
        found, 300
    )
    assert [setting.left_out for setting in found.tried if setting.values == (1,)] in ([], [None])


def test_values_are_read_as_a_scenario_has_them() -> None:
    one, other = varied("dataset.format=npz,tfrecord,loader.decode={kind: exponential, mean: 5 ms}|1 ms")
    assert (one.key, one.values, one.is_ordered) == ("dataset.format", ("npz", "tfrecord"), False)
    assert other.key == "loader.decode"


def test_a_goal_that_nothing_reaches_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")

    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["advise", "unet3d-small", *(f"{key}={json.dumps(value)}" for key, value in SLOW.items()), *arguments])
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    code, out, _ = command("--vary", "loader.num_workers=1..2", "--out", "none")
    assert code == 3
    assert "no setting reaches AU ≥ 90 %; the nearest is 2 workers, AU 6" in " ".join(out.split())
    code, out, _ = command("--vary", "loader.num_workers=1..4", "--out", "found", "--json")
    content = json.loads(out)
    jsonschema.Draft202012Validator(answer_schema("advise")).validate(content)
    assert (code, content["advice"]["values"]) == (0, [3])
    code, out, _ = command("--vary", "loader.num_workers=1..4", "--out", "found")
    assert "3 workers: the cheapest setting that reaches AU ≥ 90 %\n  loader.num_workers=3\n" in out
    assert "By price, workers, then memory, then nodes: of 4 settings" in out


def test_what_is_advised_is_run_where_that_is_asked_for(tmp_path: Path) -> None:
    """On the local engine, with a goal that any machine reaches: the setting is run as it is."""
    real = {"dataset.path": "data", "dataset.num_files": 24, "loader.decode": 0, "train.steps": 4}
    found = advised(tmp_path, "loader.num_workers=1..2", real, reach="au=0.001", check="local", root=tmp_path)
    assert found.check is not None
    assert (found.check.engine, found.check.reaches) == ("local", True)
    result = json.loads((Path(found.check.directory) / "result.json").read_text())
    assert (result["engine"], result["au"]) == ("local", found.check.au)
    said = " ".join(advice(found, 200).split())
    assert "Run once with --engine local: AU" in said
    assert [doubt.sentence for doubt in found.check.doubts] == [doubt["sentence"] for doubt in result["doubts"]]
    assert all(doubt.sentence in said for doubt in found.check.doubts)
    missed = replace(found, check=replace(found.check, reaches=False, au=0.5))
    assert advice(missed, 200).splitlines()[0].endswith("≥ 0.1 %, but a run with --engine local had AU 50.0 %")


JITTER = {"loader.decode": {"kind": "exponential", "mean": 0.0375}, "train.steps": None}


@pytest.mark.parametrize("reach", ["au=0.9", "au=0.999"])
def test_every_number_of_the_advice_is_the_same_on_the_page(tmp_path: Path, reach: str) -> None:
    vary = "loader.num_workers=1..4,loader.prefetch_factor=1..4"
    found = advised(tmp_path, vary, JITTER, reach=reach)
    seen = check((tmp_path / "advice" / "advice.html").read_text(encoding="utf-8"))
    words = " ".join(seen.words.split()).replace(" .", ".")
    lead, *lines = [line.strip() for line in advice(found, 300).splitlines() if line.strip()]
    assert lead[1:] in words
    for line in lines:
        for cell in filter(None, map(str.strip, line.removeprefix("note: ").split("  "))):
            assert cell.replace("`", "") in words, cell
    assert not (tmp_path / "advice" / "sweep.html").exists()


def test_the_advised_setting_is_marked_and_on_the_front(tmp_path: Path) -> None:
    """The price knows nothing of io_depth: settings with one price would push the advised one off the front."""
    found = advised(tmp_path, "loader.num_workers=1..8,loader.io_depth=1..4", JITTER)
    assert found.advice is not None
    assert found.advice.is_on_front
    assert [setting for setting in found.tried if setting == found.advice] == [found.advice]
    same = [s for s in found.tried if s.price == found.advice.price and s.is_on_front]
    assert same == [found.advice]
    html = (tmp_path / "advice" / "advice.html").read_text(encoding="utf-8")
    assert html.count("dot chosen") >= 1
    assert "advised" in check(html).words
    for setting in found.tried:
        beaten = [
            other
            for other in found.tried
            if (other.au or 0) >= (setting.au or 0)
            and other.price.workers <= setting.price.workers
            and other.price.memory <= setting.price.memory
            and other.price != setting.price
        ]
        assert not (beaten and setting.is_on_front and setting != found.advice)


@pytest.mark.parametrize("seed", range(30))
def test_the_front_has_no_setting_that_another_beats_and_leaves_out_none_that_is_best(seed: int) -> None:
    draw = random.Random(seed)
    tried = [
        (n, (float(draw.randrange(4)), float(draw.randrange(4))), draw.randrange(6) / 5, False)
        for n in range(draw.randrange(1, 12))
    ]
    on = front(tried)

    def beats(a: tuple[int, tuple[float, ...], float, bool], b: tuple[int, tuple[float, ...], float, bool]) -> bool:
        is_cheaper = all(x <= y for x, y in zip(a[1], b[1], strict=True))
        return is_cheaper and a[2] >= b[2] and (a[1] != b[1] or a[2] > b[2])

    for entry in tried:
        if any(beats(other, entry) for other in tried):
            assert entry[0] not in on
    assert all(any(n in on for n, c, au, _ in tried if (c, au) == (cost, gain)) for _, cost, gain, _ in tried
               if not any(beats(other, (-1, cost, gain, False)) for other in tried))  # fmt: skip


def test_numbers_and_nouns_agree(tmp_path: Path) -> None:
    found = advised(tmp_path, "loader.num_workers=1..2", {"train.steps": 20}, reach="au=0.9")
    shown = " ".join(advice(found, 300).split())
    assert "of 2 settings 1 was simulated, in 1 run." in shown
    assert found.bottleneck is not None
    assert "Bottleneck of 2 workers: " in shown
    assert not [word for word in ("1 settings", "1 runs", "1 were", "1 are") if word in shown]


def test_an_advised_setting_reaches_the_goal_if_it_is_simulated_again(tmp_path: Path) -> None:
    import rayio

    found = advised(tmp_path, "loader.num_workers=1..8,loader.prefetch_factor=1..8", JITTER)
    assert found.advice is not None
    workers, prefetch = found.advice.values
    keys = SLOW | JITTER | {"loader.num_workers": workers, "loader.prefetch_factor": prefetch, "seed": 77}
    again = rayio.simulate("unet3d-small", keys | {"dataset.num_files": 4000}, out=tmp_path / "again")
    assert again.au is not None
    assert again.au >= 0.9
    assert found.advice.needed_bytes_per_second == pytest.approx(4 * 4096 / 0.05)
    assert found.advice.bytes_per_second == pytest.approx((found.advice.au or 0) * 4 * 4096 / 0.05, rel=0.02)


@pytest.mark.parametrize(("files", "is_said"), [(40, True), (4000, False)])
def test_longer_epochs_than_the_scenario_has_are_told(files: int, is_said: bool, tmp_path: Path) -> None:
    """A checkpoint after each epoch of 10 steps costs what one after 100 does not."""
    saved = {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": "1 GB"}}
    keys: dict[str, Any] = {"dataset.num_files": files, "train.steps": None, "checkpoint": saved, "train.epochs": 2}
    found = advised(tmp_path, "loader.num_workers=4..5", keys)
    said = "; the scenario has 10, so what comes by epochs takes more time there"
    assert any(note.endswith(said) for note in found.notes) is is_said
    assert (found.as_written is not None) is is_said
    if found.as_written is not None:
        import rayio

        again = rayio.simulate("unet3d-small", SLOW | keys | {"loader.num_workers": 4}, out=tmp_path / "again")
        assert (found.as_written.steps, found.as_written.au) == (10, again.au)
        assert again.au is not None
        steps = found.as_written.searched_steps
        missed = f" in epochs of {steps} steps; in those of the scenario (10 steps) AU is only {100 * again.au:.1f} %"
        assert advice(found, 400).splitlines()[0].endswith(missed)
    page = (Path(found.directory) / "advice.html").read_text()
    assert ('class="verdict c-missed"' in page, 'class="verdict c-met"' in page) == (is_said, not is_said)
    assert found.is_reached is not is_said, "the exit code is 3"
