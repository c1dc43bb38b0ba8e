"""How long to wait before a request is sent again: by our own patience, and by what the collector asks for."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True)
class Patience:
    """How often a request is sent, and how long the pauses between are."""

    tries: int = 5
    first_seconds: float = 0.5
    longest_seconds: float = 30.0

    def pause(self, tried: int, asked: float | None) -> float:
        """The seconds before the next try: what the collector asks for, else twice the last, give or take 20 %."""
        if asked is not None:
            return min(asked, self.longest_seconds)
        return min(self.first_seconds * 2.0 ** (tried - 1), self.longest_seconds) * random.uniform(0.8, 1.2)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read ``Retry-After``: seconds, or a date (RFC 9110, 10.2.3); None where it says neither.

    A date counts from the answer's own ``Date`` where there is one: the clocks of two machines may differ.
    """
    said = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", said):
        return float(said)
    until = _date(said)
    if until is None:
        return None
    since = _date(headers.get("Date", "")) or datetime.now(UTC)
    return max(0.0, (until - since).total_seconds())


def _date(text: str) -> datetime | None:
    """Read a date of HTTP in any of its three forms, all of them in UTC."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def retry_info(trailers: Iterable[tuple[str, str | bytes]]) -> float | None:
    """The pause that a gRPC server asks for (``RetryInfo`` among its details); None where it asks for none."""
    try:
        from google.protobuf.message import DecodeError
        from google.rpc.error_details_pb2 import RetryInfo
        from google.rpc.status_pb2 import Status
    except ImportError:
        return None
    for key, value in trailers:
        if key != "grpc-status-details-bin":
            continue
        info = RetryInfo()
        try:
            if any(detail.Unpack(info) for detail in Status.FromString(value).details):
                seconds: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
                return max(0.0, seconds)
        except DecodeError:
            return None
    return None
