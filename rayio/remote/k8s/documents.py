"""The documents that Kubernetes is given: a RayJob, and a ConfigMap with its scenario where the image has none."""

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

#: Where the pods have the scenario, and the folder from which relative paths start.
SCENARIO_FOLDER, DATA = "/scenario", "/data"
#: Characters that the names of a RayJob (the operator makes others of it) may have.
MAX_NAME = 47
#: User and group of the image.
USER = 1000
#: Seconds: until all pods run, and that the cluster stays after the run, to look at it and to copy what is there.
START_SECONDS, STAY_SECONDS = 900, 600
#: The most seconds that a field of KubeRay's holds.
MAX_SECONDS = 2**31 - 1

LABELS = {"app.kubernetes.io/name": "rayio", "app.kubernetes.io/part-of": "rayio"}
#: Of pods. Their app.kubernetes.io/name is the operator's: its services find the head by it.
_OF_PODS = {"app.kubernetes.io/part-of": "rayio"}
_ROLE = "app.kubernetes.io/component"
#: What is in that label of pods that are emulated nodes.
_NODES = ("worker", "reader-node")
#: What every container is kept from. Ray writes to /tmp and to the home, which are volumes.
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
#: Ray's autoscaler, a container beside the head.
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
    """A run that Kubernetes shall make."""

    name: str
    #: The scenario, resolved, as YAML; None of one that the image has.
    scenario: str | None
    #: The scenario and its overrides as ``rayio run`` takes them.
    arguments: tuple[str, ...]
    image: str
    ray_version: str
    pods: Pods
    #: Nodes that come for readers and go with them; None has none.
    reader_pool: ReaderPool | None
    #: Whether readers and ranks need the folder of ``root`` too, not only the driver.
    has_files: bool
    #: Folder or address from which relative paths start.
    root: str
    #: Claim of the volume at ``/data``; None has a volume that ends with its pod.
    claim: str | None
    #: Secret whose entries are environment variables, such as the keys of a bucket; None has none.
    secret: str | None
    #: Service account of all pods; None is the namespace's own.
    service_account: str | None
    #: Seconds after which the run is ended.
    deadline_seconds: int
    #: What whoever applies it should know before.
    warnings: tuple[str, ...] = ()


def name_of(text: str) -> str:
    """A name that a RayJob can have, made of any.

    >>> name_of("UNet3D (h100)")
    'unet3d-h100'

    Raises:
        ClusterError: no letter is left.
    """
    name = re.sub(r"^[^a-z]+|-+$", "", re.sub(r"[^a-z0-9]+", "-", text.lower()))[:MAX_NAME].rstrip("-")
    if not name:
        raise ClusterError(f"{text!r} has no letter that the name of a RayJob could begin with; give --name NAME")
    return name


def documents(job: Job) -> list[dict[str, Any]]:
    """The documents of a job, in the order in which they are applied."""
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
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name, "labels": dict(LABELS)},
        "spec": {
            "entrypoint": shlex.join(command),
            # seconds that a run which is stopped gets to write its results; Ray's own are 3
            "runtimeEnvYAML": 'env_vars:\n  RAY_JOB_STOP_WAIT_TIME_S: "60"\n',
            "submissionMode": "K8sJobMode",
            "backoffLimit": 0,  # a run that failed is a result
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
    """A group of so many pods, which stay."""
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "rayStartParams": {"object-store-memory": str(pod.store_bytes)},
        "template": _template(job, role, pod),
    }


def _dedicated_group(job: Job) -> list[dict[str, Any]]:
    """The group of the nodes that only read, if the scenario has any: by its label readers live there and ranks not."""
    pod = job.pods.dedicated
    if pod is None:
        return []
    return [{**_group(job, "reader-nodes", "reader-node", pod, job.pods.num_dedicated), "labels": {TIER: READERS}}]


def _reader_group(job: Job) -> list[dict[str, Any]]:
    """The group of the nodes that come for readers, if the scenario has any: none at first."""
    pool, pod = job.reader_pool, job.pods.reader
    if pool is None or pod is None:
        return []
    group = _group(job, "readers", "reader", pod, 0)
    # it stands in a shell's command, hence twice the quotes; Ray's autoscaler takes them off again
    group["rayStartParams"]["resources"] = json.dumps(json.dumps({pool.resource: pool.slots}))
    idle = min(MAX_SECONDS, math.ceil(pool.idle_timeout))
    return [group | {"maxReplicas": pool.nodes, "idleTimeoutSeconds": idle}]


def _template(job: Job, role: str, pod: Pod) -> dict[str, Any]:
    """The pod of the head, of a worker, of a node that only reads or of one that comes for readers."""
    container: dict[str, Any] = {
        "name": f"ray-{role}",
        "image": job.image,
        "imagePullPolicy": "IfNotPresent",
        # Ray's own default has its workers run after everything else on a host, and that would be measured
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
    if role == "head" and job.reader_pool is not None:  # the autoscaler beside it asks the API server for pods
        spec["automountServiceAccountToken"] = True
    if role in _NODES:  # emulated nodes do not share a real one where there are enough
        selector: dict[str, Any] = {"matchLabels": {**_OF_PODS, _ROLE: role}}
        if job.pods.dedicated is not None:
            of_nodes = {"key": _ROLE, "operator": "In", "values": [*_NODES]}
            selector = {"matchLabels": dict(_OF_PODS), "matchExpressions": [of_nodes]}
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": selector,
            }
        ]
    return {"metadata": {"labels": {**_OF_PODS, _ROLE: role}}, "spec": spec}


def _submitter(job: Job) -> dict[str, Any]:
    """The pod that submits the run and shows its output."""
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
        "metadata": {"labels": {**_OF_PODS, _ROLE: "submitter"}},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes, **_common(job)},
    }


def _common(job: Job) -> dict[str, Any]:
    account = {} if job.service_account is None else {"serviceAccountName": job.service_account}
    return {**account, "automountServiceAccountToken": False, "securityContext": dict(_UNPRIVILEGED)}


def _resources(cpus: int, memory_bytes: int) -> dict[str, Any]:
    """What is asked for is what a pod is held to: it is never put where its memory is not free."""
    wanted = {"cpu": str(cpus), "memory": f"{memory_bytes >> 20}Mi"}
    return {"requests": wanted, "limits": dict(wanted)}


class _Dumper(yaml.SafeDumper):
    """YAML as people write it: text of several lines as a block, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent the items of lists."""
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def to_yaml(found: list[dict[str, Any]]) -> str:
    """Documents as one stream of YAML."""
    return yaml.dump_all(found, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
