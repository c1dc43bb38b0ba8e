"""TLS: servers with certificates of an own authority, by HTTP and gRPC; every way in which it cannot be is one line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from collectors import Collector, Shown, grpc_, http, plain, stored
from exports import told, training
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from test_export_otlp import QUICK, both, requests

from rayio.errors import ExportError
from rayio.export.collectors.pauses import Patience
from rayio.export.collectors.sending import send_all
from rayio.export.collectors.settings import Settings
from rayio.export.collectors.transport import BROKEN_HINT, TLS_HINT, connect
from rayio.export.live_export import LiveExport

trustme: Any = pytest.importorskip("trustme")
grpc: Any = pytest.importorskip("grpc")


@dataclass(frozen=True)
class Papers:
    """An authority's files: of itself, of another authority, of a client that each has signed."""

    folder: Path
    authority: Any
    stranger: Any

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def shown(self, name: str = "127.0.0.1", *, to_known_clients: bool = False, **when: datetime) -> Shown:
        leaf = self.authority.issue_cert(name, **when)
        chain = b"".join(one.bytes() for one in leaf.cert_chain_pems)
        clients = self.authority.cert_pem.bytes() if to_known_clients else None
        return Shown(chain, leaf.private_key_pem.bytes(), clients)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    made = Papers(tmp_path_factory.mktemp("papers"), trustme.CA(), trustme.CA())
    made.authority.cert_pem.write_to_path(made.path("authority.pem"))
    made.stranger.cert_pem.write_to_path(made.path("stranger.pem"))
    for name, of in (("client", made.authority), ("strange-client", made.stranger)):
        leaf = of.issue_cert(f"{name}@example.org")
        leaf.cert_chain_pems[0].write_to_path(made.path(f"{name}.pem"))
        leaf.private_key_pem.write_to_path(made.path(f"{name}.key"))
        leaf.private_key_and_cert_chain_pem.write_to_path(made.path(f"{name}-both.pem"))
    (made.folder / "damaged.pem").write_bytes((made.folder / "authority.pem").read_bytes()[:200])
    (made.folder / "locked.key").write_bytes(locked_key())
    return made


def locked_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    form, pem = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"word"))


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def serve(protocol: str, shown: Shown | None) -> AbstractContextManager[Collector]:
    return (http if protocol == "otlp" else grpc_)(secure=shown)


def address(protocol: str, collector: Collector) -> str:
    """Give a URL that says https; gRPC's collectors give no scheme."""
    return collector.url if protocol == "otlp" else f"https://{collector.url}"


def say(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)


def arrived(collector: Collector, table: Any) -> bool:
    expected = [
        span for one in requests(table) for span in plain(ExportTraceServiceRequest.FromString(one.body))
    ]  # fmt: skip
    return sorted(span["span"] for span in collector.spans) == sorted(span["span"] for span in expected)


@both
@pytest.mark.parametrize("prefix", ["", "TRACES_"])
def test_every_span_arrives_at_a_server_of_an_own_authority(
    protocol: str, prefix: str, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = training()
    say(monkeypatch, CERTIFICATE=papers.path("stranger.pem"), HEADERS="api-key=s3cret")
    say(monkeypatch, **{f"{prefix}CERTIFICATE": papers.path("authority.pem")})
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", papers.path("stranger.pem"))  # the variable of the exporter is nearer
    with serve(protocol, papers.shown()) as collector:
        way = connect(address(protocol, collector), grpc=protocol == "grpc")
        sent = send_all(way, requests(table))
        way.close()
    assert (sent.is_whole, sent.why, sent.spans) == (True, "", len(table))
    assert arrived(collector, table)
    assert collector.headers[0]["api-key"] == "s3cret"


@both
@pytest.mark.parametrize("files", ["two", "one"])
def test_both_sides_show_what_they_are(
    protocol: str, files: str, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = training()
    say(monkeypatch, CERTIFICATE=papers.path("authority.pem"))
    if files == "two":
        say(monkeypatch, CLIENT_CERTIFICATE=papers.path("client.pem"), CLIENT_KEY=papers.path("client.key"))
    else:
        say(monkeypatch, CLIENT_CERTIFICATE=papers.path("client-both.pem"))
    with serve(protocol, papers.shown(to_known_clients=True)) as collector:
        way = connect(address(protocol, collector), grpc=protocol == "grpc")
        sent = send_all(way, requests(table))
        way.close()
    assert (sent.is_whole, sent.why) == (True, "")
    assert arrived(collector, table)


@pytest.mark.parametrize(
    ("variables", "is_secure"),
    [
        ({}, False),
        ({"INSECURE": "false", "CERTIFICATE": "authority.pem"}, True),
        ({"INSECURE": "True", "CERTIFICATE": "authority.pem"}, False),
        ({"CERTIFICATE": "authority.pem"}, True),
    ],
)
def test_a_grpc_address_without_a_scheme_is_plain_unless_the_variables_say_tls(
    variables: dict[str, str], is_secure: bool, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: papers.path(value) if name == "CERTIFICATE" else value for name, value in variables.items()}
    say(monkeypatch, **files)
    for shown in (None, papers.shown()):
        with serve("grpc", shown) as collector:
            way = connect(collector.url, grpc=True)
            sent = send_all(way, requests(training()), QUICK)
            way.close()
        assert sent.is_whole == (is_secure == (shown is not None)), (sent.why, variables)


def past() -> dict[str, datetime]:
    now = datetime.now(UTC)
    return {"not_before": now - timedelta(days=9), "not_after": now - timedelta(days=1)}


def future() -> dict[str, datetime]:
    now = datetime.now(UTC)
    return {"not_before": now + timedelta(days=1), "not_after": now + timedelta(days=9)}


SERVED: dict[str, dict[str, Any]] = {
    "good": {}, "expired": past(), "early": future(), "elsewhere": {"name": "example.org"},
    "choosy": {"to_known_clients": True},
}  # fmt: skip
OWN = {"CERTIFICATE": "authority.pem"}
STRANGE = {"CLIENT_CERTIFICATE": "strange-client.pem", "CLIENT_KEY": "strange-client.key"}
#: What is served (None: plain), whether the client speaks plain, its variables, and the reason in the message.
WRONG: dict[str, tuple[str | None, bool, dict[str, str], str]] = {
    "a stranger's authority": ("good", False, {"CERTIFICATE": "stranger.pem"}, "unable to get local issuer"),
    "no authority": ("good", False, {}, "unable to get local issuer"),
    "expired": ("expired", False, OWN, "certificate has expired"),
    "too early": ("early", False, OWN, "certificate is not yet valid"),
    "another host": ("elsewhere", False, OWN, "not valid for '127.0.0.1'|Hostname Verification Check failed"),
    "a plain server": (None, False, OWN, "(?i)wrong.version.number"),
    "a plain client": ("good", True, {}, BROKEN_HINT),
    # Whether the server's alert arrives before the connection breaks is a matter of time.
    "no client": ("choosy", False, OWN, f"certificate required|{BROKEN_HINT}"),
    "a strange client": ("choosy", False, OWN | STRANGE, f"unknown ca|{BROKEN_HINT}"),
}  # fmt: skip


@both
@pytest.mark.parametrize("wrong", WRONG)
def test_tls_that_cannot_work_is_one_line_with_a_hint_and_not_tried_again(
    protocol: str, wrong: str, papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(Patience, "pause", lambda *_: 0.001)
    served, is_plain, variables, expected = WRONG[wrong]
    say(monkeypatch, **{name: papers.path(value) for name, value in variables.items()})
    table = training()
    directory = stored(tmp_path / "run", table)
    shown = papers.shown(**SERVED[served]) if served else None
    with serve(protocol, shown) as collector:
        url = re.sub("^(https?://)?", "http://" if is_plain else "https://", collector.url)
        code, _, err = told(capsys, "export", tmp_path / "run", f"--{protocol}", url, "--select", "all")
        assert (code, err.count("\n")) == (2, 1)
        assert re.search(expected, err), err
        assert (TLS_HINT in err) == (BROKEN_HINT not in err), err
        assert f"{len(table)} of {len(table)} spans were not exported to" in err
        again = shlex.split(err.partition("the run still has all spans: ")[2])
        assert again == ["rayio", "export", str(tmp_path / "run"), f"--{protocol}", url, "--select", "all"]
        live = LiveExport(directory, "rayio-test", connect(url, grpc=protocol == "grpc"), QUICK)
        live.start()
        said = live.finish(len(table))
    assert re.search(expected, said)
    assert f"{len(table)} of {len(table)} spans were not exported to" in said
    # A connection that only broke may have done so for another reason.
    # Whether a server's alert about a client arrives before its connection breaks differs from try to try.
    assert live.sent.retries == (QUICK.tries - 1 if BROKEN_HINT in said else 0) or wrong in (
        "no client",
        "a strange client",
    )
    assert not collector.spans


def test_grpc_writes_nothing_to_standard_error_by_itself(
    papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "run", training())
    say(monkeypatch, CERTIFICATE=papers.path("stranger.pem"))
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    with grpc_(secure=papers.shown()) as collector:
        command = [sys.executable, "-m", "rayio", "export", str(tmp_path / "run"), "--grpc", f"https://{collector.url}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


PAIR = {"CLIENT_CERTIFICATE": "client.pem"}
FILES: list[tuple[dict[str, str], str]] = [
    ({"CERTIFICATE": "none.pem"}, "_CERTIFICATE={papers}/none.pem: cannot be read: No such file"),
    ({"TRACES_CERTIFICATE": "none.pem"}, "_TRACES_CERTIFICATE={papers}/none.pem: cannot be read"),
    ({"CERTIFICATE": "."}, "_CERTIFICATE={papers}/.: cannot be read: it is a folder, not a file"),
    ({"CERTIFICATE": "damaged.pem"}, "_CERTIFICATE={papers}/damaged.pem: the file has no certificate in PEM form"),
    ({"CERTIFICATE": "client.key"}, "_CERTIFICATE={papers}/client.key: the file has no certificate in PEM form"),
    ({"CLIENT_KEY": "client.key"}, "set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE too"),
    ({"TRACES_CLIENT_KEY": "client.key"}, "set OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE too"),
    (PAIR, "without _CLIENT_KEY, it must hold the key too"),
    (PAIR | {"CLIENT_KEY": "damaged.pem"}, "_CLIENT_KEY={papers}/damaged.pem: not a certificate and its key"),
    (PAIR | {"CLIENT_KEY": "none"}, "_CLIENT_KEY={papers}/none: cannot be read"),
    (PAIR | {"CLIENT_KEY": "strange-client.key"}, "does not match the certificate"),
    (PAIR | {"CLIENT_KEY": "locked.key"}, "_CLIENT_KEY={papers}/locked.key: the key has a password"),
]


@both
@pytest.mark.parametrize(("variables", "expected"), FILES)
def test_a_file_that_cannot_be_is_one_line_before_anything_is_sent(
    protocol: str, variables: dict[str, str], expected: str, papers: Papers, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    say(monkeypatch, **{name: f"{papers.folder}/{value}" for name, value in variables.items()})
    stored(tmp_path / "run", training())
    for command in (("export", tmp_path / "run"), ("run", "unet3d-small", "--engine", "local", "--root", tmp_path)):
        code, _, err = told(capsys, *command, f"--{protocol}", "https://127.0.0.1:9")
        assert (code, err.count("\n")) == (2, 1)
        assert "OTEL_EXPORTER_OTLP_" in err
        assert expected.format(papers=papers.folder) in err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a key=s3cret", "name"),
        ("key=s3cret%0Aother: x", "printable"),
        ("key=s3cret%C3%A9", "printable"),
        ("s3cret", "name=value"),
        ("=s3cret", "name=value"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_and_never_shown(value: str, why: str) -> None:
    with pytest.raises(ExportError, match=f"OTEL_EXPORTER_OTLP_TRACES_HEADERS.*{why}") as error:
        Settings.of({"OTEL_EXPORTER_OTLP_TRACES_HEADERS": value, "OTEL_EXPORTER_OTLP_HEADERS": "good=1"})
    assert "s3cret" not in str(error.value)


def test_credentials_of_other_programs_do_not_take_the_place_of_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    say(monkeypatch, HEADERS="Authorization=Bearer%20mine")
    with http() as collector:
        way = connect(collector.url, grpc=False)
        assert send_all(way, requests(training())).is_whole
        way.close()
    assert collector.headers[0]["authorization"] == "Bearer mine"
