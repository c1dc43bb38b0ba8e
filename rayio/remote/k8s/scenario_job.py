"""A scenario -> the job that runs it on Kubernetes, or one line that says why it cannot be."""

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

#: How often what a run is expected to take at most, and bytes per second that its dataset is made with.
TIMES, GENERATED_PER_SECOND = 3.0, 50e6

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
#: Names of secrets, claims and service accounts.
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
) -> Job:
    """Plan a scenario's run on Kubernetes; see ``rayio k8s --help`` for what each argument says.

    Raises:
        RayioError: the scenario, or what Kubernetes or the run could not do with it.
    """
    scenario = load(source, overrides)
    if scenario.dataset.is_modelled:
        checks.check_simulated(scenario)
    _check_names(image, name, claim, secret, service_account)
    if workers is not None and workers > scenario.cluster.nodes:
        raise ClusterError(
            f"--workers {workers}: the scenario has {scenario.cluster.nodes} nodes (cluster.nodes), and more pods "
            "than that would have nothing to do"
        )
    root = _root(root, claim)
    plan = plan_of(scenario, modelled=scenario.dataset.is_modelled)
    pods = pods_of(plan, workers)
    is_packaged = source in packaged()
    has_files = not scenario.dataset.is_modelled
    if has_files and is_path(root) and claim is None:
        raise ClusterError(
            f"{scenario.name} reads files, and each pod would have its own {DATA}: give --claim NAME of a volume that "
            "all pods can mount, --root s3://BUCKET/PREFIX, or dataset.path=model://NAME to read from a model"
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
        deadline_seconds=_deadline(scenario),
        warnings=tuple(too_large(pods, scenario)),
    )


def _check_names(
    image: str, name: str | None, claim: str | None, secret: str | None, service_account: str | None
) -> None:
    if not re.fullmatch(r"[\w.\-:/@]+", image):
        raise ClusterError(f"--image {image!r}: must be the name of an image, such as registry/rayio:0.1.0")
    if name is not None and (not _LABEL.fullmatch(name) or len(name) > MAX_NAME):
        raise ClusterError(
            f"--name {name}: a RayJob's name has at most {MAX_NAME} lower-case letters, digits and hyphens, "
            "and begins with a letter"
        )
    for option, value in (("--claim", claim), ("--secret", secret), ("--service-account", service_account)):
        if value is not None and (not _SUBDOMAIN.fullmatch(value) or len(value) > 253):
            raise ClusterError(f"{option} {value!r}: must be the name of an object in the namespace, in lower case")


def _root(root: str | None, claim: str | None) -> str:
    """Where relative paths start in the pods."""
    if root is None:
        return DATA
    if not is_path(root):
        if claim is not None:
            raise ClusterError(f"--claim {claim} is the volume at {DATA}, and --root {root} is elsewhere; give one")
        return root
    inside = join(DATA, root)
    if (inside != DATA and not inside.startswith(f"{DATA}/")) or ".." in inside.split("/"):
        raise ClusterError(f"--root {root}: pods have one folder for files, {DATA}; give one in it, or an address")
    return inside


def _deadline(scenario: Scenario) -> int:
    """Seconds after which something is wrong: pods and actors start, the dataset is made, a run takes three times."""
    parts = dict(duration.of_keys(scenario))
    made = 0.0 if scenario.dataset.is_modelled else checks.table(scenario)["dataset_bytes"] / GENERATED_PER_SECOND
    starts = START_SECONDS + scenario.cluster.start_deadline
    return min(MAX_SECONDS, math.ceil(starts + TIMES * math.fsum(parts.values()) + made))
