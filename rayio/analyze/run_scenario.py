"""The scenario of a recorded run."""

from __future__ import annotations

from hashlib import sha256

import yaml

from rayio.errors import RayioError, ScenarioError, StorageError
from rayio.scenario.costs import with_removed_counted
from rayio.scenario.load import build
from rayio.scenario.model import Scenario
from rayio.scenario.source import UNREADABLE, plain
from rayio.trace.run_directory import RunDirectory

#: The keys of run.json with the scenario as it ran, and in older runs with the digest of its text.
RAN, DIGEST = "scenario", "scenario_digest"
#: A note on a run whose scenario.yaml was edited, where the keys that ran are known.
UNEDITED = "scenario.yaml was edited after the run; the edits are ignored, because run.json has the keys that ran"


def text_of(directory: RunDirectory) -> str | None:
    """Return the scenario of a run as YAML, as it ran: that of run.json, else that of scenario.yaml; None for none."""
    ran: str | None = directory.info.get(RAN)
    return directory.scenario if ran is None else ran


def is_edited(directory: RunDirectory) -> bool:
    """Return True if scenario.yaml is not as the run wrote it."""
    info = directory.info
    ran, digest = info.get(RAN), info.get(DIGEST)
    try:
        text = directory.scenario
    except StorageError:  # no text at all
        text = ""
    if text is None or (ran is None and digest is None):
        return False
    return text != ran if ran is not None else sha256(text.encode()).hexdigest()[:16] != digest


def has_edited_keys(directory: RunDirectory) -> bool:
    """Return True if scenario.yaml was edited, and the keys that ran are unknown."""
    return directory.info.get(RAN) is None and is_edited(directory)


def scenario_of(directory: RunDirectory) -> Scenario:
    """Return the scenario of a run.

    Raises:
        ScenarioError: the run has none, or one that this version cannot read.
    """
    text = text_of(directory)
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
