"""What people read, in the field's words; names in files and in JSON stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

from pages import check

from rayio.analyze.stages import STAGES, shown
from rayio.report.build import report
from rayio.report.explain import explain
from rayio.report.text.explanation import text
from rayio.session import simulate


def test_no_two_stages_have_one_name_for_people() -> None:
    assert len({shown(stage) for stage in STAGES}) == len(STAGES)
    assert [shown(name) for name in ("unleased", "put", "handoff", "put = 0", "read = 0", "compute")] == [
        "queued", "transfer", "delivery", "transfer = 0", "read = 0", "compute",
    ]  # fmt: skip


def test_an_explanation_and_a_report_have_the_fields_words_and_json_the_names_of_files(tmp_path: Path) -> None:
    run = simulate(
        "unet3d-small",
        {"loader.decode": "40 ms", "costs": {"lease": "8 ms", "put": "10 ms", "take": "8 ms"}},
        root=tmp_path,
    )
    found = explain(run.path)
    assert {"unleased", "put", "handoff"} <= {row["cause"] for row in found["verdict"]["table"] if row["seconds"]}
    said = text(found)
    lines = {line.split()[0] for line in said.splitlines() if line.startswith("  ") and line.split()}
    assert {"queued", "transfer", "delivery", "decode"} <= lines
    for line in (
        "  what would change it",
        "time saved  loss removed  next bottleneck",
        "seconds    share    directly     waiting",
    ):
        assert line in said
    page = check(report(run.path).read_text()).words
    summary = run.summary()
    assert "all 840 samples delivered exactly once" in summary
    assert "data loading" in summary
    for shown_to_people in (said, summary, page):
        for word in ("unleased", "handoff", "then binds", "data wait ", "ledger even", "takes away"):
            assert word not in shown_to_people, word
    assert json.loads(json.dumps(found.as_json())) == found.as_json()
