"""The place of a bucket and its client, from an address and the environment. Credentials stay in this process."""

from __future__ import annotations

import configparser
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast
from urllib.parse import quote, urlsplit

from rayio.errors import StorageError

#: Seconds to connect.
CONNECT_SECONDS = 5
#: A whole request may take so many seconds beyond twice the timeout, and its bytes at this rate (bytes per second).
SLOWEST_SECONDS, SLOWEST = 30, 64 << 10
#: The query of a signed link.
_SIGNATURE = re.compile(r"\?.*(x-amz-|awsaccesskeyid|signature|token)[^&]*=", re.IGNORECASE)
#: The default region of S3.
REGION = "us-east-1"
#: Variables with the service's address; the first one set is used.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
#: Variables by which SDKs get credentials from the role of a pod or a task.
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class Options(Protocol):
    """Settings of a service; see ``rayio.scenario.s3.S3Options``."""

    @property
    def endpoint(self) -> str | None:
        """Address of the service; None means the environment's, or Amazon's."""

    @property
    def region(self) -> str | None:
        """Region of the buckets; None means the environment's."""

    @property
    def addressing_style(self) -> Literal["auto", "path", "virtual"]:
        """The place of a bucket's name: the path or the host; auto is the host at Amazon, else the path."""

    @property
    def anonymous(self) -> bool:
        """True for requests without a signature, to public buckets."""

    @property
    def max_attempts(self) -> int:
        """Attempts of one request in all."""

    @property
    def timeout(self) -> float:
        """Seconds without a byte of an answer after which an attempt has failed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket, a prefix in it, and its service."""

    bucket: str
    prefix: str
    #: None is Amazon's.
    endpoint: str | None
    region: str
    is_virtual: bool
    is_anonymous: bool
    timeout: float
    #: Secrets, never in messages.
    keys: dict[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, address: str, options: Options) -> Place:
        """Return the place of an address; standard variables complete ``options``.

        Raises:
            StorageError: the address has no bucket, or invalid parts.
        """
        bucket, prefix = split(address)
        variable = os.environ.get
        named = {"storage.endpoint": options.endpoint} | {name: variable(name) for name in _ENDPOINTS}
        source, endpoint = next(((name, value) for name, value in named.items() if value), ("", None))
        style = options.addressing_style
        anonymous = options.anonymous
        profile = {} if anonymous or variable("AWS_ACCESS_KEY_ID") or any(map(variable, _ROLES)) else _profile()
        region = (
            options.region or variable("AWS_REGION") or variable("AWS_DEFAULT_REGION") or profile.pop("region", None)
        )
        profile.pop("region", None)
        return cls(
            bucket=bucket,
            prefix=prefix,
            endpoint=_checked(endpoint, source),
            region=region or REGION,
            is_virtual=style == "virtual" or (style == "auto" and endpoint is None),
            is_anonymous=anonymous,
            timeout=options.timeout,
            keys=profile,
        )

    @property
    def service(self) -> str:
        """The service, for messages."""
        return self.endpoint or f"Amazon S3 in {self.region}"

    def key(self, name: str) -> str:
        """Return the key of a file."""
        name = name.strip("/")
        return f"{self.prefix}/{name}" if self.prefix and name else self.prefix or name

    def url(self, key: str) -> str:
        """Return the address of an object, without a signature."""
        parts = urlsplit(self.endpoint or f"https://s3.{self.region}.amazonaws.com")
        if self.is_virtual:
            return f"{parts.scheme}://{self.bucket}.{parts.netloc}{parts.path}/{quote(key)}"
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{self.bucket}/{quote(key)}"

    def longest(self, nbytes: int) -> float:
        """Return the seconds that a request for ``nbytes`` may take in all."""
        return 2 * self.timeout + SLOWEST_SECONDS + nbytes / SLOWEST

    @property
    def port(self) -> int:
        """The port of the service."""
        parts = urlsplit(self.endpoint or "https://s3")
        return parts.port or (80 if parts.scheme == "http" else 443)

    def client(self, nbytes: int = 0) -> Any:
        """Return a client of the service, without its own retries, for requests and answers of up to ``nbytes``.

        Raises:
            StorageError: the library is missing.
        """
        try:
            from obstore.store import S3Store
        except ImportError:
            raise StorageError(f"s3://{self.bucket} needs obstore; install it with: pip install 'rayio[s3]'") from None
        config: dict[str, Any] = {"region": self.region, "virtual_hosted_style_request": self.is_virtual, **self.keys}
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            host = f"{self.bucket}.{parts.netloc}" if self.is_virtual else parts.netloc
            config["endpoint"] = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        if self.is_anonymous:
            config["skip_signature"] = True
        options: dict[str, Any] = {
            "allow_http": (self.endpoint or "").startswith("http://"),
            "connect_timeout": f"{CONNECT_SECONDS}s",
            "read_timeout": f"{round(self.timeout * 1000)}ms",
            # for a whole answer; read_timeout limits the time between bytes
            "timeout": f"{round(1000 * self.longest(nbytes))}ms",
        }
        never = {"max_retries": 0}
        try:
            return cast(Any, S3Store)(self.bucket, config=config, client_options=options, retry_config=never)
        except Exception as error:  # one key without the other, or an invalid variable of AWS
            if "Missing" in str(error):
                raise StorageError(f"s3://{self.bucket}: {self.without_credentials}") from None
            raise StorageError(
                f"s3://{self.bucket}: the variables AWS_... have invalid values; correct or unset them"
            ) from None

    @property
    def without_credentials(self) -> str:
        """The message about missing credentials."""
        return (
            f"there are no credentials for {self.service}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(or AWS_PROFILE) on every node, or storage.anonymous=true for a public bucket"
        )


def split(address: str) -> tuple[str, str]:
    """Return the bucket and the prefix of an address.

    Raises:
        StorageError: the address has no bucket, or invalid parts.
    """
    bucket, _, prefix = address.partition("://")[2].partition("/")
    if "@" in address or ":" in bucket:
        raise StorageError(
            "an s3:// address has a bucket after its slashes and no credentials, which belong into the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); write s3://bucket/prefix"
        )
    if _SIGNATURE.search(address):
        raise StorageError(
            "an s3:// address has a signature or a token in it, which would be stored with the run; credentials belong "
            "into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); write s3://bucket/prefix"
        )
    if not bucket:
        raise StorageError(f"{address}: there is no bucket in it; write s3://bucket/prefix")
    if any(part in (".", "..") for part in prefix.split("/")):
        raise StorageError(f"{address}: an s3:// address cannot have the parts . and ..; write it out")
    return bucket, prefix.strip("/")


def _checked(endpoint: str | None, source: str) -> str | None:
    """Return a valid endpoint; ``source`` is the key or the variable that sets it."""
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_good, parts = False, urlsplit("")
    if "@" in endpoint:  # a password may contain any character, so the host's start is unknown
        raise StorageError(
            f"{source} has a user or a password in it; credentials belong into the variables "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if "?" in endpoint or "#" in endpoint:  # the rest may be a token
        raise StorageError(f"{source} has a query in it; write http://host:port or https://host")
    if not is_good:
        raise StorageError(f"{source}={endpoint!r} is no address of a service; write http://host:port or https://host")
    return endpoint.rstrip("/")


def _profile() -> dict[str, str]:
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    home = Path("~/.aws").expanduser()
    entries: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", home / "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", home / "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.environ.get(variable) or file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            raise StorageError(f"{os.environ.get(variable) or file} cannot be read as a file of AWS profiles") from None
        if parser.has_section(section):
            entries |= dict(parser.items(section))
    names = {
        "aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token", "region": "region",
    }  # fmt: skip
    return {ours: entries[theirs] for theirs, ours in names.items() if entries.get(theirs)}
