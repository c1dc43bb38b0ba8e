"""The head of a report: badge, verdict, numbers; each number is the same on the page, in the summary and in explain."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade import result
from pages import Page, check

import rayio
from rayio.analyze.stages import STAGES
from rayio.analyze.stalls import CAUSES
from rayio.records.explained import Prediction
from rayio.report import tracks
from rayio.report.build import report
from rayio.report.colours import COLOURS, style
from rayio.report.explain import explain
from rayio.report.headline import _verdict, badge
from rayio.report.text.conclusion import sentence
from rayio.report.text.delivered import format_done
from rayio.report.text.explanation import text
from rayio.scenario.expect import Condition
from scenarios import scenario


def simulated(root: Path, **overrides: Any) -> rayio.Run:
    return rayio.simulate(scenario(**overrides), out="r", root=root)


def written(run: rayio.Run) -> tuple[Page, str]:
    html = report(run.path, simulate=False).read_text(encoding="utf-8")
    return check(html), html


KINDS: dict[str, dict[str, Any]] = {
    "input-bound": {"loader__decode": "20 ms"},
    "reads itself": {"loader__num_workers": 0},
    "pauses": {
        "train__evaluate": {"every": {"epochs": 1}, "compute": "5 ms"},
        "dataset__eval": {"num_files": 8},
        "checkpoint": {"every": {"steps": 5}, "path": "ck", "model": {"bytes": "1 MB"}},
    },
    "stragglers": {
        "cluster__ranks_per_node": 3,
        "train__compute": {"kind": "normal", "mean": "10 ms", "stdev": "3 ms"},
        "dataset__num_files": 90,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_number_is_equal_wherever_it_appears(kind: str, tmp_path: Path) -> None:
    run = simulated(tmp_path, **KINDS[kind])
    page, html = written(run)
    summary, found = run.summary(), explain(run.path, simulate=False)
    for key, name in {
        "au": "AU", "samples_per_second": "throughput", "mib_per_second": "read", "data_wait_share": "data loading",
        "goodput": "goodput",
    }.items():  # fmt: skip
        line = re.search(rf"^  {name} +(\S+)", summary, re.MULTILINE)
        assert line, name
        assert page.numbers[key].split()[0] == line[1], name
    assert found.verdict.au == pytest.approx(run.result.au, abs=1e-12)
    assert found.verdict.data_wait_share == pytest.approx(run.result.data_wait_share, abs=1e-12)
    most = max(found.verdict.table, key=lambda row: row.share or 0.0)
    assert re.search(r"lost most to [\w ]+</a></span><b>([^<]+)<", html)[1] == f"{100 * (most.share or 0):.1f} %"  # type: ignore[index]
    row = re.findall(rf'data-cause="{most.cause}".*?<span class="n">([^<]+)</span>', html)
    assert row[0] == f"{100 * (most.share or 0):.1f} %"
    assert f"{100 * (most.share or 0):.1f} %" in text(found)
    compute = re.findall(r'data-cause="compute".*?<span class="n">([^<]+)</span>', html)
    assert compute[0] == page.numbers["au"]


def lost_most(page: Page) -> tuple[str, str, str]:
    found = re.search(r"lost most to ([\w ]+?) ([\d.]+ %) (of (?:step|wall) time[^<]*)", page.words)
    assert found, page.words
    return found[1], found[2], found[3]


def test_the_tile_names_failures_where_they_took_most(tmp_path: Path) -> None:
    failing = {"events": [{"kind": "node", "at": "900 ms"}], "restart": "1 s", "detect": "1 s"}
    checkpoint = {"every": {"steps": 10}, "path": "ck", "model": {"bytes": "40 MB"}}
    run = simulated(tmp_path, failures=failing, checkpoint=checkpoint, dataset__num_files=240)
    found = explain(run.path, simulate=False)
    assert found.failures is not None
    largest = max(row.share or 0.0 for row in found.verdict.table)
    assert (found.failures.lost_share or 0.0) > largest
    name, value, rest = lost_most(written(run)[0])
    assert (name, value) == ("failures", f"{100 * (found.failures.lost_share or 0.0):.1f} %")
    assert rest.startswith("of wall time, in 1 restart")


def test_the_tile_adds_up_the_causes_of_one_bottleneck(tmp_path: Path) -> None:
    # A batch takes 10 ms to read and 9 to decode; rank 1 computes for 15 ms, rank 0 for 10. No cause takes as much as
    # the straggler, but reading and decoding together take more.
    run = simulated(
        tmp_path, cluster__ranks_per_node=2, dataset__num_files=160, loader__num_workers=1, loader__decode="4.5 ms",
        train__stragglers={"ranks": [1], "factor": 1.5}, train__compute="10 ms",
        storage__model={"first_byte": "2.4 ms", "connection_bandwidth": "1 TB/s", "bandwidth": "1 TB/s"},
    )  # fmt: skip
    found = explain(run.path, simulate=False)
    assert found.verdict.bound == "input"
    largest = max(found.verdict.table, key=lambda row: row.share or 0.0)
    assert largest.cause == "straggler"
    name, value, rest = lost_most(written(run)[0])
    assert (name, value) == ("data loading", f"{100 * (found.verdict.bound_share or 0.0):.1f} %")
    assert "most of it read" in rest, rest
    unworthy = replace(found.verdict, is_worth_removing=False)
    said = sentence(replace(found, verdict=unworthy, prediction=None))
    assert "; the largest loss is exposed data loading, " in said
    assert said.endswith(" of step time, most of it in `read`.")


def test_overhead_that_comes_from_other_ranks_is_called_so(tmp_path: Path) -> None:
    # A warning has the overhead of the ranks alone. Then one page would have two numbers for one thing.
    found = explain(simulated(tmp_path).path, simulate=False)

    def said(by_sync: float) -> str:
        table = tuple(
            replace(row, share=0.1, by_sync_seconds=by_sync) if row.cause == "other" else row
            for row in found.verdict.table
        )
        verdict = replace(
            found.verdict, bound="overhead", cause="other", bound_share=0.1, is_worth_removing=True, table=table
        )
        return sentence(replace(found, verdict=verdict, prediction=None))

    assert "in others that it waits for" not in said(0.0)
    assert ", in a rank or in others that it waits for." in said(0.05 * found.verdict.seconds)


@pytest.mark.parametrize(
    ("au", "target", "said"),
    [
        (0.934, Condition(">=", 0.9), ("met", "target met: AU 93.4 %, wanted >= 90 %")),
        (0.5, Condition(">=", 0.9), ("missed", "target missed: AU 50.0 %, wanted >= 90 %")),
        (None, Condition(">=", 0.9), ("none", "AU is unknown; the target is >= 90 %")),
        (0.5, None, ("none", "no target AU is set")),
    ],
)
def test_the_badge_holds_the_au_against_what_the_scenario_expects(
    au: float | None, target: Condition | None, said: tuple[str, str]
) -> None:
    kind, words = badge(result(au=au), target)
    assert (kind, words.lstrip("✓✗ ")) == said


def test_the_page_wears_the_badge_of_its_scenario(tmp_path: Path) -> None:
    page, html = written(simulated(tmp_path, expect={"au": ">= 0.99"}, loader__decode="20 ms"))
    assert 'class="badge missed"' in html
    assert "target missed: AU" in page.words


@pytest.mark.parametrize(("target", "kind"), [(">= 99", "missed"), (">= 1", "met")])
def test_the_target_may_be_of_dlios_au(target: str, kind: str, tmp_path: Path) -> None:
    run = simulated(tmp_path, expect={"au_dlio": target}, loader__decode="20 ms")
    page, html = written(run)
    assert f'class="badge {kind}"' in html
    au = run.result.au_dlio
    assert f"target {kind}: AU by DLIO's formula {au:.1f} %, wanted {target} %" in page.words


@pytest.mark.parametrize(
    ("change", "heading"),
    [("With connections = ∞", "Limit"), ("With latency = 0", "Limit"), ("With 4 workers per rank (now 1)", "To do")],
)
def test_a_change_that_nobody_can_make_is_nothing_to_do(change: str, heading: str, tmp_path: Path) -> None:
    found = rayio.explain(simulated(tmp_path))
    better = Prediction(change=change, au=0.9, time_saved=0.5, then="compute")
    html = _verdict(replace(found, sentence=f"It waits. {change}: predicted AU 90 %.", prediction=better))
    assert f"<b>{heading}:</b> {change}: predicted" in html


def test_of_an_interrupted_run_it_is_said_how_much_was_done(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    assert run.result.ledger is not None
    books = replace(run.result.ledger, even=None, differences=(), planned_steps=100, delivered_steps=21)
    run.directory.write_result(replace(run.result, exit_code=130, error="interrupted", ledger=books))
    page, _ = written(run)
    assert "interrupted: 21 % done" in page.words
    assert "21 % done" in rayio.Run.open(run.path).summary()


def test_of_a_run_without_a_result_it_is_said_how_much_was_done(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    (run.path / "result.json").unlink()
    assert "not complete: 100 % done" in written(run)[0].words


def test_what_is_nearly_done_is_not_said_to_be_done() -> None:
    assert [format_done(share) for share in (0.0, 1e-6, 0.214, 0.9999, 1.0)] == [
        "0 % done", "under 1 % done", "21 % done", "over 99 % done", "100 % done",
    ]  # fmt: skip


def test_a_colour_means_one_thing(tmp_path: Path) -> None:
    names = Counter(member for colour in COLOURS.values() for member in colour.members)
    assert not [name for name, times in names.items() if times > 1]
    for theme in ("light", "dark"):
        assert len({getattr(colour, theme) for colour in COLOURS.values()}) == len(COLOURS)
    assert {*CAUSES, *STAGES, *tracks.KINDS} <= {*names}, "no cause and no span is without a colour"
    html = written(simulated(tmp_path, **KINDS["pauses"], trace__level="io"))[1]
    sheet = html.partition("<style>")[2].partition("</style>")[0].removeprefix(style())
    of_ranges = ("limit", *(f"heat{level}" for level in range(7)))
    used = {name for name in re.findall(r'class="(?:verdict )?c-([\w-]+)"', html) if name not in of_ranges}
    assert used
    assert used <= {*names}
    for colour in COLOURS.values():
        assert colour.light not in sheet
        assert colour.dark not in sheet
