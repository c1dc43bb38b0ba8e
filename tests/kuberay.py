"""What KubeRay's operator refuses of a RayJob in its code, beyond the schema of its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

#: What ``ray start`` takes of a group's resources, and what its field of that name replaces.
STARTED = {"num-cpus", "num-gpus", "memory", "resources"}
V2 = "RAY_enable_autoscaler_v2"
#: Environment variables and parameters that the operator sets itself.
ITS_OWN = {"RAY_REDIS_ADDRESS", "REDIS_USERNAME"}

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def refusals(job: dict[str, Any]) -> Iterator[str]:
    """A line for each rule that a RayJob breaks."""
    spec, metadata = job["spec"], job["metadata"]
    name = metadata.get("name", metadata.get("generateName", "") + "x" * 5)
    if len(name) > 47 or not _DNS_1035.fullmatch(name):
        yield f"name {name}"
    shuts_down, ttl = spec.get("shutdownAfterJobFinishes", False), spec.get("ttlSecondsAfterFinished", 0)
    if ttl < 0 or (ttl and not shuts_down):
        yield "ttlSecondsAfterFinished without shutdownAfterJobFinishes, or negative"
    if spec.get("suspend") and not shuts_down:
        yield "suspend without shutdownAfterJobFinishes"
    if "deletionStrategy" in spec:
        yield "deletionStrategy needs a feature gate"
    if "rayClusterSpec" not in spec:
        yield "no rayClusterSpec"
        return
    for key in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(key, 1) <= 0:
            yield f"{key} must be positive"
    if spec.get("backoffLimit", 0) < 0:
        yield "backoffLimit must not be negative"
    try:
        environment = yaml.safe_load(spec.get("runtimeEnvYAML", "{}"))
    except yaml.YAMLError:
        environment = None
    if not isinstance(environment, dict):
        yield "runtimeEnvYAML is no YAML of a mapping"
    head_pod = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    if spec.get("submissionMode") == "SidecarMode":
        if {"submitterPodTemplate", "submitterConfig"} & spec.keys():
            yield "SidecarMode has no submitter"
        if head_pod.get("restartPolicy", "Never") != "Never":
            yield "SidecarMode: the head's restartPolicy must be Never"
    yield from of_cluster(spec["rayClusterSpec"])


def of_cluster(spec: dict[str, Any]) -> Iterator[str]:
    """A line for each rule that the cluster of a RayJob breaks."""
    head, groups = spec["headGroupSpec"], spec.get("workerGroupSpecs", [])
    scales, options = spec.get("enableInTreeAutoscaling", False), spec.get("autoscalerOptions", {})
    for group in (head, *groups):
        started = group.get("rayStartParams", {})
        if not group["template"]["spec"].get("containers"):
            yield "a group without containers"
            return
        if group.get("resources") and STARTED & started.keys():
            yield "resources both in the group and in rayStartParams"
        if "labels" in started:
            yield "labels in rayStartParams"
    environment = {
        entry["name"]: entry.get("value") for entry in head["template"]["spec"]["containers"][0].get("env", [])
    }
    if ITS_OWN & environment.keys() or "redis-username" in head.get("rayStartParams", {}):
        yield "Redis without gcsFaultToleranceOptions"
    if not scales and environment.get(V2) in ("1", "true"):
        yield f"{V2} without enableInTreeAutoscaling"
    if scales and "version" in options and V2 in environment:
        yield f"{V2} and autoscalerOptions.version"
    is_v2 = scales and options.get("version") == "v2"
    for group in groups:
        fewest, most = group.get("minReplicas"), group.get("maxReplicas")
        if not scales and (fewest is None or most is None):
            yield "minReplicas and maxReplicas must both be set"
        if (fewest or 0) < 0 or (most is not None and (fewest or 0) > most):
            yield "minReplicas must be from 0 to maxReplicas"
        if "idleTimeoutSeconds" in group and (not is_v2 or group["idleTimeoutSeconds"] < 0):
            yield "idleTimeoutSeconds of a group needs autoscaler v2"
        if group.get("suspend"):
            yield "suspend of a group needs a feature gate"
    for group in (head, *groups) if is_v2 else ():
        if group["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield "autoscaler v2: restartPolicy must be Never or unset"
    if options.get("idleTimeoutSeconds", 0) < 0:
        yield "idleTimeoutSeconds must not be negative"
    if spec.get("authOptions", {}).get("mode") == "token":
        version = re.match(r"(\d+)\.(\d+)", str(spec.get("rayVersion", "")))
        if version is None or (int(version[1]), int(version[2])) < (2, 52):
            yield "authOptions.mode token needs rayVersion 2.52 or newer"
    if spec.get("authOptions", {}).get("enableK8sTokenAuth"):
        yield "a RayJob has no enableK8sTokenAuth"
    if {"networkPolicy", "tlsOptions", "historyServerOptions"} & spec.keys():
        yield "networkPolicy, tlsOptions and historyServerOptions need feature gates"
