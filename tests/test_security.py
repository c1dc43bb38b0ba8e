"""What nobody may make rayio do: run what a file holds, write where it was not told to, tell a secret, listen."""

from __future__ import annotations

import ast
import io
import ipaddress
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from objects import KEY, SECRET
from test_architecture import FILES, named, nodes

from rayio import cli
from rayio.errors import RayioError
from rayio.scenario.load import load
from rayio.storage.stores.entries import PARTIAL
from rayio.storage.stores.posix import PosixStore

SMALL = """\
name: small
dataset: {path: data, num_files: 8, sample_bytes: 20 kB}
loader: {batch_size: 2, num_workers: 1}
train: {epochs: 1, compute: 1 ms}
"""

#: What gives bytes the power to run something as they are read.
RUNS = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads", "marshal.load",
    "marshal.loads", "shelve.open", "joblib.load", "dill.load", "dill.loads", "torch.load", "eval", "exec", "compile",
    "os.system", "os.popen", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader",
    "yaml.UnsafeLoader", "yaml.FullLoader", "pandas.read_pickle", "runpy.run_path",
}  # fmt: skip
#: Where one of them is given what this process, or another of the same user and run, has just made.
OWN = {
    ("machine/calls.py", "pickle.load"),  # pipes between a command and the processes that it starts
    ("engines/ray/transport/lines.py", "pickle.loads"),  # sockets between actors of a run, who look at whose they are
    ("signals.py", "exec"),  # of an empty text
    ("engines/savers/dcp.py", "pickle.loads"),  # an index that is equal to the one that this process makes
    ("engines/savers/torch_save.py", "torch.load"),  # with weights_only, which runs nothing
}


def dotted(node: ast.AST) -> str:
    """The name that a call is made by, with its dots."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def dangers(source: str) -> Iterator[str]:
    """Each name of :data:`RUNS` that a source uses, however it is imported; ``numpy.load`` where it may unpickle."""
    meant = {"np": "numpy", "pd": "pandas"}
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom):
            meant |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            meant |= {one.asname: one.name for one in node.names if one.asname}
    for node in nodes(source):
        if isinstance(node, (ast.Name, ast.Attribute)):
            head, dot, rest = dotted(node).partition(".")
            if (name := f"{meant.get(head, head)}{dot}{rest}") in RUNS and "." in name:
                yield name
        if isinstance(node, ast.Call):
            if dotted(node.func) in RUNS and "." not in dotted(node.func):  # a field may be called so, too
                yield dotted(node.func)
            said = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
            if said.get("allow_pickle"):
                yield "allow_pickle"
            if said.get("shell"):
                yield "shell"


def test_nothing_in_rayio_runs_what_a_file_holds() -> None:
    found = {(named(path), name) for path in FILES for name in dangers(path.read_text(encoding="utf-8"))}
    assert found == OWN


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(f)", "from pickle import loads as l\nl(b)", "import numpy as np\n"
        "np.load(f, allow_pickle=True)", "eval(x)", "import yaml\nyaml.load(t, yaml.UnsafeLoader)",
        "import subprocess as s\ns.run(x, shell=True)", "import torch\ntorch.load(p)",
    ],
)  # fmt: skip
def test_what_would_run_something_is_found(source: str) -> None:
    assert [*dangers(source)]


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.proof,)


@pytest.mark.parametrize("reader", ["rayio", "numpy"])
def test_a_pickle_in_a_dataset_is_not_opened(reader: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text(SMALL)
    assert command("generate", "small.yaml") == 0
    proof = home / "proof"
    objects = io.BytesIO()
    np.save(objects, np.array([Evil(proof)], dtype=object), allow_pickle=True)
    for file in home.glob("data/*/*.npz"):
        size = file.stat().st_size
        with zipfile.ZipFile(file, "w") as changed:
            changed.writestr("x.npy", objects.getvalue())
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))
    capsys.readouterr()
    more = ["loader.reader=numpy"] if reader == "numpy" else []
    assert command("run", "small.yaml", *more, "--engine", "local", "--out", "r") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("rayio: ")
    assert not proof.exists()
    pickle.loads(pickle.dumps(Evil(proof)))
    assert proof.exists(), "it would have"


def command(*arguments: object) -> int:
    """Run a command in this process; give its exit code."""
    with pytest.raises(SystemExit) as left:
        cli.main([*map(str, arguments)])
    return int(left.value.code or 0)


@pytest.mark.parametrize(
    "text",
    [
        '!!python/object/apply:os.system ["touch proof"]', "!!python/object/new:os.system [touch proof]",
        "!!python/name:os.system", "!!python/module:os", '!!python/object/apply:pathlib.Path.touch ["proof"]',
    ],
)  # fmt: skip
def test_a_scenario_runs_no_code(text: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a file, in one that another extends, and in an override; the last line is all that is said."""
    Path("base.yaml").write_text(f"{SMALL}seed: {text}\n")
    Path("mine.yaml").write_text("extends: base.yaml\nname: mine\n")
    Path("good.yaml").write_text(SMALL)
    for arguments in (("base.yaml",), ("mine.yaml",), ("good.yaml", f"seed={text}"), ("good.yaml", f"train={text}")):
        assert command("validate", *arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert command("sweep", "good.yaml", f"seed={text}", "--out", "s") == 2
    assert not Path("proof").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loader.kind", "os:system"), ("dataset.format", "os:system"), ("storage.model", "pathlib:Path"),
        ("loader.shuffle", "os.system"), ("checkpoint.kind", "subprocess:run"), ("costs", "os:environ"),
        ("expect.au", ">= __import__('os').system('touch proof')"), ("train.compute", "__import__('os')"),
        ("name", "../../proof"),
    ],
)  # fmt: skip
def test_a_name_in_a_scenario_is_looked_up_and_never_imported(key: str, value: str, home: Path) -> None:
    Path("good.yaml").write_text(SMALL)
    with pytest.raises(RayioError):
        load("good.yaml", [f"{key}={value}"])
    assert not any(home.parent.parent.glob("proof*"))


def test_a_dataset_is_not_written_through_a_link_that_leads_out_of_its_folder(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("small.yaml").write_text(SMALL)
    assert command("generate", "small.yaml") == 0
    precious = home / "precious"
    precious.mkdir()
    (precious / "000000000.npz").write_bytes(b"mine")
    shutil.rmtree("data/000000")
    manifest = Path("data/rayio-dataset.json")
    manifest.write_text(manifest.read_text().replace("true", "false"))  # it broke off, and is to be resumed
    dead = f"000000001.npz+1+{os.uname().nodename}+{2**22 + 1}+0{PARTIAL}"
    (precious / dead).touch()
    (home / "data/000000").symlink_to(precious)
    capsys.readouterr()
    assert command("generate", "small.yaml") == 2
    assert "data/000000: is a link that leads out of " in capsys.readouterr().err.splitlines()[-1]
    assert {path.name for path in precious.iterdir()} == {"000000000.npz", dead}
    assert (precious / "000000000.npz").read_bytes() == b"mine"


def test_a_checkpoint_is_not_written_through_a_link(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text(SMALL + "checkpoint: {path: ck, model: {bytes: 10 kB}, every: {steps: 2}}\n")
    (home / "precious").mkdir()
    (home / "ck").mkdir()
    (home / "ck" / "epoch-0000-step-00000001").symlink_to(home / "precious")
    assert command("run", "small.yaml", "--engine", "local", "--out", "r") == 2
    assert "is a link out of the folder" in capsys.readouterr().err.splitlines()[-1]
    assert not [*(home / "precious").iterdir()]


def test_a_run_that_does_not_begin_removes_nothing_that_it_has_not_made(home: Path) -> None:
    Path("small.yaml").write_text(SMALL)
    (home / "kept").mkdir()
    (home / "kept" / "mine").touch()
    (home / "out").symlink_to(home / "kept")
    for out in ("kept", "out", ".", "kept/../kept"):
        assert command("run", "small.yaml", "--engine", "local", "--out", out) == 2
    assert (home / "kept" / "mine").exists()
    (home / "data").mkdir()
    (home / "data" / "theirs").touch()
    assert command("run", "small.yaml", "--engine", "local", "--out", "deep/r") == 2, "the dataset is no dataset"
    assert (home / "data" / "theirs").exists()
    assert not (home / "deep" / "r").exists()


def test_a_store_keeps_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "home" / "a").mkdir(parents=True)
    (tmp_path / "home" / "b").symlink_to("a")
    (tmp_path / "home" / "c").symlink_to("..")
    store = PosixStore(tmp_path / "home")
    assert [store.leads_out(name) for name in ("", "a", "b", "new/folder", "c", "c/home", "..", "a/../..")] == [
        False, False, False, False, True, False, True, True,
    ]  # fmt: skip
    (tmp_path / "x").touch()
    store.remove("c/x")
    with pytest.raises(RayioError, match="leads out"):
        store.write("c/y", lambda file: file.write(b""))
    assert {path.name for path in tmp_path.iterdir()} == {"home", "x"}


def planted(monkeypatch: pytest.MonkeyPatch, port: int) -> list[str]:
    """Put secrets into every place that one may be in, and give all that must not be found afterwards."""
    token, header, user = "c0ffee" * 10 + "beef", "planted-header-7f3a", "planted-password-91bc"
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": f"session-{SECRET}",
        "RAY_AUTH_TOKEN": token, "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={header}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:{user}@127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.1",
        "RAY_AUTH_MODE": "token", "RAY_CLIENT_MODE": "",  # Ray sets them as it is loaded
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return [KEY, SECRET, token, header, user]


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_secrets_of_the_environment_are_in_nothing_that_is_written_or_printed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        _hold_secrets(home, monkeypatch, capfd, planted(monkeypatch, mute.getsockname()[1]))


def _hold_secrets(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], secrets: list[str]
) -> None:
    (home / "w").mkdir()
    monkeypatch.chdir(home / "w")
    Path("small.yaml").write_text(SMALL)
    assert command("run", "small.yaml", "--engine", "local", "--out", "r", "--otlp") == 0
    for arguments in (
        ("report", "r"), ("explain", "r", "--no-simulate"), ("calibrate", "r", "--out", "l.yaml"),
        ("export", "r", "--otlp-json", "r.json"), ("export", "r", "--otlp"), ("export", "r", "--csv", "r.csv"),
        ("k8s", "small.yaml", "dataset.path=model://x", "--image", "i:1", "--secret", "keys"), ("show", "small.yaml"),
        ("doctor",), ("validate", "small.yaml", f"storage.endpoint=http://{KEY}:{SECRET}@h", "dataset.path=s3://b/x"),
        ("run", "small.yaml", "--engine", "local", "--root", f"s3://{KEY}:{SECRET}@b/x"),
        ("submit", "small.yaml", "--root", "/x", "--address", f"http://{KEY}:{SECRET}@127.0.0.1:9"),
    ):  # fmt: skip
        command(*arguments)
    out, err = capfd.readouterr()
    assert "were not exported to http://127.0.0.1:" in err, "it was tried to be sent"
    assert "collector: http://127.0.0.1:" in out
    for secret in secrets:
        assert secret not in out + err
        assert secret.encode() not in contents(home / "w")


def listening(process: psutil.Process) -> set[tuple[str, str]]:
    """Where a process and its children listen on the network: name of the process, address."""
    found = set()
    for one in (process, *process.children(recursive=True)):
        try:
            places = one.net_connections(kind="inet")
            found |= {(one.name(), p.laddr.ip) for p in places if p.status == psutil.CONN_LISTEN and p.laddr}
            found |= {(one.name(), p.laddr.ip) for p in places if p.type.name == "SOCK_DGRAM" and p.laddr}
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def test_a_run_in_this_process_listens_nowhere(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rayio", "run", "unet3d-small", "dataset.path=model://x", "train.epochs=4000",
         "checkpoint=none", "--engine", "local", "--out", "r"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while process.poll() is None and not Path("r/live.json").exists():
            time.sleep(0.05)
        assert process.poll() is None
        assert not listening(psutil.Process(process.pid))
    finally:
        process.kill()
        process.wait()


@pytest.mark.ray
def test_the_ray_of_a_run_listens_on_loopback_alone(local_ray: None) -> None:
    found = listening(psutil.Process())
    assert len({name for name, _ in found}) >= 3, "Ray's processes do talk"
    assert all(is_loopback(address) for _, address in found), found


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
