"""The manifests below k8s/ and what ``rayio k8s`` prints: what Kubernetes, KubeRay's operator and rayio itself take."""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from kuberay import of_cluster, refusals
from kustomize import Document
from kustomize import build as built
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.core.generated.autoscaler_pb2 import GangResourceRequest, NodeState, NodeStatus, ResourceRequest
from ray.core.generated.instance_manager_pb2 import Instance

from rayio import cli
from rayio.engines.ray import placement
from rayio.errors import RayioError
from rayio.model.planning import plan_of
from rayio.remote.k8s.documents import documents, name_of, to_yaml
from rayio.remote.k8s.scenario_job import job_of
from rayio.scenario.load import load, packaged
from scenarios import latest

HERE = Path(__file__).parents[1] / "k8s"
FOLDERS = [HERE / "base", *sorted((HERE / "overlays").iterdir())]
CRDS = Path(os.environ.get("RAYIO_KUBERAY_CRDS", Path(__file__).parents[2] / "shared" / "kuberay-crds"))
CHECK = CRDS.parent / "check" / "crdv.py"
#: Kinds of other projects, whose schemas are not at hand.
UNCHECKED = {"PodMonitor", "LocalQueue"}

#: What a folder comes to; nobody changes it.
build = cache(built)

MODELLED = ("unet3d-small", "dataset.path=model://unet3d-small")
TIER = ("cluster.placement=dedicated_readers", "cluster.nodes=4", "cluster.reader_nodes=2")
DEDICATED = ("unet3d-h100", *TIER, "dataset.num_files=672")
POOLED = ("s3-autoscaled", "cluster.reader_pool={resource: slot.big, nodes: 3, slots: 4, idle_timeout: 44.5 s}")
CONFINED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
NAMES = [folder.name for folder in FOLDERS]
Change = Callable[[Document], object]


@pytest.fixture(scope="module")
def crdv() -> ModuleType:
    """The check of documents against the CRDs; tests are skipped where it, or what it needs, is not there."""
    for module in ("celpy", "kubernetes_validate"):
        pytest.importorskip(module)
    if not (CHECK.is_file() and CRDS.is_dir()):
        pytest.skip("no CRDs of KubeRay here: RAYIO_KUBERAY_CRDS names their folder")
    spec = importlib.util.spec_from_file_location("crdv", CHECK)
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    return check


@pytest.fixture(scope="module")
def schemas(crdv: ModuleType) -> Any:
    """The schemas of KubeRay's kinds; Python's own reader of YAML takes half a minute for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "safe_load", lambda text: yaml.load(text, Loader=yaml.CSafeLoader))
        return crdv.schemas(CRDS)


def job_in(found: list[Document]) -> Document:
    (job,) = (document for document in found if document["kind"] == "RayJob")
    return job


def printed(*arguments: str, **options: Any) -> list[Document]:
    """What the command prints, read again."""
    return [*yaml.safe_load_all(to_yaml(documents(job_of(arguments[0], arguments[1:], image="rayio:1", **options))))]


def every_printed() -> Iterator[list[Document]]:
    yield printed(*MODELLED)
    yield printed("unet3d-h100", "cluster.nodes=4", "dataset.num_files=672", root="s3://bucket/x", secret="keys")
    yield printed(*POOLED)
    yield printed(*DEDICATED, root="s3://bucket")
    yield printed(*POOLED, *TIER, "dataset.num_files=1000")
    yield printed(*MODELLED, claim="c", resumed="runs/one", retries=2)
    yield printed("unet3d-small", "loader.kind=torch", claim="shared", service_account="rayio", name="mine")


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_every_document_is_what_its_kind_asks_for(folder: Path, crdv: ModuleType, schemas: Any) -> None:
    found = build(folder)
    assert {d["kind"] for d in found} >= {"RayJob", "NetworkPolicy", "ServiceAccount", "PersistentVolumeClaim"}
    checked = [d for d in found if d["kind"] not in UNCHECKED]
    assert [f"{d['kind']}: {error}" for d in checked for error in crdv.errors(d, schemas)] == []
    assert [*refusals(job_in(found))] == []


def test_what_the_command_prints_is_valid(crdv: ModuleType, schemas: Any) -> None:
    for found in every_printed():
        assert [error for document in found for error in crdv.errors(document, schemas)] == []


def test_the_schemas_are_really_asked(crdv: ModuleType, schemas: Any) -> None:
    job = job_in(printed(*MODELLED))
    worker = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    worker["minReplica"] = 1
    worker["template"]["spec"]["containers"][0]["resorces"] = {}
    assert len([*crdv.errors(job, schemas)]) >= 2


def cluster(job: Document) -> Document:
    inside: Document = job["spec"]["rayClusterSpec"]
    return inside


def group(job: Document) -> Document:
    inside: Document = cluster(job)["workerGroupSpecs"][0]
    return inside


BROKEN: list[Change] = [
    lambda job: job["metadata"].update(name="x" * 48),
    lambda job: job["spec"].update(shutdownAfterJobFinishes=False),
    lambda job: job["spec"].update(submissionMode="SidecarMode"),
    lambda job: job["spec"].update(activeDeadlineSeconds=0),
    lambda job: job["spec"].update(runtimeEnvYAML="[unclosed"),
    lambda job: cluster(job).pop("rayVersion"),
    lambda job: cluster(job).update(rayVersion="2.51.0"),
    lambda job: cluster(job).update(networkPolicy={}),
    lambda job: group(job).pop("minReplicas"),
    lambda job: group(job).update(minReplicas=2),
    lambda job: group(job).update(idleTimeoutSeconds=60),
    lambda job: group(job).update(resources={"CPU": "1"}, rayStartParams={"num-cpus": "1"}),
    lambda job: cluster(job)["headGroupSpec"]["rayStartParams"].update(labels="a=b"),
]


@pytest.mark.parametrize("change", BROKEN)
def test_what_the_operator_refuses_is_noticed(change: Change) -> None:
    job = job_in(printed(*MODELLED))
    assert [*refusals(job)] == []
    change(job)
    assert [*refusals(job)] != []


def pods(value: Any) -> Iterator[Document]:
    """Every pod that a document describes."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value["spec"]
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


def test_no_pod_may_more_than_it_needs() -> None:
    seen = 0
    for found in (*map(build, FOLDERS), *every_printed()):
        for pod in (pod for document in found for pod in pods(document)):
            context = pod["securityContext"]
            assert context["runAsNonRoot"]
            assert context["runAsUser"] > 0
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "automountServiceAccountToken" in pod
            assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
            assert not any("hostPath" in volume for volume in pod.get("volumes", ()))
            for container in pod["containers"]:
                kept = container["securityContext"]
                assert kept == CONFINED
                asked, most = container["resources"]["requests"], container["resources"]["limits"]
                assert asked == most
                assert re.search(r":\d", container["image"]), "no floating tag"
                assert not [e for e in container.get("env", ()) if re.search("KEY|SECRET|TOKEN|PASSWORD", e["name"])]
                seen += 1
    assert seen > 20


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_names_that_documents_mention_are_there(folder: Path) -> None:
    found = build(folder)
    names = {(document["kind"], document["metadata"]["name"]) for document in found}
    for pod in (pod for document in found for pod in pods(document)):
        if "serviceAccountName" in pod:
            assert ("ServiceAccount", pod["serviceAccountName"]) in names
        for volume in pod.get("volumes", ()):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
        mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod.get("volumes", ())}
    policy = next(document for document in found if document["kind"] == "NetworkPolicy")
    (label,) = policy["spec"]["podSelector"]["matchLabels"].items()
    for document in found:
        for template in [*templates(document)]:
            assert label in template["metadata"]["labels"].items(), "a pod that the policy does not know"


def templates(value: Any) -> Iterator[Document]:
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}) and "metadata" in value:
            yield value
        for inner in value.values():
            yield from templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from templates(inner)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_the_entry_point_is_a_command_that_rayio_takes(folder: Path) -> None:
    python, m, rayio, run, name, *rest = shlex.split(job_in(build(folder))["spec"]["entrypoint"])
    assert (python, m, rayio, run) == ("python", "-m", "rayio", "run")
    assert name in packaged()
    assert load(name, [word for word in rest if "=" in word and not word.startswith("-")]).name == "unet3d-small"
    assert "--root" in rest
    assert {word for word in rest if word.startswith("--")} <= {"--root", "--otlp"}


def test_a_scenario_that_the_image_has_not_goes_with_the_job(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: unet3d-small\nname: mine\ndataset: {path: 'model://x'}\n")
    texts, job = printed(str(mine), "loader.num_workers=3")
    head = cluster(job)["headGroupSpec"]["template"]["spec"]
    (volume,) = (one for one in head["volumes"] if "configMap" in one)
    assert volume["configMap"]["name"] == texts["metadata"]["name"]
    (mount,) = (one for one in head["containers"][0]["volumeMounts"] if one["name"] == volume["name"])
    file = shlex.split(job["spec"]["entrypoint"])[4]
    assert file == f"{mount['mountPath']}/scenario.yaml"
    (tmp_path / "there.yaml").write_text(texts["data"]["scenario.yaml"])
    assert load(tmp_path / "there.yaml") == load(mine, ["loader.num_workers=3"])


def test_a_job_that_is_tried_again_goes_on_in_its_run_directory() -> None:
    once = job_in(printed(*MODELLED, claim="c"))["spec"]
    found = printed(*MODELLED, claim="c", resumed="runs/one")
    again = job_in(found)["spec"]
    assert (once["backoffLimit"], again["backoffLimit"]) == (0, 3)
    assert again["activeDeadlineSeconds"] == 4 * once["activeDeadlineSeconds"]
    assert shlex.split(again["entrypoint"])[-4:] == ["--root", "/data", "--resume", "runs/one"]
    bucket = job_in(printed(*MODELLED, root="s3://b/p", resumed="runs/one", retries=1))["spec"]
    assert (bucket["backoffLimit"], "--resume runs/one" in bucket["entrypoint"]) == (1, True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_kustomize_makes_the_same_of_each_folder(folder: Path) -> None:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    generated = [name for name in ("otel-collector", "rayio-nightly") if f"name: {name}-" in done.stdout]
    text = re.sub(rf"\b({'|'.join(generated)})-[a-z0-9]{{10}}\b", r"\1", done.stdout) if generated else done.stdout

    def by_name(found: list[Document]) -> dict[tuple[str, str], Document]:
        return {(document["kind"], document["metadata"]["name"]): document for document in found}

    assert by_name([*yaml.safe_load_all(text)]) == by_name(build(folder))


def test_the_base_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["k8s", *MODELLED, "--image", "rayio:0.1.0", "--claim", "rayio-data", "--service-account", "rayio"])
    assert left.value.code == 0
    kept = (HERE / "base" / "rayjob.yaml").read_text()
    version = re.search(r"rayVersion: (.*)", kept)
    assert version is not None
    assert f"ARG RAY_VERSION={version[1]}\n" in (HERE / "Dockerfile").read_text()
    assert re.sub(r"rayVersion: .*", version[0], capsys.readouterr().out) == kept


def test_pods_grow_with_what_lives_in_them() -> None:
    def worker(*overrides: str, **options: Any) -> tuple[float, float, int]:
        spec = group(job_in(printed("unet3d-h100", *overrides, root="s3://bucket", **options)))
        limits = spec["template"]["spec"]["containers"][0]["resources"]["limits"]
        return float(limits["cpu"]), float(limits["memory"].removesuffix("Mi")), spec["replicas"]

    cpus, memory, replicas = worker()
    assert replicas == 1
    assert cpus >= 2 * 4 + 1, "a processor for each reader, and one for the checkpoint's writer"
    window = 2 * 4 * 2 * 7 * 146600628 / 2**20  # ranks, workers, prefetch_factor, batch
    assert memory > window / 0.3, "the windows are 30 % of the object store"
    assert worker("cluster.ranks_per_node=4", "dataset.num_files=336")[1] > 1.9 * memory
    assert worker("cluster.nodes=4", "dataset.num_files=672")[2] == 4
    packed = worker("cluster.nodes=4", "dataset.num_files=672", workers=2)
    assert packed[2] == 2
    assert packed[1] > 1.9 * memory
    assert worker("loader.max_bytes_in_flight=1 GiB")[1] < 0.3 * memory
    modelled = group(job_in(printed("unet3d-h100", "dataset.path=model://x")))
    resources = modelled["template"]["spec"]["containers"][0]["resources"]
    assert int(resources["limits"]["memory"].removesuffix("Mi")) < 4096, "no bytes are there to be held"


def test_nodes_that_come_for_readers_are_a_group_that_rays_autoscaler_knows() -> None:
    job = job_in(printed(*POOLED))
    assert [*refusals(job)] == []
    spec = cluster(job)
    nodes, readers = spec["workerGroupSpecs"]
    assert (nodes["replicas"], nodes["minReplicas"], nodes["maxReplicas"]) == (1, 1, 1)
    assert readers["replicas"] == 0
    assert spec["enableInTreeAutoscaling"]
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert readers["idleTimeoutSeconds"] == 45
    (here, there) = (one["template"]["metadata"]["labels"] for one in (nodes, readers))
    assert here != there
    # what Ray's own autoscaler makes of it
    config = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "c", "namespace": "n"}, "spec": spec})
    kinds = config["available_node_types"]
    assert [name for name, kind in kinds.items() if "slot.big" in kind["resources"]] == [readers["groupName"]]
    kind = kinds[readers["groupName"]]
    assert kind["resources"]["slot.big"] == 4
    assert (kind["min_workers"], kind["max_workers"], kind["idle_timeout_s"]) == (0, 3, 45)
    # who asks the API server for pods may, and nobody else
    pods_of_groups = [one["template"]["spec"] for one in (spec["headGroupSpec"], nodes, readers)]
    assert [pod["automountServiceAccountToken"] for pod in pods_of_groups] == [True, False, False]
    alone = cluster(job_in(printed("s3-autoscaled")))
    assert len(alone["workerGroupSpecs"]) == 1
    assert "enableInTreeAutoscaling" not in alone
    assert alone["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_an_idle_timeout_of_nothing_ends_nodes_that_are_idle_but_for_none_that_a_reader_waits_for() -> None:
    pool = "cluster.reader_pool={resource: slot, nodes: 3, slots: 4, idle_timeout: 0 s}"
    spec = cluster(job_in(printed("s3-autoscaled", pool)))
    assert spec["workerGroupSpecs"][1]["idleTimeoutSeconds"] == 0
    assert [*of_cluster(spec)] == []
    derived = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "c", "namespace": "n"}, "spec": spec})
    config = AutoscalingConfig(derived, skip_content_hash=True)

    def ended(idle_ms: int, *waiting: dict[str, float]) -> bool:
        """Whether Ray's own autoscaler ends a node that is idle for so long, as some readers wait for slots."""
        has = {"slot": 4.0, "CPU": 1.0}
        node = NodeState(
            node_id=b"1" * 28, instance_id="i", ray_node_type_name="readers", status=NodeStatus.IDLE,
            total_resources=has, available_resources=has, idle_duration_ms=idle_ms,
        )  # fmt: skip
        of = Instance(instance_id="i", instance_type="readers", status=Instance.RAY_RUNNING, node_id="1" * 56)
        request = SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            idle_timeout_s=config.get_idle_timeout_s(),
            gang_resource_requests=[
                GangResourceRequest(requests=[ResourceRequest(resources_bundle=one)]) for one in waiting
            ],
            current_instances=[AutoscalerInstance(cloud_instance_id="i", ray_node=node, im_instance=of)],
        )
        reply = ResourceDemandScheduler().schedule(request)
        return [one.instance_id for one in reply.to_terminate] == ["i"]

    assert not ended(0), "busy: a reader has a slot of it"
    assert ended(1), "0 is a time, and not none, of which there would be the cluster's minute"
    assert not ended(60_000, {"slot": 1.0}), "it came just now, and the reader that asked has not got its slot yet"


def sizes(found: list[Document]) -> dict[str, tuple[int, int, int]]:
    """Processors, memory and object store of a pod of each group of workers."""
    said = {}
    for one in cluster(job_in(found))["workerGroupSpecs"]:
        limits = one["template"]["spec"]["containers"][0]["resources"]["limits"]
        store = int(one["rayStartParams"]["object-store-memory"])
        said[one["groupName"]] = (int(limits["cpu"]), int(limits["memory"].removesuffix("Mi")) << 20, store)
    return said


def test_nodes_that_only_read_are_a_group_by_whose_label_readers_live_there_alone() -> None:
    job = job_in(printed(*DEDICATED, root="s3://bucket"))
    assert [*refusals(job)] == []
    nodes, readers = cluster(job)["workerGroupSpecs"]
    for one, number in ((nodes, 4), (readers, 2)):
        assert [one[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [number] * 3
    assert "labels" not in nodes
    # what Ray's own parser makes of it is what the placement of a run looks for
    config = _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "c", "namespace": "n"}, "spec": cluster(job)})
    labels = {name: kind["labels"] for name, kind in config["available_node_types"].items()}
    assert labels == {"headgroup": {}, "nodes": {}, "reader-nodes": {placement.TIER: placement.READERS}}
    places = [
        placement.Place(kind["resources"].get("CPU", 0), labels[name].get(placement.TIER) == placement.READERS)
        for name, kind in config["available_node_types"].items()
        for _ in range(max(1, kind["min_workers"]))
    ]
    plan = plan_of(load(DEDICATED[0], DEDICATED[1:]), modelled=False)
    laid = placement.grounds(plan, places)
    assert laid.labels == [{placement.TIER: "!readers"}] * 4 + [{placement.TIER: "readers"}] * 2
    assert not laid.is_packed
    # pods of both groups stay off each other's hosts; a job without such nodes has what it had
    (spread,) = {
        yaml.safe_dump(one["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"])
        for one in (nodes, readers)
    }
    components = {one["template"]["metadata"]["labels"]["app.kubernetes.io/component"] for one in (nodes, readers)}
    assert yaml.safe_load(spread)["matchExpressions"][0]["values"] == ["worker", "reader-node"]
    assert components == {"worker", "reader-node"}
    both = cluster(job_in(printed(*POOLED, *TIER, "dataset.num_files=1000")))["workerGroupSpecs"]
    assert [(one["groupName"], one["replicas"]) for one in both] == [
        ("nodes", 4), ("reader-nodes", 2), ("readers", 0)
    ]  # fmt: skip


def test_pods_that_only_read_are_sized_for_readers_and_the_others_for_ranks() -> None:
    def of(*overrides: str, **options: Any) -> dict[str, tuple[int, int, int]]:
        return sizes(printed(*latest(*DEDICATED, constant, *overrides), root="s3://bucket", **options))

    constant = "dataset.sample_bytes=146600628"
    batch, ranks, workers = 7 * 146600628, 2, 4
    window = ranks * workers * 2 * batch  # of a node of ranks; prefetch_factor is 2
    (cpus, memory, store), (of_ranks, memory_of_ranks, store_of_ranks) = (of()[n] for n in ("reader-nodes", "nodes"))
    assert cpus == 1 + 4 * ranks * workers // 2, "a processor for each of the readers, which two nodes share"
    assert store == pytest.approx(2 * window / 0.3, rel=0.01), "what is on its way for two nodes of ranks"
    assert memory - store >= 16 * ((62 << 20) + batch), "a process for each, and a batch in its hands"
    assert of_ranks == 1 + 1, "the writer of checkpoints"
    assert store_of_ranks == pytest.approx(window / 0.3, rel=0.01), "what its ranks have fetched"
    assert memory_of_ranks - store_of_ranks < 8 * (62 << 20) + (512 << 20) + ranks * batch + (256 << 20)
    colocated = sizes(printed(DEDICATED[0], "cluster.nodes=4", DEDICATED[-1], constant, root="s3://bucket"))["nodes"]
    assert memory_of_ranks < colocated[1]

    more = of("cluster.reader_nodes=4")["reader-nodes"]
    assert more[0] == 1 + ranks * workers
    assert more[2] == pytest.approx(store / 2, rel=0.01)
    packed = of(workers=2)
    assert packed["nodes"][2] == pytest.approx(2 * store_of_ranks, rel=0.01)
    assert packed["reader-nodes"] == of()["reader-nodes"], "those are never packed"
    # Where it is said what cores nodes have, each claims them of a Ray node of its own.
    cores = of("cluster.cores=[8, 8, 4, 8, 60, 20]")
    assert (cores["nodes"][0], cores["reader-nodes"][0]) == (8, 60)
    uneven = of("cluster.cores=[1, 1, 1, 1, 3, 1]")["reader-nodes"]
    assert uneven[0] == 1 + 24, "three of four turns are the larger node's"
    assert uneven[2] == pytest.approx(3 * window / 0.3, rel=0.01)
    assert of("cluster.cores=[8, 8, 4, 8, 60, 20]", workers=2)["nodes"][0] < 8, "nodes that share one claim nothing"


def test_pods_of_readers_are_as_large_as_what_has_a_slot_there() -> None:
    def of(slots: int, *overrides: str, nodes: int = 3) -> list[tuple[int, int, int]]:
        pool = f"cluster.reader_pool={{nodes: {nodes}, slots: {slots}}}"
        return [*sizes(printed("s3-autoscaled", pool, *overrides, root="s3://bucket")).values()]

    assert of(4, nodes=15)[0] == of(4, nodes=1 << 20)[0], (
        "devices are modelled of the nodes that 4 × 15 readers can fill"
    )
    real = "dataset.path=s3://bucket/x"
    four, eight = of(4, real), of(8, real)
    assert (four[1][0], eight[1][0]) == (4 + 1, 8 + 1), "a processor for each reader"
    assert four[0] == eight[0]
    assert four[0][0] == 4 + 1, "4 ranks with 1 reader each beside them: the others live elsewhere"
    assert eight[1][1] - four[1][1] >= 4 * (62 << 20), "a process for each"
    large = of(8, real, "dataset.sample_bytes=50 MB")
    assert large[1][2] >= 8 * 2 * 4 * 50e6 / 0.3, "slots × prefetch_factor × batch are 30 % of the object store"
    assert large[1][1] - large[1][2] >= 8 * ((62 << 20) + 4 * 50e6), "and a batch in the hands of each"
    assert of(8)[1][0] == 1, "readers of a model wait"


def test_files_are_where_all_pods_have_them() -> None:
    def mounts(found: list[Document]) -> list[set[str]]:
        spec = cluster(job_in(found))
        both = (spec["headGroupSpec"], *spec["workerGroupSpecs"])
        return [
            {mount["mountPath"] for mount in one["template"]["spec"]["containers"][0]["volumeMounts"]} for one in both
        ]

    assert ["/data" in one for one in mounts(printed(*MODELLED, claim="c"))] == [True, False]
    assert ["/data" in one for one in mounts(printed("unet3d-small", claim="c"))] == [True, True]
    assert ["/data" in one for one in mounts(printed(*POOLED, "dataset.path=data", claim="c"))] == [True] * 3
    assert ["/data" in one for one in mounts(printed("unet3d-small", root="s3://bucket"))] == [False, False]
    assert ["/data" in one for one in mounts(printed(*DEDICATED, claim="c"))] == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("unet3d-small",), {}, "--claim NAME"),
        (("unet3d-smal",), {}, "did you mean unet3d-small?"),
        (MODELLED, {"name": "Run_1"}, "--name Run_1"),
        (MODELLED, {"name": "a" * 48}, "47"),
        (MODELLED, {"workers": 2}, "--workers 2"),
        ((*MODELLED, "cluster.placement=dedicated_readers"), {"workers": 2}, "must be at most cluster.nodes=1"),
        (MODELLED, {"root": "/elsewhere"}, "/data"),
        (MODELLED, {"root": "/data/../etc"}, "/data"),
        (MODELLED, {"root": "s3://bucket", "claim": "c"}, "--claim c"),
        (MODELLED, {"secret": "Keys!"}, "--secret 'Keys!'"),
        (MODELLED, {"image": "two words"}, "--image 'two words'"),
        ((*MODELLED, "storage.model=unknown"), {}, "storage.model"),
        (MODELLED, {"resumed": "runs/one"}, "--resume runs/one: the run directory ends with its pod; give --claim"),
        (MODELLED, {"resumed": "/elsewhere/one", "claim": "c"}, "--resume /elsewhere/one: must be inside /data"),
        (MODELLED, {"retries": 2}, "--retries 2 needs --resume RUN"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...], options: dict[str, Any], said: str) -> None:
    with pytest.raises(RayioError) as error:
        job_of(arguments[0], arguments[1:], **{"image": "rayio:1", **options})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


REAL = ("dataset.path=data/x", "dataset.num_files=1000000", "train.epochs=1")
MANY = ("dataset.num_files=9999",)
LARGE: dict[str, tuple[tuple[str, ...], dict[str, Any], str, str]] = {
    "slots": (
        ("s3-autoscaled", "cluster.reader_pool={nodes: 2, slots: 4096}", *REAL), {},
        "cluster.reader_pool.slots=4096: a pod of the group readers needs 4,199 processors and ",
        "; lower it and raise cluster.reader_pool.nodes",
    ),
    "reading nodes": (
        ("unet3d-small", TIER[0], "cluster.ranks_per_node=64", "loader.num_workers=8", *REAL), {},
        "cluster.reader_nodes=1: a pod of the group reader-nodes needs 513 processors and ", "; raise it",
    ),
    "packed": (
        ("unet3d-small", "cluster.nodes=64", "cluster.ranks_per_node=4", *REAL), {"workers": 1},
        "--workers 1 for cluster.nodes=64: a pod of the group nodes needs ", "; raise it",
    ),
    "ranks": (
        ("unet3d-small", "cluster.ranks_per_node=64", "loader.num_workers=8", *REAL), {},
        "cluster.ranks_per_node=64 and loader.num_workers=8: a pod of the group nodes needs ", "; lower one of them",
    ),
    "windows": (
        ("unet3d-small", "loader.prefetch_factor=4000", REAL[0], "dataset.sample_bytes=100 MB", *MANY), {},
        "loader.prefetch_factor=4000: a pod of the group nodes needs ", "; lower it, or bound loader.max_bytes",
    ),
    "cores": (
        ("unet3d-small", "cluster.cores=[900]", *REAL), {},
        "cluster.cores has 900: a pod of the group nodes needs 900 processors and ", "; lower it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_pods_that_no_machine_holds_are_printed_with_a_line_that_names_the_key(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, options, begins, ends = LARGE[name]
    said = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    with pytest.raises(SystemExit) as left:
        cli.main(["k8s", *arguments, "--image", "rayio:1", "--root", "s3://bucket", *said])
    printed = capsys.readouterr()
    assert left.value.code == 0
    (line,) = printed.err.splitlines()
    assert line.startswith(f"rayio: warning: {begins}")
    assert "may never start (the largest machines have 448 and 24 TiB)" in line
    assert ends in line
    (job,) = (one for one in yaml.safe_load_all(printed.out) if one["kind"] == "RayJob")
    largest = max(sizes([job]).values())
    assert largest[0] > 448 or largest[1] > 24 << 40, "what is said is what is printed"


def test_pods_that_some_machine_holds_are_no_warning() -> None:
    def said(slots: int) -> tuple[str, ...]:
        pool = f"cluster.reader_pool={{nodes: 2, slots: {slots}}}"
        return job_of("s3-autoscaled", (pool, *REAL), image="rayio:1", root="s3://bucket").warnings

    assert said(437) == ()
    (line,) = said(438)
    assert "needs 449 processors" in line


def test_names_of_jobs() -> None:
    assert name_of("rayio-UNet3D (h100)") == "rayio-unet3d-h100"
    assert len(name_of("a" * 80)) == 47
    assert name_of("3d") == "d"
    with pytest.raises(RayioError, match="--name"):
        name_of("42")


def test_every_night_a_job_is_made_of_the_one_that_waits() -> None:
    nightly = runpy.run_path(str(HERE / "overlays" / "nightly" / "nightly.py"), run_name="nightly")
    pattern = job_in(build(HERE / "overlays" / "nightly"))
    assert pattern["spec"]["suspend"]
    before = copy.deepcopy(pattern)
    stored = {**pattern, "metadata": {**pattern["metadata"], "uid": "1", "resourceVersion": "2"}, "status": {"a": 1}}
    made = nightly["job_from"](stored, "rayio-nightly")
    assert [*refusals(made)] == []
    assert "suspend" not in made["spec"]
    assert made["metadata"].keys() == {"generateName", "labels"}
    assert made.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert pattern == before

    def job(number: int, status: str | None) -> Document:
        metadata = {"name": f"job-{number}", "creationTimestamp": f"2026-11-{number:02}T03:00:00Z"}
        return {"metadata": metadata, **({} if status is None else {"status": {"jobDeploymentStatus": status}})}

    jobs = [job(number, "Failed" if number % 2 else "Complete") for number in range(1, 21)]
    kept = nightly["KEPT"]
    assert {*nightly["too_old"]([job(21, "Running"), job(22, None), *jobs])} == {
        f"job-{n}" for n in range(1, 21 - kept)
    }
