"""Kubernetes manifests of a run: a RayJob, and a ConfigMap with the scenario unless the image has it."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from rayio.engines.ray.placement import READERS, TIER
from rayio.errors import ClusterError
from rayio.remote.k8s.sizes import Pod, Pods
from rayio.scenario.reader_pool import ReaderPool
from rayio.storage.address import is_path

#: Folders in the pods: of the scenario, and the base of relative paths.
SCENARIO_FOLDER, DATA = "/scenario", "/data"
#: The longest name of a RayJob, which the operator extends.
MAX_NAME = 47
USER = 1000
#: Seconds until all pods must run, and that the cluster stays after the run for inspection.
START_SECONDS, STAY_SECONDS = 900, 600
#: The largest number of seconds in a field of KubeRay.
MAX_SECONDS = 2**31 - 1

LABELS = {"app.kubernetes.io/name": "rayio", "app.kubernetes.io/part-of": "rayio"}
#: Labels of pods. Their app.kubernetes.io/name is set by the operator, whose services find the head by it.
_POD_LABELS = {"app.kubernetes.io/part-of": "rayio"}
_ROLE = "app.kubernetes.io/component"
#: Roles of pods that are emulated nodes.
_NODES = ("worker", "reader-node")
#: Restrictions of every container. Ray writes to /tmp and to the home, which are volumes.
_CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_UNPRIVILEGED = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_AUTOSCALED = {
    "enableInTreeAutoscaling": True,
    "autoscalerOptions": {
        "version": "v2",
        "idleTimeoutSeconds": 60,
        "upscalingMode": "Default",
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi"},
            "limits": {"cpu": "500m", "memory": "512Mi"},
        },
        "securityContext": _CONFINED,
    },
}


@dataclass(frozen=True, slots=True)
class Job:
    """A run on Kubernetes."""

    name: str
    #: The resolved scenario as YAML; None if the image has it.
    scenario: str | None
    #: Arguments of ``rayio run``: scenario and overrides.
    arguments: tuple[str, ...]
    image: str
    ray_version: str
    pods: Pods
    #: Nodes that are added for readers and removed with them; None without a pool.
    reader_pool: ReaderPool | None
    #: True if all pods need the folder of ``root``, not only the driver.
    has_files: bool
    #: Base folder or address of relative paths.
    root: str
    #: Claim of the volume at ``/data``; None for a volume that ends with its pod.
    claim: str | None
    #: Secret whose entries become environment variables, such as the keys of a bucket.
    secret: str | None
    #: Service account of all pods; None for the namespace's default.
    service_account: str | None
    deadline_seconds: int
    #: Run directory in which each try goes on; None for a run that is tried once.
    resumed: str | None = None
    retries: int = 0
    warnings: tuple[str, ...] = ()


def name_of(text: str) -> str:
    """Return a valid name of a RayJob, made of any text.

    >>> name_of("UNet3D (h100)")
    'unet3d-h100'

    Raises:
        ClusterError: no letter is left.
    """
    name = re.sub(r"^[^a-z]+|-+$", "", re.sub(r"[^a-z0-9]+", "-", text.lower()))[:MAX_NAME].rstrip("-")
    if not name:
        raise ClusterError(f"{text!r} has no letter for the name of a RayJob; give --name NAME")
    return name


def documents(job: Job) -> list[dict[str, Any]]:
    """Return the manifests of a job, in the order in which to apply them."""
    if job.scenario is None:
        return [_ray_job(job)]
    scenario = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job.name}-scenario", "labels": dict(LABELS)},
        "data": {"scenario.yaml": job.scenario},
    }
    return [scenario, _ray_job(job)]


def _ray_job(job: Job) -> dict[str, Any]:
    command = ["python", "-m", "rayio", "run", *job.arguments, "--root", job.root]
    command += [] if job.resumed is None else ["--resume", job.resumed]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name, "labels": dict(LABELS)},
        "spec": {
            "entrypoint": shlex.join(command),
            # seconds that a stopped run has to write its results; Ray's default is 3
            "runtimeEnvYAML": 'env_vars:\n  RAY_JOB_STOP_WAIT_TIME_S: "60"\n',
            "submissionMode": "K8sJobMode",
            "backoffLimit": job.retries,  # by default none: a run that failed is a result
            "activeDeadlineSeconds": job.deadline_seconds,
            "preRunningDeadlineSeconds": START_SECONDS,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": STAY_SECONDS,
            "submitterPodTemplate": _submitter(job),
            "rayClusterSpec": {
                "rayVersion": job.ray_version,
                "authOptions": {"mode": "token"},
                **(_AUTOSCALED if job.reader_pool is not None else {}),
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "object-store-memory": str(job.pods.head.store_bytes)},
                    "template": _template(job, "head", job.pods.head),
                },
                "workerGroupSpecs": [
                    _group(job, "nodes", "worker", job.pods.worker, job.pods.num_workers),
                    *_dedicated_group(job),
                    *_reader_group(job),
                ],
            },
        },
    }


def _group(job: Job, name: str, role: str, pod: Pod, replicas: int) -> dict[str, Any]:
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "rayStartParams": {"object-store-memory": str(pod.store_bytes)},
        "template": _template(job, role, pod),
    }


def _dedicated_group(job: Job) -> list[dict[str, Any]]:
    """Return the group of dedicated reader nodes, if any; its label keeps ranks away."""
    pod = job.pods.dedicated
    if pod is None:
        return []
    return [{**_group(job, "reader-nodes", "reader-node", pod, job.pods.num_dedicated), "labels": {TIER: READERS}}]


def _reader_group(job: Job) -> list[dict[str, Any]]:
    """Return the group of the reader pool's nodes, if any; it starts empty."""
    pool, pod = job.reader_pool, job.pods.reader
    if pool is None or pod is None:
        return []
    group = _group(job, "readers", "reader", pod, 0)
    # quoted twice for a shell command; Ray's autoscaler unquotes it
    group["rayStartParams"]["resources"] = json.dumps(json.dumps({pool.resource: pool.slots}))
    idle = min(MAX_SECONDS, math.ceil(pool.idle_timeout))
    return [group | {"maxReplicas": pool.nodes, "idleTimeoutSeconds": idle}]


def _template(job: Job, role: str, pod: Pod) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": f"ray-{role}",
        "image": job.image,
        "imagePullPolicy": "IfNotPresent",
        # Ray's default gives its workers the lowest priority on a host, which would distort the measurement
        "env": [{"name": "RAY_worker_niceness", "value": "0"}],
        "resources": _resources(pod.cpus, pod.memory_bytes),
        "securityContext": dict(_CONFINED),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": "/home/ray"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}, {"name": "home", "emptyDir": {}}]
    if job.secret is not None:
        container["envFrom"] = [{"secretRef": {"name": job.secret}}]
    if role == "head":
        container["ports"] = [
            {"name": name, "containerPort": number}
            for name, number in (("gcs-server", 6379), ("dashboard", 8265), ("client", 10001), ("metrics", 8080))
        ]
        if job.scenario is not None:
            container["volumeMounts"].append({"name": "scenario", "mountPath": SCENARIO_FOLDER, "readOnly": True})
            volumes.append({"name": "scenario", "configMap": {"name": f"{job.name}-scenario"}})
    else:
        container["ports"] = [{"name": "metrics", "containerPort": 8080}]
    if is_path(job.root) and (role == "head" or job.has_files):
        container["volumeMounts"].append({"name": "data", "mountPath": DATA})
        claim = {"emptyDir": {}} if job.claim is None else {"persistentVolumeClaim": {"claimName": job.claim}}
        volumes.append({"name": "data", **claim})
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes, **_common(job)}
    if role == "head" and job.reader_pool is not None:  # for the autoscaler's requests to the API server
        spec["automountServiceAccountToken"] = True
    if role in _NODES:  # spread emulated nodes over real ones
        selector: dict[str, Any] = {"matchLabels": {**_POD_LABELS, _ROLE: role}}
        if job.pods.dedicated is not None:
            of_nodes = {"key": _ROLE, "operator": "In", "values": [*_NODES]}
            selector = {"matchLabels": dict(_POD_LABELS), "matchExpressions": [of_nodes]}
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": selector,
            }
        ]
    return {"metadata": {"labels": {**_POD_LABELS, _ROLE: role}}, "spec": spec}


def _submitter(job: Job) -> dict[str, Any]:
    container = {
        "name": "ray-job-submitter",
        "image": job.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _resources(1, 512 << 20),
        "securityContext": dict(_CONFINED),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": "/home/ray"}],
    }
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "home", "emptyDir": {}}]
    return {
        "metadata": {"labels": {**_POD_LABELS, _ROLE: "submitter"}},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes, **_common(job)},
    }


def _common(job: Job) -> dict[str, Any]:
    account = {} if job.service_account is None else {"serviceAccountName": job.service_account}
    return {**account, "automountServiceAccountToken": False, "securityContext": dict(_UNPRIVILEGED)}


def _resources(cpus: int, memory_bytes: int) -> dict[str, Any]:
    """Return equal requests and limits, so that a pod only starts where its memory is free."""
    wanted = {"cpu": str(cpus), "memory": f"{memory_bytes >> 20}Mi"}
    return {"requests": wanted, "limits": dict(wanted)}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def to_yaml(manifests: list[dict[str, Any]]) -> str:
    """Return manifests as one stream of YAML."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
