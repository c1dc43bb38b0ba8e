"""The Kubernetes job of a scenario."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib.metadata import version

from rayio.errors import ClusterError
from rayio.model.planning import plan_of
from rayio.remote.k8s.documents import DATA, MAX_NAME, MAX_SECONDS, SCENARIO_FOLDER, START_SECONDS, Job, name_of
from rayio.remote.k8s.large import too_large
from rayio.remote.k8s.sizes import pods_of
from rayio.scenario import checks, duration
from rayio.scenario.load import load, packaged
from rayio.scenario.model import Scenario
from rayio.scenario.write import to_yaml
from rayio.storage.address import is_path, join

#: Allowed multiple of a run's expected time, and the assumed rate of generating its dataset (bytes/s).
TIMES, GENERATED_PER_SECOND = 3.0, 50e6
#: Tries of a job after the first, if its run directory is kept.
RETRIES = 3

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def job_of(
    source: str,
    overrides: Sequence[str] = (),
    *,
    image: str,
    name: str | None = None,
    root: str | None = None,
    workers: int | None = None,
    claim: str | None = None,
    secret: str | None = None,
    service_account: str | None = None,
    resumed: str | None = None,
    retries: int | None = None,
) -> Job:
    """Return the Kubernetes job of a scenario; ``rayio k8s --help`` explains the arguments.

    Raises:
        RayioError: the scenario or an argument is invalid.
    """
    scenario = load(source, overrides)
    if scenario.dataset.is_modelled:
        checks.check_simulated(scenario)
    _check_names(image, name, claim, secret, service_account)
    if workers is not None and workers > scenario.cluster.nodes:
        raise ClusterError(
            f"--workers {workers}: must be at most cluster.nodes={scenario.cluster.nodes}; more pods would be idle"
        )
    root = _root(root, claim)
    retries = _retries(resumed, retries, root, claim)
    plan = plan_of(scenario, modelled=scenario.dataset.is_modelled)
    pods = pods_of(plan, workers)
    is_packaged = source in packaged()
    has_files = not scenario.dataset.is_modelled
    if has_files and is_path(root) and claim is None:
        raise ClusterError(
            f"{scenario.name} reads files, but pods share no folder; give --claim NAME of a volume that "
            "all pods can mount, --root s3://BUCKET/PREFIX, or dataset.path=model://NAME"
        )
    return Job(
        name=name or name_of(f"rayio-{scenario.name}"),
        scenario=None if is_packaged else to_yaml(scenario),
        arguments=(source, *overrides) if is_packaged else (f"{SCENARIO_FOLDER}/scenario.yaml",),
        image=image,
        ray_version=version("ray"),
        pods=pods,
        reader_pool=scenario.cluster.reader_pool,
        has_files=has_files,
        root=root,
        claim=claim,
        secret=secret,
        service_account=service_account,
        deadline_seconds=min(MAX_SECONDS, _deadline(scenario) * (1 + retries)),
        resumed=resumed,
        retries=retries,
        warnings=tuple(too_large(pods, scenario)),
    )


def _retries(resumed: str | None, retries: int | None, root: str, claim: str | None) -> int:
    """Return how often a job is tried again: only in a run directory that outlives its pods."""
    if resumed is None:
        if retries:
            raise ClusterError(f"--retries {retries} needs --resume RUN, the run directory in which each try goes on")
        return 0
    if is_path(where := join(root, resumed)) and claim is None:
        raise ClusterError(
            f"--resume {resumed}: the run directory ends with its pod; give --claim NAME of a volume, or "
            "--root s3://BUCKET/PREFIX"
        )
    if is_path(where) and not where.startswith(f"{DATA}/"):
        raise ClusterError(f"--resume {resumed}: must be inside {DATA}, the pods' folder for files, or an address")
    return RETRIES if retries is None else retries


def _check_names(
    image: str, name: str | None, claim: str | None, secret: str | None, service_account: str | None
) -> None:
    if not re.fullmatch(r"[\w.\-:/@]+", image):
        raise ClusterError(f"--image {image!r}: must be the name of an image, such as registry/rayio:0.1.0")
    if name is not None and (not _LABEL.fullmatch(name) or len(name) > MAX_NAME):
        raise ClusterError(
            f"--name {name}: must have at most {MAX_NAME} lower-case letters, digits and hyphens, "
            "and start with a letter"
        )
    for option, value in (("--claim", claim), ("--secret", secret), ("--service-account", service_account)):
        if value is not None and (not _SUBDOMAIN.fullmatch(value) or len(value) > 253):
            raise ClusterError(f"{option} {value!r}: must be the name of an object in the namespace, in lower case")


def _root(root: str | None, claim: str | None) -> str:
    if root is None:
        return DATA
    if not is_path(root):
        if claim is not None:
            raise ClusterError(f"--claim {claim} is the volume at {DATA}, but --root {root} is elsewhere; give one")
        return root
    inside = join(DATA, root)
    if (inside != DATA and not inside.startswith(f"{DATA}/")) or ".." in inside.split("/"):
        raise ClusterError(f"--root {root}: must be inside {DATA}, the pods' folder for files, or an address")
    return inside


def _deadline(scenario: Scenario) -> int:
    """Return the seconds after which the run is stopped: for starting, generating, and thrice the expected time."""
    parts = dict(duration.of_keys(scenario))
    generating = 0.0 if scenario.dataset.is_modelled else checks.table(scenario)["dataset_bytes"] / GENERATED_PER_SECOND
    starts = START_SECONDS + scenario.cluster.start_deadline
    return min(MAX_SECONDS, math.ceil(starts + TIMES * math.fsum(parts.values()) + generating))
