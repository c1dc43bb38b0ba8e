"""Pauses before a request is sent again: by our own limits, or as the collector requests."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True)
class Patience:
    """Limits of retries: tries of a request, and the pauses between them."""

    tries: int = 5
    first_seconds: float = 0.5
    longest_seconds: float = 30.0

    def pause(self, tried: int, requested: float | None) -> float:
        """Return the seconds before the next try: as requested by the collector, else doubled, ± 20 %."""
        if requested is not None:
            return min(requested, self.longest_seconds)
        return min(self.first_seconds * 2.0 ** (tried - 1), self.longest_seconds) * random.uniform(0.8, 1.2)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After``: a number or a date (RFC 9110, 10.2.3); None if it is neither.

    A date is relative to the answer's ``Date``, because the machines' clocks may differ.
    """
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        return float(value)
    until = _date(value)
    if until is None:
        return None
    since = _date(headers.get("Date", "")) or datetime.now(UTC)
    return max(0.0, (until - since).total_seconds())


def _date(text: str) -> datetime | None:
    """Return a date of HTTP, in any of its three forms."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date


def retry_info(trailers: Iterable[tuple[str, str | bytes]]) -> float | None:
    """Return the seconds that a gRPC server requests (``RetryInfo`` in its details); None without."""
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
