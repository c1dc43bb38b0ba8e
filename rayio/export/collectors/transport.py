"""OTLP over HTTP and over gRPC: one request sent once, and in one line why it was not taken."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from rayio.errors import ExportError
from rayio.export.collectors import tls
from rayio.export.collectors.pauses import retry_after, retry_info
from rayio.export.collectors.sending import CONNECTIONS, RefusedError, Sender, Taken
from rayio.export.collectors.settings import Settings, endpoint, shown

#: Statuses of HTTP after which the same request may be sent again.
RETRYABLE = frozenset({429, 502, 503, 504})
#: Codes of gRPC likewise, by OTLP's table; RESOURCE_EXHAUSTED only where the server says when (``RetryInfo``).
RETRYABLE_CODES = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})


class _Tls:
    """What is known of a connection when it fails: says once why, where TLS is why."""

    def __init__(self, url: str, port: int, settings: Settings, *, is_plain: bool) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or port
        self._settings, self._is_plain = settings, is_plain
        self._said: tls.Trouble | None = None
        self._is_known = False

    def why(self, error: BaseException | None = None) -> tls.Trouble | None:
        """Say why; without an error of TLS, by a handshake on a connection of its own."""
        if (
            error is not None
            and (of_tls := tls.failure(error))
            and (said := tls.diagnosis(of_tls, self._host, self._settings.files))
        ):
            return said
        if not self._is_known:
            self._said = tls.probe(
                self._host, self._port, self._settings.files, self._settings.seconds, is_plain=self._is_plain
            )
            self._is_known = True
        return self._said


class Http:
    """OTLP over HTTP with protobuf bodies."""

    def __init__(self, url: str, settings: Settings) -> None:
        import requests

        self.target = shown(url)
        self.option = "--otlp"
        self._url = url
        self._settings = settings
        is_plain = urlsplit(url).scheme == "http"
        self._tls = _Tls(url, 80 if is_plain else 443, settings, is_plain=is_plain)
        self._session = requests.Session()
        self._session.headers.update(settings.headers | {"Content-Type": "application/x-protobuf"})
        if settings.is_compressed:
            self._session.headers["Content-Encoding"] = "gzip"
        if "authorization" in settings.headers:  # else one in ~/.netrc or in the URL would take its place
            self._session.auth = lambda request: request
        self._session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
        self._session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
        if client := settings.files.client_certificate:
            key = settings.files.client_key
            self._session.cert = (client.value, key.value) if key else client.value

    def send(self, body: bytes) -> Taken:
        """Post a request once."""
        import requests

        data = gzip.compress(body, 1, mtime=0) if self._settings.is_compressed else body
        # Said with each request: said of the session, REQUESTS_CA_BUNDLE would come before it.
        authority = self._settings.files.certificate.value if self._settings.files.certificate else None
        try:
            answer = self._session.post(
                self._url, data=data, timeout=self._settings.seconds, allow_redirects=False, verify=authority
            )
        except requests.exceptions.Timeout:
            raise RefusedError(f"no answer within {self._settings.seconds:g} s", again=True) from None
        except requests.exceptions.ConnectionError as error:
            if (_is_broken(error) or tls.failure(error)) and (trouble := self._tls.why(error)):
                raise RefusedError(trouble.why, again=not trouble.is_sure) from None
            raise RefusedError(_cause(error), again=True) from None
        except requests.exceptions.ChunkedEncodingError:
            raise RefusedError("the connection broke off within the answer", again=True) from None
        except (requests.exceptions.RequestException, OSError) as error:
            raise RefusedError(_cause(error)) from None
        if answer.status_code // 100 == 2:
            return _taken(answer.content)
        raise RefusedError(
            f"HTTP {answer.status_code} {_reason(answer)}".strip(),
            again=answer.status_code in RETRYABLE,
            after=retry_after(answer.headers),
        )

    def close(self) -> None:
        """Let go of connections."""
        self._session.close()


class Grpc:
    """OTLP over gRPC."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._grpc = grpc = _grpc()
        parts = urlsplit(url if "://" in url else f"//{url}")
        self.target = parts.netloc.rpartition("@")[2]
        if parts.port is None:
            self.target += ":4317"
        has_files = settings.files.certificate is not None or settings.files.client_certificate is not None
        is_secure = settings.is_insecure is False or (settings.is_insecure is None and has_files)
        plain = parts.scheme == "http" or (parts.scheme == "" and not is_secure)
        self.option = "--grpc"
        self._tls = _Tls(f"//{self.target}", 4317, settings, is_plain=plain)
        compression = grpc.Compression.Gzip if settings.is_compressed else grpc.Compression.NoCompression
        if plain:
            self._channel = grpc.insecure_channel(self.target, compression=compression)
        else:
            client = settings.files.client_certificate
            # gRPC ends the whole process when it gets one of the two only.
            files = (settings.files.certificate, settings.files.client_key or client, client)
            credentials = grpc.ssl_channel_credentials(
                *(Path(file.value).read_bytes() if file else None for file in files)
            )
            self._channel = grpc.secure_channel(self.target, credentials, compression=compression)
        self._settings = settings
        self._metadata = tuple(
            (name, value.encode() if name.endswith("-bin") else value) for name, value in settings.headers.items()
        )
        self._call = self._channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")

    def send(self, body: bytes) -> Taken:
        """Call once."""
        try:
            return _taken(self._call(body, timeout=self._settings.seconds, metadata=self._metadata))
        except self._grpc.RpcError as error:
            code = error.code().name
            details = " ".join((error.details() or "").split())
            if code == "UNAVAILABLE" and _BROKEN.search(details) and (trouble := self._tls.why()):
                raise RefusedError(trouble.why, again=not trouble.is_sure) from None
            after = retry_info(error.trailing_metadata() or ())
            again = code in RETRYABLE_CODES or (code == "RESOURCE_EXHAUSTED" and after is not None)
            raise RefusedError(
                f"gRPC {code}{f': {details[:200]}' if details else ''}", again=again, after=after
            ) from None

    def close(self) -> None:
        """Let go of connections."""
        self._channel.close()


def _grpc() -> Any:
    """Load gRPC so that it writes nothing to standard error: what it has to say comes as an error."""
    said = os.environ.get("GRPC_VERBOSITY")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc
    except ImportError:
        raise ExportError('--grpc needs grpcio: pip install "rayio[grpc]", or send by --otlp') from None
    finally:
        if said is None:
            del os.environ["GRPC_VERBOSITY"]
    return grpc


#: How gRPC says that a connection broke off, or that its handshake did.
_BROKEN = re.compile("handshake|verification|socket closed|connection reset|broken pipe|\\beof\\b", re.IGNORECASE)


def _is_broken(error: BaseException) -> bool:
    """Say whether the other side hung up, or answered in another tongue, in place of an answer."""
    kinds = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, http.client.BadStatusLine)
    return any(isinstance(one, kinds) for one in tls.causes(error))


def connect(url: str, *, grpc: bool, longest_seconds: float | None = None) -> Sender:
    """Connect to a collector; "" means the one that the standard variables name.

    A request waits for its answer as long as the variables say, but no longer than ``longest_seconds``.

    Raises:
        ExportError: no address, a variable that cannot be, or a package that is missing.
    """
    settings = Settings.of()
    if longest_seconds is not None:
        settings = replace(settings, seconds=min(settings.seconds, longest_seconds))
    address = endpoint(url or None, grpc=grpc)
    sender: Sender = Grpc(address, settings) if grpc else Http(address, settings)
    if url:
        sender.option += f" {shlex.quote(shown(url))}"
    return sender


def _taken(answer: bytes) -> Taken:
    """Read what was left out of a request that was taken."""
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:  # an answer in other words, after a status that says "taken"
        return Taken()
    return Taken(partial.rejected_spans, " ".join(partial.error_message.split()))


def _reason(answer: Any) -> str:
    """What a server says of a request that it did not take: a text, or the message of a ``Status``."""
    kind, said = answer.headers.get("Content-Type", ""), ""
    if "protobuf" in kind:
        # Its message has the number and the type of this one's; its own class is in a package of gRPC's extra.
        with contextlib.suppress(DecodeError):
            said = ExportTracePartialSuccess.FromString(answer.content).error_message
    elif "text" in kind:
        said = answer.text
    return " ".join(said[:200].split()) or answer.reason or ""


def _cause(error: BaseException) -> str:
    """The innermost reason, in a few words."""
    while isinstance(inner := getattr(error, "reason", None) or (error.args and error.args[-1]), BaseException):
        error = inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).rpartition("Errno ")[2].partition("] ")[2] or str(error)
    return " ".join(text.rpartition(">: ")[2].split()).rstrip("')")[:200] or type(error).__name__
