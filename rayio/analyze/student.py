"""Student's t: the deviation of a mean of few values by chance."""

from __future__ import annotations

#: Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z = 1.959964


def t_quantile(freedom: float) -> float:
    """Return Student's t within which 95 % of the mass lies, two-sided; fractional degrees of freedom round down.

    Above 30 by the expansion of Cornish and Fisher (Abramowitz and Stegun, 26.7.5).
    """
    if freedom < len(_T) + 1:
        return _T[max(int(freedom), 1) - 1]
    z = _Z
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
