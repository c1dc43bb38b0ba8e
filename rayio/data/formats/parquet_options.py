"""Options of Parquet, and the sizes that follow from them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from rayio.data.formats.parquet_file import CODECS, MAX_RATIO, Shape, part_bytes
from rayio.data.formats.sample import HEADER
from rayio.schema.fields import Positive, Reads, RefusedError, Section, choice, refusal, whole

#: Bytes of samples in a row group whose size is not given; writers of training data make them of 64 to 512 MiB.
GROUP_BYTES = 64 << 20

_RATIO_SCHEMA = {
    "anyOf": [{"type": "number", "exclusiveMinimum": 1, "maximum": MAX_RATIO}, {"const": "none"}, {"type": "null"}]
}


def _ratio(value: Any) -> float | None:
    if value is None or value == "none":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 < value <= MAX_RATIO:
        raise RefusedError(f"must be a number greater than 1 and at most {MAX_RATIO:g}")
    return float(value)


class ParquetOptions(Section):
    """Options of Parquet."""

    row_group: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Samples of a row group, the smallest unit that can be read; none is about 64 MiB of them."
    )
    columns: Positive = Field(1, description="Columns into which the bytes of a sample are cut.")
    read_columns: Annotated[int | None, whole(1, or_none=True)] = Field(
        None, description="Columns read and delivered, counted from the first; none is all."
    )
    compression: Annotated[str, choice(*CODECS, later=("brotli",))] = Field(
        "none", description="Codec of the columns; samples are generated so that they compress."
    )
    compression_ratio: Annotated[float | None, Reads(_ratio, _RATIO_SCHEMA)] = Field(
        None, description="Uncompressed size divided by the size in the file, of a compressed column; by default 2."
    )

    #: Options that change only how files are read, not their bytes.
    reading: ClassVar[frozenset[str]] = frozenset({"read_columns"})

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.read_columns is not None and self.read_columns > self.columns:
            raise refusal(RefusedError(f"at most dataset.columns={self.columns}", "read_columns", self.read_columns))
        if self.compression == "none" and self.compression_ratio is not None:
            raise refusal(
                RefusedError("nothing is compressed (dataset.compression)", "compression_ratio", self.compression_ratio)
            )
        return self

    def group_rows(self, num_rows: int, sample_bytes: float) -> int:
        """Return the samples of a row group of a file with ``num_rows`` samples of about ``sample_bytes``."""
        return min(self.row_group or max(1, int(GROUP_BYTES / max(sample_bytes, HEADER.size))), num_rows)

    def shape(self, num_rows: int, sample_bytes: float) -> Shape:
        """Return the shape of a file with ``num_rows`` samples of about ``sample_bytes``."""
        group_rows = self.group_rows(num_rows, sample_bytes)
        return Shape(num_rows, group_rows, self.columns, self.compression, self.compression_ratio or 2.0)

    def read_bytes(self, sample_bytes: Any) -> Any:
        """Return the bytes read and delivered of samples of these sizes."""
        if self.read_columns is None:
            return sample_bytes
        return HEADER.size + part_bytes(sample_bytes - HEADER.size, self.read_columns, self.columns)


def chosen(options: Section) -> ParquetOptions:
    """Return a dataset's options of Parquet, or the defaults."""
    return options if isinstance(options, ParquetOptions) else ParquetOptions()
