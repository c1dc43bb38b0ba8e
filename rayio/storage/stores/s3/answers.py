"""Errors of an S3 store: user messages, and whether a repeated request may succeed.

The client's text is never shown: a store's answer may contain keys and signatures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rayio.errors import MissingError, RayioError, StorageError
from rayio.storage.stores.retrying import given_up
from rayio.storage.stores.s3.bounds import MOST_BYTES, EndlessError
from rayio.storage.stores.s3.bucket import Place
from rayio.units import format_bytes

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\(code: (\w{1,64})\)")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,32})</Region>|expecting '([a-z0-9-]{1,32})'")

_WRONG_REGION = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_WHO = {
    "InvalidAccessKeyId": "the access key is not known there",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "ExpiredToken": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
}

#: Network errors: the client's words, the most specific first, and rayio's.
_WIRE = (
    ("TooManyRedirects", "redirects go round in a circle"),
    ("ConnectionRefused", "the connection was refused"),
    ("dns error", "the host is not known"),
    ("InvalidCertificate", "its certificate is not trusted"),
    ("invalid peer certificate", "its certificate is not trusted"),
    ("UnexpectedRange", "the answer is not the range that was asked for"),
    ("IncompleteBody", "the answer broke off"),
    ("IncompleteMessage", "the connection broke"),
    ("ConnectionReset", "the connection broke"),
    ("BrokenPipe", "the connection broke"),
    ("TimedOut", "no answer in time"),
    ("kind: Timeout", "no answer in time"),
    ("kind: Connect", "there is no connection"),
    ("kind: Interrupted", "the answer broke off"),
    ("kind: Request", "the connection broke"),
    ("kind: Body", "the answer broke off"),
    ("error sending request", "the connection broke"),
    ("response body error", "the answer broke off"),
)
#: Those that stay on repetition; everything else that is no refusal of the store may pass.
_LASTING = ("redirects go round in a circle", "its certificate is not trusted")
#: Those that mean a wrong address as long as the store has never answered.
WRONG_ADDRESS = ("the connection was refused", "the host is not known")
ENDLESS = f"an answer without an end (over {format_bytes(MOST_BYTES)} more than asked for, or too slow)"
#: Errors of single objects, which have no status, that may pass.
_PASSING = ("InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "OperationAborted")


@dataclass(frozen=True, slots=True)
class Problem:
    """The failure of one request."""

    #: HTTP status; 0 without an answer.
    status: int
    #: The store's error code, or the network error.
    code: str
    is_passing: bool
    #: The region that the store named.
    region: str = ""
    #: True if credentials could not be loaded.
    is_without_credentials: bool = False

    @property
    def what(self) -> str:
        """The problem in a few words."""
        return f"{self.status} {self.code}".strip() if self.status else self.code

    @property
    def is_redirect(self) -> bool:
        """True if the store redirects to a known address."""
        return self.status in (307, 308)


def problem_of(error: BaseException) -> Problem:
    """Return the problem behind a client's error."""
    if isinstance(error, EndlessError):
        return Problem(0, ENDLESS, is_passing=False)
    text = str(error)
    head = text.partition("Debug source:")[0]
    status, code = _STATUS.search(head), _CODE.search(head)
    number, name = int(status[1]) if status else 0, (code[1] or code[2]) if code else ""
    if "169.254.169.254" in head or "/latest/api/token" in head or "Credential" in head:
        return Problem(0, "there are no credentials", is_passing=False, is_without_credentials=True)
    if "redirect without LOCATION" in head:
        return Problem(301, "PermanentRedirect", is_passing=False)
    if number:
        region = _REGION.search(head)
        named = "" if region is None else region[1] or region[2]
        return Problem(number, name, number in (408, 429) or number >= 500, named)
    if isinstance(error, FileNotFoundError):
        return Problem(404, name, is_passing=False)
    if name:
        return Problem(403 if name == "AccessDenied" else 0, name, name in _PASSING)
    for words, ours in _WIRE:
        if words in text:
            return Problem(0, ours, ours not in _LASTING)
    return Problem(0, "an answer that cannot be read", is_passing=True)


def error_of(problem: Problem, place: Place, full: str, doing: str, tries: str) -> RayioError:
    """Return the error of a request on one line: the object, the problem, the activity and the remedy."""
    code = problem.code
    if problem.is_without_credentials:
        return StorageError(f"{full}: {place.without_credentials}")
    if code == "NoSuchBucket":
        return StorageError(
            f"{full}: there is no bucket {place.bucket!r} at {place.service}; create it, or correct the address"
        )
    if code in _WRONG_REGION:
        right = f": it says {problem.region}" if problem.region else ""
        return StorageError(
            f"{full}: the bucket is not in region {place.region}{right}; set storage.region, or AWS_REGION, to its own"
        )
    if problem.status == 404:
        return MissingError(f"{full}: the object is missing")
    if problem.status in (401, 403):
        why = _WHO.get(code, "these credentials may not do that" if not place.is_anonymous else "not without a key")
        return StorageError(
            f"{full}: no permission for {doing} ({problem.what}): {why}; check the credentials and the bucket's policy"
        )
    if problem.is_redirect or code == "redirects go round in a circle":
        return StorageError(f"{full}: redirects of {place.service} go round in a circle; check storage.endpoint")
    if not problem.status and code in (*WRONG_ADDRESS, "its certificate is not trusted"):
        return StorageError(
            f"{full}: cannot reach {place.service} while {doing}: {code}{tries}; is it running, and is "
            "storage.endpoint (or AWS_ENDPOINT_URL) right?"
        )
    return given_up(full, problem.what, place.service, doing, tries, is_busy=problem.status in (429, 503))
