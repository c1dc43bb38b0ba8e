"""What a scenario says of how real storage is reached; credentials are never among it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from rayio.scenario.fields import Flag, Reads, RefusedError, Section, choice, quantity, whole
from rayio.storage.stores import Settings
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


class Reached(Section):
    """How real storage is reached, where that is more than a path."""

    endpoint: Annotated[str | None, Reads(_endpoint, _TEXT)] = Field(
        None, description="Address of the service that has s3:// buckets; none is AWS_ENDPOINT_URL, or Amazon S3."
    )
    region: Annotated[str | None, Reads(_region, _TEXT)] = Field(
        None, description="Region of the buckets; none is AWS_REGION, or us-east-1."
    )
    addressing_style: Annotated[Literal["auto", "path", "virtual"], choice("auto", "path", "virtual")] = Field(
        "auto", description="Whether the path or the host of a request names the bucket; auto is the host at Amazon."
    )
    anonymous: Flag = Field(False, description="Whether requests go without credentials, to public buckets.")
    max_attempts: Annotated[int, whole(1, 1000)] = Field(
        8, description="Attempts that a request to an object store may take in all; 1 never tries again."
    )
    timeout: Annotated[float, quantity(SECONDS, positive=True, maximum=86400.0)] = Field(
        30.0, description="Time without a byte of an answer after which an attempt has failed."
    )

    def settings(self, seed: int) -> Settings:
        """How real storage is reached; the jitter between attempts is drawn from ``seed``."""
        return Settings(
            self.endpoint, self.region, self.addressing_style, self.anonymous, self.max_attempts, self.timeout, seed
        )
