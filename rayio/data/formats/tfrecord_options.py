"""Options of TFRecord."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayio.data.layout import Layout
from rayio.schema.fields import Section, choice


class TfRecordOptions(Section):
    """Options of TFRecord."""

    compression: Annotated[str, choice("none", "gzip")] = Field(
        "none", description="Compression of whole files; gzip allows no access to single records."
    )


def is_zipped(layout: Layout) -> bool:
    """Return True if files are gzip streams."""
    return isinstance(layout.options, TfRecordOptions) and layout.options.compression == "gzip"
