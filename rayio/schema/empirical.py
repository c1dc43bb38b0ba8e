"""Measured values as a distribution, and the table that represents many of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rayio import seeds
from rayio.schema import measured_values
from rayio.schema.distribution import Distribution, Floats, Index
from rayio.schema.fields import Reads, RefusedError, Text, refusal, whole
from rayio.units import Dimension

#: Up to this many values are kept; of more, the quantiles at :func:`levels`.
MOST_KEPT = 512
#: Equal parts of a table, and points in each halving of its first and last part, where the extremes are.
PARTS, IN_A_HALVING = 256, 4


def levels(number: int) -> Floats:
    """Return the levels of the quantiles that represent ``number`` values: even ones, and closer ones at both ends.

    >>> levels(100_000)[[0, 1, -1]].tolist(), len(levels(100_000)), len(levels(measured_values.MOST_VALUES))
    ([0.0, 5e-06, 1.0], 327, 353)
    """
    halvings = np.log2(number / PARTS)
    ends = np.append(2.0 ** -np.arange(0, halvings, 1 / IN_A_HALVING) / PARTS, 0.5 / number)
    inner = np.arange(1, PARTS) / PARTS
    return np.unique(np.concatenate([[0.0], ends, inner, 1 - ends, [1.0]]))


def table(values: Floats) -> Floats:
    """Return sorted values, or their quantiles at :func:`levels` with 7 digits where there are more than are kept.

    The n-th of N values is the quantile at (n - 0.5) / N (Hazen), so that the largest is drawn as often as any other.
    """
    kept = np.sort(values) if len(values) <= MOST_KEPT else np.quantile(values, levels(len(values)), method="hazen")
    return np.array([float(f"{value:.7g}") for value in kept.tolist()])


def _values(value: Any) -> tuple[float, ...]:
    numbers = value.split(",") if isinstance(value, str) else value
    if not isinstance(numbers, (list, tuple)) or not 0 < len(numbers) <= MOST_KEPT:
        raise RefusedError(f"must be a list of 1 to {MOST_KEPT} values; give more as a file")
    return tuple(sorted(float(number) for number in numbers))


def _written(values: tuple[float, ...] | None) -> str | None:
    return None if values is None else ", ".join(map(repr, values))


_VALUES_SCHEMA = {
    "anyOf": [
        {"type": "array", "minItems": 1, "maxItems": MOST_KEPT},
        {"type": "string", "pattern": r"^[\d.eE+\-, µA-Za-z]+$"},
    ]
}


class Empirical(Distribution):
    """Measured values, each as likely: those of a ``file``, or a list of ``values``.

    A file has a value with its unit on each line, a ``column`` (CSV), or a list (JSON). Up to 512 values are drawn as
    they are. Of more, at most 353 quantiles are kept and draws lie between them.
    """

    kind: Literal["empirical"] = "empirical"
    file: Text | None = Field(
        None, description="File of measured values; relative to the scenario file. At most 10^6 values and 32 MiB."
    )
    column: Text | None = Field(None, description="The column of a CSV file, or the key of objects in JSON.")
    values: Annotated[tuple[float, ...], Reads(_values, _VALUES_SCHEMA, _written)] | None = Field(
        None, description="The values themselves, or the quantiles of a file's, ascending."
    )
    measured: Annotated[int, whole(1, measured_values.MOST_VALUES)] | None = Field(
        None, description="How many values the quantiles represent; set when a file is read."
    )
    origin: Text | None = Field(None, description="Name of the file that was read.")

    @model_validator(mode="after")
    def _has_values(self) -> Self:
        if (self.file is None) == (self.values is None):
            raise refusal(RefusedError("must have file or values, and not both"))
        number = len(self.values or ())
        if self.measured is not None and number != self.measured <= MOST_KEPT:
            raise refusal(RefusedError(f"values has {number} values", "measured", self.measured))
        if self.measured is not None and self.measured > MOST_KEPT and number != (due := len(levels(self.measured))):
            reason = f"values has {number} values, and {due} quantiles represent so many"
            raise refusal(RefusedError(reason, "measured", self.measured))
        return self

    @classmethod
    def read(cls, value: Mapping[str, Any], dimension: Dimension) -> Self:
        """Return the distribution of a mapping; its file is read, and only the table of its values is kept."""
        given = {key: each for key, each in value.items() if each is not None}
        listed = given.get("values")
        if listed is not None:
            written = listed.split(",") if isinstance(listed, str) else listed
            if isinstance(written, (list, tuple)) and len(written) <= MOST_KEPT:
                given["values"] = tuple(_parsed(each, dimension) for each in written)
        elif isinstance(file := given.get("file"), str) and isinstance(column := given.get("column", ""), str):
            numbers = measured_values.read(file, column, dimension)
            given = {key: each for key, each in given.items() if key not in ("file", "column")}
            given |= {"values": tuple(table(numbers)), "measured": len(numbers), "origin": file}
        return cls.model_validate(given)

    def written(self, dimension: Dimension) -> dict[str, Any]:
        """Return the mapping that :meth:`read` reads, with its values in the base unit."""
        return self.model_dump(mode="json", exclude_none=True)

    def times(self, factor: float) -> Self:
        """Return the distribution of ``factor`` times the values."""
        return self.model_copy(update={"values": tuple(value * factor for value in self.values or ())})

    @property
    def levels(self) -> Floats | None:
        """The levels of the quantiles; None where the values themselves are kept."""
        return levels(self.measured) if self.measured is not None and self.measured > MOST_KEPT else None

    def draw(self, address_key: int, index: Index) -> Floats:
        """Draw by inversion for each index."""
        values, known, chance = np.array(self.values), self.levels, seeds.uniform(address_key, index)
        drawn: Floats
        if known is None:
            drawn = values[(chance * len(values)).astype(np.int64)]
            return drawn
        drawn = np.interp(chance, known, values)
        return drawn

    @property
    def expected(self) -> float:
        """The mean of the values, or of all that lies between the quantiles."""
        values, known = np.array(self.values), self.levels
        if known is None:
            return float(values.mean())
        return float(np.sum(np.diff(known) * (values[1:] + values[:-1]) / 2))


def _parsed(written: Any, dimension: Dimension) -> float:
    try:
        return dimension.bounded(written.strip() if isinstance(written, str) else written)
    except ValueError as error:
        raise RefusedError(str(error), "values", written) from None
