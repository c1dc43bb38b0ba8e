"""OTLP over HTTP and gRPC: senders of one request, with the reason for a refusal in one line."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import shlex
import ssl
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
from rayio.export.collectors.pauses import retry_after, retry_info
from rayio.export.collectors.sending import CONNECTIONS, RefusedError, Sender, Taken
from rayio.export.collectors.settings import Settings, endpoint, shown

#: HTTP statuses after which the same request may be sent again.
RETRYABLE = frozenset({429, 502, 503, 504})
#: gRPC codes likewise, by OTLP's table; RESOURCE_EXHAUSTED only with the server's ``RetryInfo``.
RETRYABLE_CODES = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})


#: Hints after a TLS library's words, and after a connection that broke without an answer.
TLS_HINT = "; see OTEL_EXPORTER_OTLP_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
BROKEN_HINT = "; perhaps the address needs https://, or the server a client's certificate"


class Http:
    """A sender of OTLP over HTTP with protobuf bodies."""

    def __init__(self, url: str, settings: Settings) -> None:
        import requests

        self.target = shown(url)
        self.option = "--otlp"
        self._url = url
        self._settings = settings
        self._session = requests.Session()
        self._session.headers.update(settings.headers | {"Content-Type": "application/x-protobuf"})
        if settings.is_compressed:
            self._session.headers["Content-Encoding"] = "gzip"
        if "authorization" in settings.headers:  # else ~/.netrc or the URL would replace it
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
        # set for each request: REQUESTS_CA_BUNDLE would override the session's
        authority = self._settings.files.certificate.value if self._settings.files.certificate else None
        try:
            answer = self._session.post(
                self._url, data=data, timeout=self._settings.seconds, allow_redirects=False, verify=authority
            )
        except requests.exceptions.Timeout:
            raise RefusedError(f"no answer within {self._settings.seconds:g} s", again=True) from None
        except requests.exceptions.ConnectionError as error:
            raise _unconnected(error) from None
        except requests.exceptions.ChunkedEncodingError:
            raise RefusedError("the connection was closed during the answer", again=True) from None
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
    """A sender of OTLP over gRPC."""

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
        compression = grpc.Compression.Gzip if settings.is_compressed else grpc.Compression.NoCompression
        if plain:
            self._channel = grpc.insecure_channel(self.target, compression=compression)
        else:
            client = settings.files.client_certificate
            # gRPC aborts the process if it gets only one of the two
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
            details = " ".join((error.details() or "").split()).rpartition("last error: ")[2][:300]
            if code == "UNAVAILABLE" and _TLS.search(details):
                raise RefusedError(f"TLS: {details}{TLS_HINT}") from None
            if code == "UNAVAILABLE" and _BROKEN.search(details):
                details += BROKEN_HINT
            after = retry_info(error.trailing_metadata() or ())
            again = code in RETRYABLE_CODES or (code == "RESOURCE_EXHAUSTED" and after is not None)
            raise RefusedError(f"gRPC {code}{f': {details}' if details else ''}", again=again, after=after) from None

    def close(self) -> None:
        """Let go of connections."""
        self._channel.close()


def _grpc() -> Any:
    """Return the grpc module, loaded so that it writes nothing to standard error."""
    verbosity = os.environ.get("GRPC_VERBOSITY")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc
    except ImportError:
        raise ExportError('--grpc needs grpcio: pip install "rayio[grpc]", or use --otlp') from None
    finally:
        if verbosity is None:
            del os.environ["GRPC_VERBOSITY"]
    return grpc


#: Words in gRPC's details for TLS that cannot work, and for a broken connection.
_TLS = re.compile("SSL_ERROR_SSL|verification check", re.IGNORECASE)
_BROKEN = re.compile("socket closed|connection reset|broken pipe|handshake|\\beof\\b", re.IGNORECASE)


def _unconnected(error: BaseException) -> RefusedError:
    """Return the refusal for a connection that failed; TLS that cannot work is not tried again."""
    chain, why = [error], _cause(error)
    for link in chain:
        inner = (getattr(link, "reason", None), link.__cause__, link.__context__, *link.args)
        chain += [other for other in inner if isinstance(other, BaseException) and other not in chain]
    closed = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    if any(isinstance(cause, ssl.SSLError) and not isinstance(cause, closed) for cause in chain):
        return RefusedError(f"TLS: {why}{TLS_HINT}")
    kinds = (*closed, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, http.client.BadStatusLine)
    if any(isinstance(cause, kinds) for cause in chain):
        why += BROKEN_HINT
    return RefusedError(why, again=True)


def connect(url: str, *, grpc: bool, longest_seconds: float | None = None) -> Sender:
    """Return a sender to a collector; an empty ``url`` means that of the standard variables.

    A request times out as set by the variables, but after at most ``longest_seconds``.

    Raises:
        ExportError: no address, an invalid variable, or a missing package.
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
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:  # accepted by its status, with an answer of another form
        return Taken()
    return Taken(partial.rejected_spans, " ".join(partial.error_message.split()))


def _reason(answer: Any) -> str:
    """Return a server's reason for a refusal: a text, or the message of a ``Status``."""
    kind, reason = answer.headers.get("Content-Type", ""), ""
    if "protobuf" in kind:
        # a Status has its message in the same field; its class is in gRPC's extra
        with contextlib.suppress(DecodeError):
            reason = ExportTracePartialSuccess.FromString(answer.content).error_message
    elif "text" in kind:
        reason = answer.text
    return " ".join(reason[:200].split()) or answer.reason or ""


def _cause(error: BaseException) -> str:
    while isinstance(inner := getattr(error, "reason", None) or (error.args and error.args[-1]), BaseException):
        error = inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).rpartition("Errno ")[2].partition("] ")[2] or str(error)
    return " ".join(text.rpartition(">: ")[2].split()).rstrip("')")[:200] or type(error).__name__
