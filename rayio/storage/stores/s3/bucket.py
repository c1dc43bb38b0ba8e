"""Where a bucket is and who asks: the address taken apart, and what reaches it. Credentials stay in this process."""

from __future__ import annotations

import configparser
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast
from urllib.parse import quote, urlsplit

from rayio.errors import StorageError

#: Seconds to connect; a store that answers at all does so at once.
CONNECT_SECONDS = 5
#: What a signed link has in its query.
_SIGNATURE = re.compile(r"\?.*(x-amz-|awsaccesskeyid|signature|token)[^&]*=", re.IGNORECASE)
#: The region that S3 itself takes where nobody names one.
REGION = "us-east-1"
#: Variables that say where the service is, the first that does counts.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
#: What tells the SDKs that credentials come from elsewhere than keys: a role of a pod, of a task.
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class Options(Protocol):
    """How a service is reached, as ``rayio.scenario.s3.S3Options`` says it."""

    @property
    def endpoint(self) -> str | None:
        """Where the service is; None is what the environment says, or Amazon's own."""

    @property
    def region(self) -> str | None:
        """Region of the buckets; None is what the environment says."""

    @property
    def addressing_style(self) -> Literal["auto", "path", "virtual"]:
        """Whether a bucket is named in the path or in the host; auto is the host at Amazon and the path elsewhere."""

    @property
    def anonymous(self) -> bool:
        """Whether requests go without a signature, to public buckets."""

    @property
    def max_attempts(self) -> int:
        """Attempts that one request may take in all."""

    @property
    def timeout(self) -> float:
        """Seconds without a byte of an answer after which an attempt has failed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket, a prefix in it, and the service that holds it."""

    bucket: str
    prefix: str
    #: None is Amazon's own.
    endpoint: str | None
    region: str
    is_virtual: bool
    is_anonymous: bool
    timeout: float
    #: What no message shows.
    keys: dict[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, address: str, options: Options) -> Place:
        """Take an address apart; what ``options`` leave open, the standard variables say.

        Raises:
            StorageError: there is no bucket in it, or something that does not belong there.
        """
        bucket, prefix = split(address)
        said = os.environ.get
        named = {"storage.endpoint": options.endpoint} | {name: said(name) for name in _ENDPOINTS}
        source, endpoint = next(((name, value) for name, value in named.items() if value), ("", None))
        style = options.addressing_style
        anonymous = options.anonymous
        profile = {} if anonymous or said("AWS_ACCESS_KEY_ID") or any(map(said, _ROLES)) else _profile()
        region = options.region or said("AWS_REGION") or said("AWS_DEFAULT_REGION") or profile.pop("region", None)
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
        """The key of a file."""
        return "/".join(part for part in (self.prefix, name.strip("/")) if part)

    def url(self, key: str) -> str:
        """Where an object is without a signature."""
        parts = urlsplit(self.endpoint or f"https://s3.{self.region}.amazonaws.com")
        if self.is_virtual:
            return f"{parts.scheme}://{self.bucket}.{parts.netloc}{parts.path}/{quote(key)}"
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{self.bucket}/{quote(key)}"

    def client(self) -> Any:
        """Make what talks to the service. It never tries again by itself.

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
            "timeout": "7d",  # of a whole answer: what counts is whether it goes on (read_timeout)
        }
        never = {"max_retries": 0}
        try:
            return cast(Any, S3Store)(self.bucket, config=config, client_options=options, retry_config=never)
        except Exception as error:  # one key without the other, or a variable of AWS's that cannot be read
            if "Missing" in str(error):
                raise StorageError(f"s3://{self.bucket}: {self.without_credentials}") from None
            raise StorageError(
                f"s3://{self.bucket}: the variables AWS_... say something that cannot be used; correct or unset them"
            ) from None

    @property
    def without_credentials(self) -> str:
        """What to say where there are none."""
        return (
            f"there are no credentials for {self.service}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(or AWS_PROFILE) on every node, or storage.anonymous=true for a public bucket"
        )


def split(address: str) -> tuple[str, str]:
    """The bucket and the prefix of an address.

    Raises:
        StorageError: there is no bucket in it, or something that does not belong there.
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
    """Refuse an endpoint that is none; ``source`` is the key or the variable that says it."""
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_good, parts = False, urlsplit("")
    if "@" in endpoint:  # a password may hold anything, so that where the host begins cannot be told
        raise StorageError(
            f"{source} has a user or a password in it; credentials belong into variables of their own "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if "?" in endpoint or "#" in endpoint:  # what follows may be a token
        raise StorageError(f"{source} has a query in it; write http://host:port or https://host")
    if not is_good:
        raise StorageError(f"{source}={endpoint!r} is no address of a service; write http://host:port or https://host")
    return endpoint.rstrip("/")


def _profile() -> dict[str, str]:
    """Keys and region of the shared credentials file, of the profile that is asked for."""
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    home = Path("~/.aws").expanduser()
    found: dict[str, str] = {}
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
            found |= dict(parser.items(section))
    names = {
        "aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token", "region": "region",
    }  # fmt: skip
    return {ours: found[theirs] for theirs, ours in names.items() if found.get(theirs)}
