"""``loader.shuffle: zipf``: hot files. Samples are drawn with replacement, of some files more often than of others.

PyTorch's ``WeightedRandomSampler(replacement=True)`` draws like this, with a weight for each file. File k (from 1) has
the weight ``k ** -zipf_exponent``, so the first file is the most popular. Samples of a file are equally likely.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio import seeds
from rayio.data.shuffle import Sizes
from rayio.scenario import derive
from rayio.scenario.kind import Kind
from rayio.schema.fields import Reads, RefusedError, Section

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: Most files: each has an entry in a table.
MAX_FILES = 1 << 22
MAX_EXPONENT = 10.0


def _exponent(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_EXPONENT:
        raise RefusedError(f"must be a number from 0 to {MAX_EXPONENT:g}")
    return float(value)


class ZipfOptions(Section):
    """Options of ``shuffle: zipf``."""

    zipf_exponent: Annotated[float, Reads(_exponent, {"type": "number", "minimum": 0, "maximum": MAX_EXPONENT})] = (
        Field(1.0, description="Exponent of Zipf's law: file k is drawn with a probability of k^-exponent; 0 is even.")
    )


class ZipfDraws(Kind):
    """Draws with replacement: an epoch has as many as there are samples; some come several times, others never."""

    options = ZipfOptions
    #: True if an epoch may have a sample several times.
    repeats: ClassVar[bool] = True

    def __call__(self, num_samples: int, key: int, positions: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
        """Return independent draws, one for each position."""
        exponent = sizes.options.zipf_exponent if isinstance(sizes.options, ZipfOptions) else 1.0
        shares = _shares(num_samples // sizes.file, exponent)
        files = np.searchsorted(shares, seeds.uniform(seeds.key(key, "file"), positions), side="right")
        within = seeds.uniform(seeds.key(key, "sample"), positions) * sizes.file
        samples: NDArray[np.int64] = np.minimum(files, len(shares) - 1) * sizes.file + within.astype(np.int64)
        return samples

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse more files than the table of probabilities can have."""
        if (files := derive.num_files(scenario)) > MAX_FILES:
            yield f"not yet: loader.shuffle=zipf with {files} files; at most {MAX_FILES} are possible"

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """State that an epoch is no pass over the dataset."""
        yield (
            "loader.shuffle=zipf: samples are drawn with replacement, so an epoch has some several times and others "
            "never; the ledger counts draws"
        )


@lru_cache(maxsize=4)
def _shares(files: int, exponent: float) -> NDArray[np.float64]:
    """Return the probability of a file or one before it."""
    sums = np.cumsum(np.arange(1, files + 1, dtype=np.float64) ** -exponent)
    shares: NDArray[np.float64] = sums / sums[-1]
    return shares
