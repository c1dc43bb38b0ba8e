"""The layers that a scenario asks for, the innermost first; each is made by its kind in ``LAYERS``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rayio.kinds import KEYLESS_LAYERS, LAYERS
from rayio.scenario.model import Scenario


def layers_of(scenario: Scenario, *, modelled: bool) -> tuple[Any, ...]:
    """Return the layers (``rayio.storage.layers.layer.Layer``) of a scenario on modelled or real storage.

    Raises:
        ScenarioError: one of another package failed; the line names the package.
    """
    given, layers = dict(scenario.storage.layers), []
    for name in dict.fromkeys([*LAYERS.built_in, *given]):
        if name not in given and name not in KEYLESS_LAYERS:
            continue
        with LAYERS.answerable(name):
            layers.append(LAYERS[name].of(scenario, given.get(name), modelled=modelled))
    return tuple(layer for layer in layers if layer is not None)


def without_layers(scenario: Scenario, *, but: Collection[str] = ()) -> Scenario:
    """Return the scenario without layers of storage; those of some names stay."""
    gone = (name for name, _ in scenario.storage.layers if name not in but)
    return scenario.model_copy(update={"storage": scenario.storage.without(*gone)})
