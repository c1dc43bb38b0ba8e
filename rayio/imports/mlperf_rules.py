"""AU that MLPerf Storage requires in training, by workload."""

from __future__ import annotations

from rayio.scenario.model import Scenario

MLPERF = "mlperf"
#: AU required where it is not 0.9, by a part of the workload's name (v1.0: cosmoflow, v3.0: retinanet).
FLOORS = {"cosmoflow": 0.7, "retinanet": 0.85}
DEFAULT_TARGET = 0.9


def floor_of(scenario: Scenario, rules: str | None = MLPERF) -> float:
    """Return the AU that the rules require, 0 to 1; without rules the usual target."""
    if rules != MLPERF:
        return DEFAULT_TARGET
    return next((floor for name, floor in FLOORS.items() if name in scenario.name.lower()), DEFAULT_TARGET)


def record_bytes(scenario: Scenario) -> int:
    """Return the bytes of a sample as DLIO configures them: of a normal size the mean before redrawing."""
    size = scenario.dataset.sample_bytes
    mean: float | None = getattr(size, "mean", None)  # a lognormal may have a median, a gamma a shape
    return max(int(size.expected if mean is None else mean), 1)
