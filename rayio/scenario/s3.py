"""The scheme ``s3://`` and its keys; credentials are never keys."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from rayio.schema.fields import Flag, Reads, RefusedError, Section, choice, quantity, whole
from rayio.storage.stores.opening import GAP_BYTES, PARTS, Settings, Store
from rayio.units import SECONDS


def _endpoint(value: Any) -> str | None:
    if value is None or value == "none":
        return None
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^/\s@?#]+[^\s@?#]*", value):
        raise RefusedError("must be http or https, a host, perhaps a port, and no credentials")
    return value.rstrip("/")


def _region(value: Any) -> str | None:
    if value is None or value == "none":
        return None
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9-]+", value):
        raise RefusedError("must be the name of a region, such as eu-west-1")
    return value


_TEXT = {"type": ["string", "null"]}


class S3Options(Section):
    """Keys of ``storage`` for buckets."""

    endpoint: Annotated[str | None, Reads(_endpoint, _TEXT)] = Field(
        None, description="Address of the service that has the buckets; none is AWS_ENDPOINT_URL, or Amazon S3."
    )
    region: Annotated[str | None, Reads(_region, _TEXT)] = Field(
        None, description="Region of the buckets; none is AWS_REGION, or us-east-1."
    )
    addressing_style: Annotated[Literal["auto", "path", "virtual"], choice("auto", "path", "virtual")] = Field(
        "auto", description="Whether the path or the host of a request names the bucket; auto is the host at Amazon."
    )
    anonymous: Flag = Field(False, description="Whether requests go without credentials, to public buckets.")
    max_attempts: Annotated[int, whole(1, 1000)] = Field(
        8, description="Attempts that a request may take in all; 1 never tries again."
    )
    timeout: Annotated[float, quantity(SECONDS, positive=True, maximum=86400.0)] = Field(
        30.0, description="Time without a byte of an answer after which an attempt has failed."
    )


class S3Scheme:
    """Buckets of Amazon S3, or of any service with its protocol."""

    options = S3Options
    gap = GAP_BYTES
    upload_parts = PARTS

    def check(self, address: str) -> None:
        """Refuse an invalid address, without any request.

        Raises:
            StorageError: it has no bucket, or holds credentials.
        """
        from rayio.storage.stores.s3.bucket import split

        split(address)

    def __call__(self, address: str, options: S3Options, settings: Settings) -> Store:
        """Return the store of an address."""
        from rayio.storage.stores.s3.store import S3Store

        return S3Store(address, options, settings.seed)


S3 = S3Scheme()
