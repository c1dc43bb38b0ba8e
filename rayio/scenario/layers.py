"""The layers that a scenario asks for, the innermost first; each is made by its kind in ``LAYERS``."""

from __future__ import annotations

from typing import Any

from rayio.kinds import LAYERS
from rayio.scenario.model import Scenario


def layers_of(scenario: Scenario, *, modelled: bool) -> tuple[Any, ...]:
    """Return the layers (``rayio.storage.layers.layer.Layer``) of a scenario on modelled or real storage.

    Raises:
        ScenarioError: one of another package failed; the line names the package.
    """
    given, layers = dict(scenario.storage.layers), []
    for name in dict.fromkeys([*LAYERS.built_in, *given]):
        with LAYERS.answerable(name):
            layers.append(LAYERS[name].of(scenario, given.get(name), modelled=modelled))
    return tuple(layer for layer in layers if layer is not None)
