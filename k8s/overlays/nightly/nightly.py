"""Copy a suspended RayJob, and remove the oldest copies: nightly.py PATTERN NAME."""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path
from typing import Any

#: The folder with a pod's credentials for the API server.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Label of the copies, and the number that stays.
LABEL, KEPT = "rayio/nightly", 14


def job_from(pattern: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of the pattern with a new name, not suspended."""
    metadata = pattern["metadata"]
    spec = {key: value for key, value in pattern["spec"].items() if key not in ("suspend", "jobId")}
    labels = {**metadata.get("labels", {}), LABEL: name}
    return {
        "apiVersion": pattern["apiVersion"],
        "kind": pattern["kind"],
        "metadata": {"generateName": f"{name}-", "labels": labels},
        "spec": spec,
    }


def too_old(jobs: list[dict[str, Any]]) -> list[str]:
    """Return the names of finished jobs, without the newest."""
    over = [job for job in jobs if job.get("status", {}).get("jobDeploymentStatus") in ("Complete", "Failed")]
    over.sort(key=lambda job: job["metadata"]["creationTimestamp"], reverse=True)
    return [job["metadata"]["name"] for job in over[KEPT:]]


def ask(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request to the API server, and return its answer."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://{host}:{port}{path}", data, headers, method=method)
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def main() -> None:
    pattern, name = sys.argv[1:]
    jobs = f"/apis/ray.io/v1/namespaces/{(ACCOUNT / 'namespace').read_text()}/rayjobs"
    made = ask("POST", jobs, job_from(ask("GET", f"{jobs}/{pattern}"), name))
    print(f"made {made['metadata']['name']}")
    for old in too_old(ask("GET", f"{jobs}?labelSelector={LABEL}%3D{name}")["items"]):
        ask("DELETE", f"{jobs}/{old}")
        print(f"removed {old}")


if __name__ == "__main__":
    main()
