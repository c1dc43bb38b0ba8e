"""The scenario of a recorded run."""

from __future__ import annotations

import yaml

from rayio.errors import RayioError, ScenarioError
from rayio.scenario.costs import with_removed_counted
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.source import UNREADABLE, plain
from rayio.trace.run_directory import RunDirectory


def scenario_of(directory: RunDirectory) -> Scenario:
    """Return the scenario of a run.

    Raises:
        ScenarioError: the run has none, or one that this version cannot read.
    """
    text = directory.scenario
    if text is None:
        broke_off = directory.result is None and directory.info.get("engine") != "opentelemetry"
        why = "the run broke off before it began" if broke_off else "there is no run to explain by it"
        raise ScenarioError(f"{directory.address} has no scenario.yaml: {why}")
    try:
        content = plain(text)
    except (yaml.YAMLError, *UNREADABLE):
        raise ScenarioError(f"{directory.address}/scenario.yaml is not YAML: the file is damaged") from None
    if not isinstance(content, dict):
        raise ScenarioError(f"{directory.address}/scenario.yaml is not a scenario: the file is damaged")
    try:
        return build(with_removed_counted(content), f"{directory.address}/scenario.yaml")
    except RayioError as error:
        raise ScenarioError(f"{error}; another version of rayio wrote it, or it is damaged") from None
