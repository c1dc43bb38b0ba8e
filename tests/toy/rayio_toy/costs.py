"""What a loader of this package takes beside reading and decoding."""

from __future__ import annotations

from rayio.scenario.costs import Costs, NamedCosts

SLOW = NamedCosts(Costs(put=0.03, take=0.001), "counted on an abacus", "1 abacus, 10 rods", "2026-01-31")
