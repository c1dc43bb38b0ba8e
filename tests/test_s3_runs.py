"""Whole commands whose datasets, checkpoints and run directories are objects of a real S3 server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from objects import KEY, SECRET, Objects, broken_off, first, round_in_a_circle, s3_error, slow_down

import rayio
from rayio import storage
from rayio.cli import _exit_code
from rayio.data.formats import layout_of
from rayio.data.generate import verify
from rayio.errors import DataError
from rayio.model.manifest import search
from rayio.scenario.write import to_yaml
from scenarios import latest, scenario

#: In few files: the server answers about a hundred requests in a second of a processor.
EVERYTHING: dict[str, Any] = {
    "train__compute": "1 ms",
    "train__evaluate": {"compute": "1 ms", "every": {"epochs": 1}},
    "dataset__num_files": 24,
    "dataset__eval": {"num_files": 4},
    "dataset__sample_bytes": "9 kB",
    "checkpoint": {"every": {"epochs": 1}, "path": "ck", "model": {"bytes": 9 << 20}},
    "storage": {"max_attempts": 3},
}


def command(*arguments: object) -> int:
    return _exit_code([str(a) for a in arguments])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Give what was printed on standard error since, without any traceback or secret in what was printed at all."""
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert KEY not in out + err
    assert SECRET not in out + err
    return err.strip()


@pytest.fixture
def small(home: Path) -> Path:
    path = home / "small.yaml"
    path.write_text(to_yaml(scenario(dataset__path="data", **EVERYTHING)))
    return path


def contents(place: str) -> dict[str, bytes]:
    """Every object below an address."""
    store, found = storage.open(place), {}
    folders = [""]
    while folders:
        folder = folders.pop()
        below = storage.open(f"{place}/{folder}".rstrip("/"))
        names = [f"{folder}/{name}".strip("/") for name in below.entries()]
        for name in names:
            if (content := store.read(name)) is None:
                folders.append(name)
            else:
                found[name] = content
    return found


@pytest.mark.parametrize("format", ["npz", "tar", "jpeg", "indexed_binary"])  # the laws of formats and stores have all
def test_a_dataset_of_objects_has_the_bytes_of_one_of_files(format: str, home: Path, place: str) -> None:
    wanted = scenario(dataset__path="data", dataset__format=format, dataset__num_files=12, dataset__sample_bytes="9 kB")
    assert rayio.generate(wanted, root=place) == f"{place}/data"
    rayio.generate(wanted, root=home)
    files = {str(path.relative_to(home / "data")): path.read_bytes() for path in (home / "data").rglob("*.*")}
    assert contents(f"{place}/data") == files
    assert verify(layout_of(wanted), format, f"{place}/data").reused_files == 12
    store = storage.open(f"{place}/data")
    lost = layout_of(wanted).path(7)
    store.remove(lost)
    with pytest.raises(DataError, match=f"{place}/data/{lost}: the file is missing"):
        verify(layout_of(wanted), format, f"{place}/data")
    rayio.generate(wanted, root=place)
    assert contents(f"{place}/data") == files


def test_a_run_lives_in_a_bucket_and_every_command_reads_it_there(
    small: Path, home: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ("--root", place, "--engine", "local")
    assert command("run", small, *there, "--out", "r1") == 0
    told = said(capsys)
    assert f"dataset {place}/data: generated 24 files" in told
    assert f"dataset {place}/data-eval: generated 4 files" in told
    assert f"report: {place}/r1/report.html" in told
    assert command("run", small, *there, "loader.num_workers=1", "--out", f"{place}/r2") == 0
    assert "found 24 files" in said(capsys)
    assert [*home.iterdir()] == [small]
    run = rayio.Run.open(f"{place}/r1")
    assert run.result["ledger"]["even"] is True
    assert any("checkpoint.fsync=true: no effect" in note for note in run.result["notes"])
    assert storage.open(f"{place}/r1").entries().count("report.html") == 1
    saved = {name: content for name, content in contents(f"{place}/ck").items() if name.endswith(".bin")}
    assert [len(content) for content in saved.values()] == [9 << 20] * 2
    left = contents(f"{place}/r1")
    assert {name.partition("/")[0] for name in left} == {
        "report.html", "result.json", "run.json", "scenario.yaml", "spans",
    }  # fmt: skip
    assert not any(secret.encode() in content for secret in (KEY, SECRET) for content in left.values())

    assert command("report", f"{place}/r1") == 0
    assert command("explain", f"{place}/r1", "--json") == 0
    capsys.readouterr()
    assert command("compare", f"{place}/r1", f"{place}/r2/") == 0
    assert "num_workers" in capsys.readouterr().out
    assert command("compare", f"{place}/r1", f"{place}/r1/") == 2
    capsys.readouterr()
    assert command("query", f"{place}/r1", "select count(*) n from spans where name = 'write'", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 2}]
    assert command("export", f"{place}/r1", "--csv", home / "spans.csv") == 0
    assert command("calibrate", f"{place}/r1", "--out", home / "learned.yaml") == 0
    assert command("report", f"{place}/r1", "--out", home / "page.html") == 0
    assert command("simulate", home / "learned.yaml", "--out", f"{place}/simulated") == 0
    reads = "select sum(requests) n, count(*) b from spans where name = 'read'"
    capsys.readouterr()
    for each in ("r1", "simulated"):
        assert command("query", f"{place}/{each}", reads, "--json") == 0
    of_run, of_model = (json.loads(text) for text in capsys.readouterr().out.replace("]\n[", "]\n\n[").split("\n\n"))
    assert of_model == of_run, "the calibrated model asks an object store as the run did"
    capsys.readouterr()
    assert command("run", small, *there, "--out", "r1") == 2
    assert said(capsys) == f"rayio: {place}/r1 already holds a run; choose another --out, or remove it"
    assert command("run", small, *there, "--out", "data") == 2
    assert said(capsys) == (
        f"rayio: --out={place}/data: is the folder of dataset.path=data; choose folders that lie apart"
    )
    storage.open(f"{place}/full").write("of somebody", lambda file: file.write(b"else"))
    assert command("run", small, *there, "--out", "full") == 2
    assert said(capsys) == f"rayio: {place}/full is not empty and holds no run; choose another --out"
    assert command("report", f"{place}/nothing") == 2
    assert said(capsys) == f"rayio: {place}/nothing is not a run directory: no such path"


def test_a_run_directory_of_files_may_have_its_data_in_a_bucket(
    small: Path, home: Path, objects: Objects, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    keys = (f"storage.endpoint={objects.url}", "storage.addressing_style=path", "storage.region=eu-west-1")
    data = (f"dataset.path={place}/data", f"checkpoint.path={place}/ck")
    assert command("run", small, *keys, *data, "--engine", "local", "--out", "r") == 0
    assert rayio.Run.open(home / "r").result["ledger"]["even"] is True
    assert len(contents_at(objects, f"{place}/ck")) == 4, "two files, each with its manifest"


def contents_at(objects: Objects, place: str) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", objects.url)
        return contents(place)


def test_requests_that_are_made_again_are_spans_and_a_note(
    small: Path, home: Path, objects: Objects, place: str
) -> None:
    assert command("generate", small, "--root", place) == 0
    # Two of each: should all meet the same reader's request, its third attempt is the last it has.
    faults = [first(2, slow_down, within="/data/0"), first(2, slow_down, method="PUT", within="/ck/")]
    with objects.misbehaving(faults[0]), objects.misbehaving(faults[1]):
        assert command("run", small, "--root", place, "--engine", "local", "--out", home / "r") == 0
    run = rayio.Run.open(home / "r")
    spans = run.spans()
    retries = spans[spans["name"] == "retry"]
    assert sorted({*retries["role"]}) == ["checkpoint_writer", "reader"]
    assert len(retries[retries["role"] == "reader"]) == 2
    assert (retries["duration_ns"] > 40e6).all()
    assert retries["file"].str.contains("000000/|epoch-").all()
    assert set(retries["attributes"]) == {'{"why":"503 SlowDown"}'}
    assert any(
        f"{len(retries)} requests to storage were made again" in note
        and note.endswith(f"; storage throttled {len(retries)} of them (503 SlowDown)")
        for note in run.result["notes"]
    )
    assert run.result["ledger"]["even"] is True


def test_only_requests_that_came_too_fast_are_called_throttled(
    small: Path, home: Path, objects: Objects, place: str
) -> None:
    assert command("generate", small, "--root", place) == 0
    faults = [first(1, slow_down, within="/data/0"), first(1, broken_off, within="/data/0")]
    with objects.misbehaving(faults[0]), objects.misbehaving(faults[1]):
        assert command("run", small, "--root", place, "--engine", "local", "--out", home / "r") == 0
    run = rayio.Run.open(home / "r")
    spans = run.spans()
    said = spans[spans["name"] == "retry"]["attributes"]
    assert sorted(said) == ['{"why":"503 SlowDown"}', '{"why":"the answer broke off"}']
    (note,) = [one for one in run.result["notes"] if "made again" in one]
    assert note.startswith("2 requests to storage were made again after a failure")
    assert note.endswith("; storage throttled 1 of them (503 SlowDown)")


FAULTS: dict[str, tuple[Any, str]] = {
    "storm": (slow_down, "503 SlowDown from http"),
    "broken": (broken_off, "the answer broke off from http"),
    "403": (lambda _: s3_error("403 Forbidden", "AccessDenied"), "no permission for reading (403 AccessDenied)"),
    "404": (lambda _: s3_error("404 Not Found", "NoSuchKey"), "the object is missing"),
    "region": (lambda _: s3_error("400 Bad Request", "AuthorizationHeaderMalformed"), "not in region us-east-1"),
    "circle": (round_in_a_circle, "go round in a circle"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_storage_ends_says_why_and_leaves_what_was_recorded(
    fault: str, small: Path, home: Path, objects: Objects, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, says = FAULTS[fault]
    assert command("generate", small, "--root", place) == 0
    capsys.readouterr()
    with objects.misbehaving(first(10_000, answer, within="/data/000000/")):
        assert command("run", small, "--root", place, "--engine", "local", "--out", home / "r") == 2
    last = said(capsys).splitlines()[-1]
    assert last.startswith(f"rayio: {place}/data/000000/")
    assert says in last
    run = rayio.Run.open(home / "r")
    assert (run.exit_code, run.result["error"]) == (2, last.removeprefix("rayio: "))
    retries = int((run.spans()["name"] == "retry").sum())
    assert (retries > 0) == (fault in ("storm", "broken"))
    everything = b"".join(path.read_bytes() for path in (home / "r").rglob("*") if path.is_file())
    assert KEY.encode() not in everything
    assert SECRET.encode() not in everything


@pytest.mark.parametrize("case", ["bucket", "refused", "credentials", "403"])
def test_a_run_that_cannot_begin_says_why_in_a_line_and_leaves_nothing(
    case: str,
    small: Path,
    home: Path,
    objects: Objects,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    says, fault = (
        {"bucket": "there is no bucket 'nobodys'", "refused": "the connection was refused"}.get(case, ""),
        None,
    )
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if case == "bucket":
            place = "s3://nobodys/data"
        elif case == "refused":
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bound.getsockname()[1]}")
        elif case == "credentials":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.setenv("AWS_METADATA_ENDPOINT", objects.url)
            says = "there are no credentials for http"
        else:
            fault, says = s3_error("403 Forbidden", "AccessDenied"), "no permission for"
        with objects.misbehaving(lambda _: fault):
            for arguments in (
                ["run", small, "--engine", "local"],
                ["generate", small],
                ["run", small, "--engine", "local", "--out", home / "r"],
            ):
                assert command(*arguments, "--root", place) == 2
                (line,) = said(capsys).splitlines()
                assert line.startswith(f"rayio: s3://{place.split('/')[2]}")
                assert says in line
            assert command("report", f"{place}/r") == 2
            assert says in said(capsys)
    assert [*home.iterdir()] == [small]


@pytest.mark.ray
def test_a_run_on_ray_reads_writes_and_is_recorded_in_a_bucket(small: Path, home: Path, place: str) -> None:
    # A Ray of its own: its workers have the credentials from the environment that it was started in.
    program = "from rayio.cli import main; main()"
    few = ("train.epochs=1", "cluster.ranks_per_node=1", "loader.num_workers=0", "train.sync=none")
    arguments = ["run", str(small), "--root", place, "--out", "r", *few]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False,
        timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"report: {place}/r/report.html" in done.stderr
    run = rayio.Run.open(f"{place}/r")
    assert run.result["ledger"]["even"] is True
    assert run.result["trace"]["recorded"] == run.result["trace"]["stored"] > 50
    assert len(contents(f"{place}/ck")) == 2
    left = contents(f"{place}/r")
    for secret in (KEY, SECRET):
        assert secret not in done.stdout + done.stderr
        assert not any(secret.encode() in content for content in left.values())


def test_the_workers_of_a_dataloader_read_from_a_bucket_unless_they_are_forks(
    small: Path, home: Path, objects: Objects, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one of an earlier test has no credentials
    torch = ("loader.kind=torch", "train.epochs=1", "--root", place, "--engine", "local")
    assert command("generate", small, "--root", place) == 0
    with objects.misbehaving(first(2, slow_down, within="/data/0")):
        assert command("run", small, *torch, "--out", home / "r") == 0
    run = rayio.Run.open(home / "r")
    assert run.result["ledger"]["even"] is True
    assert int((run.spans()["name"] == "retry").sum()) == 2
    capsys.readouterr()
    assert command("run", small, *torch, "loader.multiprocessing_context=fork", "--out", home / "forked") == 2
    assert "was forked from one that has used s3:// already" in said(capsys).splitlines()[-1]


@pytest.mark.parametrize("engine", ["torch", "dcp"])
def test_pytorch_saves_into_a_bucket_and_restores_from_it(small: Path, home: Path, place: str, engine: str) -> None:
    pytest.importorskip("torch")
    saved = (
        "checkpoint.path=kept", "checkpoint.model.bytes=100001", f"checkpoint.engine={engine}", "checkpoint.keep=2",
        "checkpoint.writers=sharded", "checkpoint.request_bytes=30 kB", "train.epochs=1", "--root", place,
        "--engine", "local",
    )  # fmt: skip
    assert command("run", small, "checkpoint.every={steps: 2}", *saved, "--out", home / "saved") == 0
    found = search(storage.open(f"{place}/kept"))
    assert (len(found.complete), found.passed) == (2, {})
    assert (".metadata" in found.complete[0].files) == (engine == "dcp")
    never = ("checkpoint.every={epochs: 9}", "checkpoint.restore=newest")
    assert command("run", small, *never, *saved, "--out", home / "restored") == 0
    spans = rayio.Run.open(home / "restored").spans()
    assert sorted(spans[spans["name"] == "verify"]["bytes"]) == [50_000, 50_001]


def test_checkpoints_in_a_bucket_are_completed_restored_verified_and_removed(
    small: Path, home: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = (
        "checkpoint.every={steps: 2}", "checkpoint.path=kept", "checkpoint.model.bytes=100 kB", "checkpoint.keep=2",
        "checkpoint.writers=sharded", "checkpoint.request_bytes=64 kB", "train.epochs=1",
    )  # fmt: skip
    there = ("--root", place, "--engine", "local")
    assert command("run", small, *saved, *there, "--out", home / "saved") == 0
    bucket = storage.open(f"{place}/kept")
    complete = search(bucket).complete
    assert (len(complete), search(bucket).passed) == (2, {})
    assert sorted(bucket.entries()) == sorted(manifest.folder for manifest in complete), "an older one is still there"
    newest, older = complete
    bucket.remove(f"{newest.folder}/shard-00001.bin")
    never = ("checkpoint.every={epochs: 9}", "checkpoint.restore=newest")
    assert command("run", small, *latest(*saved, *never), *there, "--out", home / "restored") == 0
    assert f"{newest.folder} (shard-00001.bin is missing)" in capsys.readouterr().err
    spans = rayio.Run.open(home / "restored").spans()
    loads = spans[spans["name"] == "load"]
    assert (
        sorted(zip(loads["epoch"], loads["step"], loads["bytes"], loads["requests"], strict=True))
        == [(older.epoch, older.step, 50_000, 1)] * 2
    )
    content = bytearray(bucket.read(f"{older.folder}/shard-00000.bin") or b"")
    content[40_000] ^= 1
    bucket.write(f"{older.folder}/shard-00000.bin", lambda file: file.write(content))
    assert command("run", small, *latest(*saved, *never), *there, "--out", home / "damaged") == 2
    assert f"{older.folder}/shard-00000.bin: byte 40000 is not what was written there" in capsys.readouterr().err
