"""How files are walked (``loader.file_access``): another package's acts on every engine, as a cache."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from datasets import on_disk
from packages import TOY, installed

import rayio
from rayio.data.asked import mean_of, planned_requests
from rayio.kinds import FORMATS, REGISTRIES
from rayio.model.loading import Kept, Load
from rayio.report.explain import explain
from rayio.scenario.model import Scenario
from rayio.storage.stores.counted import CountedFile
from scenarios import Outcome, run_locally, scenario, simulated

DATASET = {"path": "data", "num_files": 12, "samples_per_file": 4, "sample_bytes": "2000 B"}
#: A request to a file, by its reader and batch: what it was, of which file, from where, and how much.
COLUMNS = ("role", "index", "epoch", "step", "name", "file", "offset", "bytes")


@pytest.fixture(autouse=True)
def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the toy package installed."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.syspath_prepend(installed(tmp_path / "toy", TOY / "pyproject.toml"))
    monkeypatch.syspath_prepend(str(TOY))


def keeping(**overrides: Any) -> Scenario:
    """Give a scenario whose readers keep their files open, with every request in the trace."""
    base = {"dataset": DATASET, "train__compute": "100 us", "trace__level": "io", "loader__file_access": "kept_open"}
    return scenario(**{**base, **overrides})


def requests(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Give every request to a file, in an order of its own for each batch."""
    return sorted(tuple(row[c] for c in COLUMNS) for row in rows if row["name"] in ("io.open", "io.read"))


def opened(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Count how often each reader opened each file."""
    return Counter((row["role"], row["index"], row["file"]) for row in rows if row["name"] == "io.open")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("format", [name for name in FORMATS if getattr(FORMATS[name], "has_files", True)])
def test_a_reader_opens_a_file_once_and_the_model_knows(format: str, num_workers: int, tmp_path: Path) -> None:
    wanted = keeping(dataset=DATASET | {"format": format}, loader__num_workers=num_workers)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert set(opened(real.all_rows).values()) == {1}
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)
    anew = requests(simulated(keeping(dataset=DATASET | {"format": format}, loader__file_access="per_sample")).all_rows)
    assert len(anew) > len(requests(real.all_rows))


def test_evaluations_walk_files_of_their_own_and_what_is_too_much_is_closed(tmp_path: Path) -> None:
    evaluate = {"every": {"steps": 4}, "compute": "100 us"}
    wanted = keeping(
        dataset=DATASET | {"eval": {"num_files": 4}}, train__evaluate=evaluate, loader__most_open=3, train__epochs=1
    )
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert max(opened(real.all_rows).values()) > 1
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_files_are_closed_when_readers_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[CountedFile] = []  # which thus are not closed because nobody knows them any more
    monkeypatch.setattr(CountedFile, "_opened", lambda file, start: files.append(file))
    run_locally(on_disk(keeping(), tmp_path), tmp_path)
    assert files
    assert all(file.closed for file in files)


def test_reads_that_are_foreseen_take_as_long_as_those_of_tasks() -> None:
    slow = {"first_byte": "1 ms", "open": {"kind": "lognormal", "median": "5 ms", "sigma": 0.5}}
    slow |= {"connection_bandwidth": "10 MB/s", "bandwidth": "15 MB/s"}

    def reads(run: Outcome) -> list[tuple[Any, ...]]:
        columns = ("index", "epoch", "step", "start_ns", "duration_ns", "requests")
        return [tuple(row[c] for c in columns) for row in run.rows("read")]

    foreseen, tasks = (simulated(keeping(storage__model=slow, trace__level=level)) for level in ("batch", "io"))
    assert reads(foreseen) == reads(tasks)
    anew = simulated(keeping(storage__model=slow, loader__file_access="per_sample"))
    assert sum(row["duration_ns"] for row in tasks.rows("read")) < sum(row["duration_ns"] for row in anew.rows("read"))


@pytest.mark.parametrize("is_real", [False, True])
def test_readers_that_forget_deliver_the_same_and_ask_for_more(
    is_real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = keeping()

    def run() -> Outcome:
        return run_locally(on_disk(wanted, tmp_path), tmp_path) if is_real else simulated(wanted)

    whole = run()
    keep, chance = Load.keep, random.Random(1)

    def forget(load: Load, kept: Kept) -> None:
        if chance.random() < 0.7:
            keep(load, kept)
        elif load.after is not None:
            load.loading.access.close(load.after)

    monkeypatch.setattr(Load, "keep", forget)
    careless = run()
    assert careless.ledger.even
    assert careless.tallies == whole.tallies
    for rank in range(2):
        assert careless.delivered(rank) == whole.delivered(rank)
    assert opened(careless.all_rows).total() > opened(whole.all_rows).total()


def test_a_modelled_cache_has_samples_of_files_that_stay_open() -> None:
    run = simulated(keeping(storage__cache=[{"tier": "ram", "bytes": "40 KB"}], trace__level="batch"))
    assert run.ledger.even
    assert run.tallies[0].moved is not None


def test_pytorch_s_workers_keep_files_open(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kind = {"loader__kind": "torch", "loader__multiprocessing_context": "fork", "loader__persistent_workers": True}
    wanted = keeping(**kind)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert set(opened(real.all_rows).values()) == {1}
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_what_is_planned_of_storage_knows_what_stays_open() -> None:
    means = {
        access: mean_of(
            planned_requests(
                keeping(
                    loader__file_access=access,
                    loader__shuffle="none",
                    dataset=DATASET | {"num_files": 2, "samples_per_file": 24},
                )
            )
        )
        for access in ("per_sample", "kept_open")
    }
    assert means["kept_open"].opens < means["per_sample"].opens
    assert means["kept_open"].nbytes == means["per_sample"].nbytes


def test_a_run_is_explained_and_replayed_with_the_files_that_stay_open(tmp_path: Path) -> None:
    slow = {"first_byte": "1 ms", "open": "20 ms", "connection_bandwidth": "100 MB/s", "bandwidth": "100 MB/s"}
    wanted = keeping(
        dataset=DATASET | {"path": "model://kept", "num_files": 12, "samples_per_file": 40}, trace__level="batch",
        storage__model=slow, train__compute="2 ms",
    )  # fmt: skip
    found = explain(rayio.simulate(wanted, root=tmp_path).path)
    assert found.simulated is not None
    assert found.simulated.au == pytest.approx(found.verdict.au, abs=0.02)
