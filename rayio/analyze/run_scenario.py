"""The scenario of a recorded run."""

from __future__ import annotations

from hashlib import sha256

import yaml

from rayio.errors import RayioError, ScenarioError
from rayio.scenario.costs import with_removed_counted
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.source import UNREADABLE, plain
from rayio.trace.run_directory import RunDirectory

#: The key of run.json with the digest of scenario.yaml, as the run wrote it.
DIGEST = "scenario_digest"


def digest_of(text: str) -> str:
    """Return the digest of a scenario's text."""
    return sha256(text.encode()).hexdigest()[:16]


def is_edited(directory: RunDirectory) -> bool:
    """Return True if scenario.yaml is not the one that the run wrote."""
    text, written = directory.scenario, directory.info.get(DIGEST)
    return text is not None and written is not None and written != digest_of(text)


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
