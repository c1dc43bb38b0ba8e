"""What ``rayio explain`` says of storage that refuses: its numbers are worked out again, span by span."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from objects import Answer, Environ, Objects, s3_error, slow_down

import rayio
from rayio.analyze.retries import refusal
from rayio.records.explained import Explained, Throttled
from rayio.report.explain import explain
from rayio.report.text.explanation import text
from rayio.session import Run, simulate
from scenarios import scenario

#: 8 workers, whose 480 requests of 2 ms come faster than 100 a second are served.
REFUSED: dict[str, Any] = {
    "dataset__format": "tfrecord",
    "dataset__num_files": 480,
    "train__compute": "10 ms",
    "train__epochs": 1,
    "loader__num_workers": 4,
    "storage": {
        "model": {"first_byte": "2 ms", "connection_bandwidth": "1 GB/s", "bandwidth": "1 GB/s"},
        "throttle": {"reads_per_second": 100, "burst": "200 ms", "split_after": "never"},
        "max_attempts": 30,
    },
}


def counted(run: Run) -> dict[str, Any]:
    """Refused attempts, requests served, and seconds read and waited, by going over every span in turn."""
    refused, served, reading, waited = 0, 0, 0, 0
    waits = defaultdict[str, list[tuple[int, int]]](list)
    for span in run.spans().to_dict("records"):
        end = span["start_ns"] + span["duration_ns"]
        if span["name"] == "read" and span["role"] == "reader":
            served, reading = served + span["requests"], reading + span["duration_ns"]
        elif span["name"] == "retry" and span["role"] == "reader" and "SlowDown" in span["attributes"]:
            refused += 1
            waits[span["index"]].append((span["start_ns"], end))
    for of_worker in waits.values():
        until = 0
        for begin, end in sorted(of_worker):
            waited += max(0, end - max(begin, until))
            until = max(until, end)
    return {"refused": refused, "served": served, "read": reading / 1e9, "waited": waited / 1e9}


def held_against_spans(found: Explained, run: Run) -> Throttled:
    """Check what an explanation says of refusals against its run's spans."""
    said, by_hand = found.throttled, counted(run)
    assert said is not None
    assert (said.refused, said.served) == (by_hand["refused"], by_hand["served"])
    assert said.answers == {"503 SlowDown": by_hand["refused"]}
    assert said.waited_seconds == pytest.approx(by_hand["waited"], abs=1e-9)
    assert said.read_seconds == pytest.approx(by_hand["read"], abs=1e-9)
    assert said.read_share == pytest.approx(by_hand["waited"] / by_hand["read"])
    return said


@pytest.mark.parametrize("io_depth", [1, 2])
def test_refusals_of_a_model_are_counted_beside_its_rate(io_depth: int, tmp_path: Path) -> None:
    run = simulate(scenario(**REFUSED, loader__io_depth=io_depth), root=tmp_path)
    found = explain(run.path)
    said = held_against_spans(found, run)
    assert said.binds
    assert said.read_share is not None
    assert said.read_share > 0.3
    total = said.refused + said.served
    assert "Storage serves 100 requests/s and refuses more (503, storage.throttle); the " in found.sentence
    assert (
        f"Storage refused {said.refused} of {total} requests (503 SlowDown); retries took "
        f"{100 * said.read_share:.0f} % of read time"
    ) in found.sentence
    assert "More workers would" not in found.sentence, "of a model it is simulated what helps"
    assert found.prediction is not None
    rows = {row.cause: row.seconds for row in found.verdict.table}
    of_data = sum(rows[cause] for cause in ("open", "read", "retry", "unleased", "put", "reorder", "handoff"))
    assert said.data_wait_share == pytest.approx(rows["retry"] / of_data, rel=0.01)
    (line,) = (line for line in text(found).splitlines() if line.startswith("  refused "))
    assert line.split()[1:3] == [str(said.refused), "(503"]
    assert len(line) <= 100
    assert Explained.of_json(json.loads(json.dumps(found.as_json()))) == found


def test_what_one_rank_waits_for_one_reader_that_is_refused_is_its_share_of_the_reads(tmp_path: Path) -> None:
    """One worker that only reads, for a rank that hardly computes: its wait is the reads, refusals and all."""
    keys = {**REFUSED, "cluster__ranks_per_node": 1, "loader__num_workers": 1, "train__compute": "100 us"}
    run = simulate(scenario(**keys), root=tmp_path)
    said = held_against_spans(explain(run.path, simulate=False), run)
    assert said.data_wait_share == pytest.approx(said.read_share, abs=0.03)


def test_refusals_that_cost_little_beside_another_cause_are_a_line_and_no_conclusion(tmp_path: Path) -> None:
    throttle = {"reads_per_second": 300, "burst": "10 ms", "split_after": "never"}
    keys = {**REFUSED, "loader__decode": "50 ms", "storage": REFUSED["storage"] | {"throttle": throttle}}
    run = simulate(scenario(**keys), root=tmp_path)
    found = explain(run.path)
    said = held_against_spans(found, run)
    assert found.verdict.cause == "decode"
    assert not said.binds
    assert "refused" not in found.sentence
    assert "  refused " in text(found)
    without = explain(simulate(scenario(**keys | {"storage__throttle": "none"}), root=tmp_path).path)
    assert without.throttled is None
    assert "  refused " not in text(without)


class Alternately:
    """Refuses every other request for the data of an object, in turn by what it is asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    def __call__(self, environ: Environ) -> Answer | None:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] != "GET" or not path.endswith(".tfrecord"):
            return None
        self.asked[path] = number = self.asked.get(path, 0) + 1
        return slow_down(environ) if number % 2 else None


def declared_real(run: Run) -> Path:
    """A run of the virtual clock whose directory says that its storage was real: its times are those of refusals."""
    said = run.path / "run.json"
    said.write_text(json.dumps(json.loads(said.read_text()) | {"modelled_storage": False}))
    return run.path


def test_a_real_store_that_refuses_is_counted_and_no_number_of_workers_is_promised(
    home: Path, objects: Objects, place: str
) -> None:
    """What is held here does not depend on how quickly requests are answered; the sentence does (see the next test)."""
    wanted = scenario(
        dataset={"path": "data", "format": "tfrecord", "num_files": 24, "sample_bytes": 1000},
        cluster__ranks_per_node=1, train__compute="1 ms",
    )  # fmt: skip
    rayio.generate(wanted, root=place)
    with objects.misbehaving(Alternately()):
        run = rayio.run(wanted, engine="local", root=place, out=home / "run")
    found = explain(run.path)
    said = held_against_spans(found, run)
    assert (said.refused, said.served) == (48, 48)
    assert found.prediction is None
    assert found.simulated is not None
    assert not [row.change for row in found.simulated.changes if row.change.startswith("workers")]
    assert any(note.startswith("storage refused requests as too many: nobody knows") for note in found.notes)


def test_a_real_store_that_refuses_is_named_with_what_helps(tmp_path: Path) -> None:
    keys = {**REFUSED, "cluster__ranks_per_node": 1, "loader__num_workers": 1, "loader__prefetch_factor": 1}
    run = simulate(scenario(**keys), root=tmp_path)
    found = explain(declared_real(run))
    said = held_against_spans(found, run)
    assert said.binds
    assert found.sentence.startswith("Storage-bound: ")
    total = said.refused + said.served
    assert f"Storage refused {said.refused} of {total} requests (503 SlowDown); retries took " in found.sentence
    assert found.sentence.endswith(
        " More workers would be refused more: use more prefixes, or fewer and larger requests, or try fewer workers "
        "(loader.num_workers)."
    )
    assert "run with more workers" not in found.sentence


def test_no_change_is_promised_of_a_real_store_that_refuses(tmp_path: Path) -> None:
    throttle = {"reads_per_second": 60, "burst": "100 ms", "split_after": "never"}
    keys = {
        **REFUSED, "train__compute": {"kind": "exponential", "mean": "30 ms"}, "loader__prefetch_factor": 1,
        "storage": REFUSED["storage"] | {"throttle": throttle},
    }  # fmt: skip
    run = simulate(scenario(**keys), root=tmp_path)
    found = explain(declared_real(run))
    assert held_against_spans(found, run).binds
    assert found.simulated is not None
    saved = {row.change: row.time_saved or 0.0 for row in found.simulated.changes}
    assert saved["prefetch × 2"] > 0.1, "it is in the table, with the times of requests as they were"
    assert found.prediction is None
    assert "single batches come late. Storage refused " in found.sentence


def test_requests_that_failed_for_another_reason_are_no_refusals(home: Path, objects: Objects, place: str) -> None:
    wanted = scenario(
        dataset={"path": "data", "format": "tfrecord", "num_files": 24, "sample_bytes": 1000},
        cluster__ranks_per_node=1, train__compute="1 ms",
    )  # fmt: skip
    rayio.generate(wanted, root=place)
    refuse = Alternately()

    def broken(environ: Environ) -> Answer | None:
        return None if refuse(environ) is None else s3_error("500 Internal Server Error", "InternalError")

    with objects.misbehaving(broken):
        run = rayio.run(wanted, engine="local", root=place, out=home / "run")
    assert (run.spans()["name"] == "retry").sum() == 48
    found = explain(run.path, simulate=False)
    assert found.throttled is None
    assert "refused" not in found.sentence


@pytest.mark.parametrize(
    "said", ['{"why":"503 Slow', '["503 SlowDown"]', "503", "null", '{"why":503}', "[" * 20_000, ""]
)
def test_attributes_that_nobody_can_read_say_nothing(said: str) -> None:
    assert refusal(said) == ""
    assert refusal('{"why":"503 SlowDown"}') == "503 SlowDown"
