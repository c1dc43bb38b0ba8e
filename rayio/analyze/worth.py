"""The least effect of a change that is worth proposing."""

from __future__ import annotations

#: The least AU that a proposed change adds, and the least share of the time that it saves.
LEAST_AU, LEAST_TIME = 0.01, 0.02


def is_worth_proposing(au: float | None, changed: float | None) -> bool:
    """Return True if a change from one AU to another is large enough to propose it.

    The time of a step is its compute divided by AU, so AU gives the time that is saved.

    >>> is_worth_proposing(0.764, 0.772), is_worth_proposing(0.764, 0.81), is_worth_proposing(0.006, 0.012)
    (False, True, False)
    """
    if au is None or changed is None or changed <= 0:
        return False
    return changed - au >= LEAST_AU and 1 - au / changed >= LEAST_TIME
