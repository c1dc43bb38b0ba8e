"""The way to a collector: OTLP over HTTP or gRPC; what may be sent again is, and every span is counted."""

from __future__ import annotations

import gzip
import random
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from rayio.errors import ExportError
from rayio.export.settings import Settings, endpoint, shown

if TYPE_CHECKING:
    from rayio.export.otlp import Request

#: Statuses of HTTP after which the same request may be sent again.
RETRYABLE = frozenset({429, 502, 503, 504})
#: Codes of gRPC likewise, by OTLP's table.
RETRYABLE_CODES = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)

#: Requests under way together.
CONNECTIONS = 4


class Taken(NamedTuple):
    """What a collector said of a request that it took."""

    rejected: int = 0
    why: str = ""


class RefusedError(Exception):
    """A request that was not taken; in words, and whether it may be sent again, after how many seconds."""

    def __init__(self, why: str, *, again: bool = False, after: float | None = None) -> None:
        super().__init__(why)
        self.again = again
        self.after = after


class Sender(Protocol):
    """One way to send one request."""

    target: str
    #: The option that sends there, for ``rayio export``.
    option: str

    def send(self, body: bytes) -> Taken:
        """Send a request once.

        Raises:
            RefusedError: it was not taken.
        """

    def close(self) -> None:
        """Let go of connections."""


@dataclass(frozen=True)
class Patience:
    """How often a request is sent, and how long the pauses between are."""

    tries: int = 5
    first_seconds: float = 0.5
    longest_seconds: float = 30.0

    def pause(self, tried: int, asked: float | None) -> float:
        """Give the seconds before the next try: what the collector asks for, else twice the last, give or take 20 %."""
        if asked is not None:
            return min(asked, self.longest_seconds)
        return min(self.first_seconds * 2.0 ** (tried - 1), self.longest_seconds) * random.uniform(0.8, 1.2)


@dataclass
class Sent:
    """What became of spans; ``spans`` are the run's, ``made`` the roots that came on top."""

    spans: int = 0
    made: int = 0
    #: Refused by a collector that took the rest of the request.
    rejected: int = 0
    #: Not taken, or never sent after a request that was not.
    unsent: int = 0
    why: str = ""
    requests: int = 0
    retries: int = 0

    @property
    def is_whole(self) -> bool:
        """Say whether everything was taken."""
        return not self.rejected and not self.unsent

    def told(self, target: str) -> str:
        """Say in one line what was not taken, and why."""
        total = self.spans + self.rejected + self.unsent
        parts = [f"{self.rejected} rejected"] if self.rejected else []
        parts += [f"{self.unsent} not taken"] if self.unsent else []
        why = f" ({self.why})" if self.why else ""
        return f"{total - self.spans} of {total} spans were not exported to {target}: {', '.join(parts)}{why}"


class Http:
    """OTLP over HTTP with protobuf bodies."""

    def __init__(self, url: str, settings: Settings) -> None:
        import requests

        self.target = shown(url)
        self.option = f"--otlp {self.target}"
        self._url = url
        self._settings = settings
        self._session = requests.Session()
        self._session.headers.update(settings.headers | {"Content-Type": "application/x-protobuf"})
        if settings.is_compressed:
            self._session.headers["Content-Encoding"] = "gzip"
        self._session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
        self._session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=CONNECTIONS))
        if settings.certificate:
            self._session.verify = settings.certificate
        if settings.client_certificate:
            key = settings.client_key
            self._session.cert = (settings.client_certificate, key) if key else settings.client_certificate

    def send(self, body: bytes) -> Taken:
        """Post a request once."""
        import requests

        data = gzip.compress(body, 1, mtime=0) if self._settings.is_compressed else body
        try:
            answer = self._session.post(
                self._url, data=data, timeout=self._settings.seconds, allow_redirects=False
            )  # fmt: skip
        except requests.exceptions.Timeout:
            raise RefusedError(f"no answer within {self._settings.seconds:g} s", again=True) from None
        except requests.exceptions.SSLError as error:
            raise RefusedError(f"TLS: {_cause(error)}") from None
        except requests.exceptions.ConnectionError as error:
            raise RefusedError(_cause(error), again=True) from None
        except (requests.exceptions.RequestException, OSError, ssl.SSLError) as error:
            raise RefusedError(_cause(error)) from None
        if answer.status_code // 100 == 2:
            return _taken(answer.content)
        said = (
            " ".join(answer.text[:200].split()) if "text" in answer.headers.get("Content-Type", "") else answer.reason
        )
        raise RefusedError(
            f"HTTP {answer.status_code} {said or ''}".strip(),
            again=answer.status_code in RETRYABLE,
            after=_seconds(answer.headers.get("Retry-After")),
        )

    def close(self) -> None:
        """Let go of connections."""
        self._session.close()


class Grpc:
    """OTLP over gRPC."""

    def __init__(self, url: str, settings: Settings) -> None:
        try:
            import grpc
        except ImportError:
            raise ExportError('--grpc needs grpcio: pip install "rayio[grpc]", or send by --otlp') from None
        self._grpc = grpc
        parts = urlsplit(url if "://" in url else f"//{url}")
        self.target = parts.netloc.rpartition("@")[2]
        if parts.port is None:
            self.target += ":4317"
        self.option = f"--grpc {f'{parts.scheme}://' if parts.scheme else ''}{self.target}"
        is_secure = settings.is_insecure is False or (settings.is_insecure is None and settings.certificate is not None)
        plain = parts.scheme == "http" or (parts.scheme == "" and not is_secure)
        compression = grpc.Compression.Gzip if settings.is_compressed else grpc.Compression.NoCompression
        if plain:
            self._channel = grpc.insecure_channel(self.target, compression=compression)
        else:
            files = (settings.certificate, settings.client_key, settings.client_certificate)
            credentials = grpc.ssl_channel_credentials(*(Path(path).read_bytes() if path else None for path in files))
            self._channel = grpc.secure_channel(self.target, credentials, compression=compression)
        self._settings = settings
        self._metadata = tuple(settings.headers.items())
        self._call = self._channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")

    def send(self, body: bytes) -> Taken:
        """Call once."""
        try:
            return _taken(self._call(body, timeout=self._settings.seconds, metadata=self._metadata))
        except self._grpc.RpcError as error:
            code = error.code().name
            details = " ".join((error.details() or "").split())[:200]
            raise RefusedError(
                f"gRPC {code}{f': {details}' if details else ''}", again=code in RETRYABLE_CODES, after=_asked(error)
            ) from None

    def close(self) -> None:
        """Let go of connections."""
        self._channel.close()


def connect(url: str, *, grpc: bool) -> Sender:
    """Give the way to a collector; "" for the one that the standard variables name.

    Raises:
        ExportError: no address, a variable that cannot be, or a package that is missing.
    """
    settings = Settings.of()
    address = endpoint(url or None, grpc=grpc)
    return Grpc(address, settings) if grpc else Http(address, settings)


def _asked(error: Any) -> float | None:
    """Give the pause that a gRPC server asks for (``RetryInfo``), where its class is installed."""
    try:
        from google.rpc.error_details_pb2 import RetryInfo
        from google.rpc.status_pb2 import Status
    except ImportError:
        return None
    for key, value in error.trailing_metadata() or ():
        info = RetryInfo()
        if key == "google.rpc.retryinfo-bin":
            info.ParseFromString(value)
        elif key == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                detail.Unpack(info)
        else:
            continue
        return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return None


def _taken(answer: bytes) -> Taken:
    """Read what was left out of a request that was taken."""
    from google.protobuf.message import DecodeError

    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:  # an answer in other words, after a status that says "taken"
        return Taken()
    return Taken(partial.rejected_spans, " ".join(partial.error_message.split()))


def _seconds(retry_after: str | None) -> float | None:
    """Read ``Retry-After``: seconds; a date is not followed."""
    try:
        return max(0.0, float(retry_after)) if retry_after is not None else None
    except ValueError:
        return None


def _cause(error: BaseException) -> str:
    """Give the innermost reason, in a few words."""
    while isinstance(inner := getattr(error, "reason", None) or (error.args and error.args[-1]), BaseException):
        error = inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).rpartition("Errno ")[2].partition("] ")[2] or str(error)
    return " ".join(text.rpartition(">: ")[2].split()).rstrip("')")[:200] or type(error).__name__


def deliver(sender: Sender, body: bytes, patience: Patience, stop: Event, tried: Callable[[], None]) -> Taken:
    """Send a request until it is taken, refused for good, or sent often enough.

    Raises:
        RefusedError: it was not taken; or ``stop`` was set while it waited.
    """
    tries = 0
    while True:
        try:
            return sender.send(body)
        except RefusedError as error:
            tries += 1
            if not error.again or tries >= patience.tries or stop.wait(patience.pause(tries, error.after)):
                raise
            tried()


def send_all(
    sender: Sender, requests: Iterable[Request], patience: Patience | None = None, stop: Event | None = None
) -> Sent:
    """Send requests, a few at a time. After one that was not taken no more are begun; all are counted."""
    patience, stop = patience or Patience(), stop or Event()
    sent = Sent()
    waiting: deque[tuple[Request, Future[Taken]]] = deque()

    def tried() -> None:
        sent.retries += 1

    def settle() -> None:
        request, future = waiting.popleft()
        try:
            taken = future.result()
        except RefusedError as error:
            stop.set()
            sent.unsent += request.spans
            sent.why = sent.why or str(error)
            return
        sent.requests += 1
        rejected = min(taken.rejected, request.spans + request.made)
        sent.rejected += rejected
        sent.why = sent.why or taken.why
        sent.spans += max(0, request.spans - rejected)
        sent.made += request.made

    with ThreadPoolExecutor(CONNECTIONS, "rayio-export") as pool:
        try:
            for request in requests:
                if stop.is_set():
                    sent.unsent += request.spans
                    continue
                waiting.append((request, pool.submit(deliver, sender, request.body, patience, stop, tried)))
                if len(waiting) > 2 * CONNECTIONS:
                    settle()
            while waiting:
                settle()
        except BaseException:  # whoever waits to try again shall not hold up an interrupt
            stop.set()
            raise
    return sent
