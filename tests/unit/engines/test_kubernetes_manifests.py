"""What is made for an attempt: as written down in golden/kubernetes, and as the schemas of Kubernetes want it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.engines.kubernetes_schemas import check
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Launch
from windlass.engines.kubernetes import manifests, names
from windlass.engines.kubernetes.jobs import render_job, render_jobset
from windlass.engines.kubernetes.nodes import parse_node
from windlass.engines.kubernetes.options import decide_options
from windlass.engines.kubernetes.tpus import decide_tpu_options
from windlass.wire.kubernetes import KubernetesConfig

GOLDEN = Path(__file__).with_name("golden") / "kubernetes"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wl-r-bcdfghjkmn-2-0", "uid": "5678"}}
OWNER = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "wl-r-bcdfghjkmn-2", "uid": "1234"}}
TPU_LABELS = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "2x4",
}
TPU_HOSTS = [
    parse_node(
        {
            "metadata": {"name": name, "labels": TPU_LABELS},
            "spec": {"taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "24", "google.com/tpu": "4"}},
        }
    )
    for name in ("n1", "n2")
]
RICH: dict[str, Any] = {
    "node_selector": {"pool": "a100"},
    "tolerations": [{"key": "gpu", "effect": "NoSchedule"}, {"key": "spot", "value": "yes"}],
    "service_account": "trainer",
    "image_pull_secrets": ["registry"],
    "volumes": [
        {"name": "data", "mount": "/data", "claim": "datasets", "read_only": True},
        {"name": "cache", "mount": "/cache", "host_path": "/mnt/nvme/cache"},
        {"name": "scratch", "mount": "/scratch", "empty": "10Gi"},
        {"name": "keys", "mount": "/keys", "secret": "registry"},
        {"name": "conf", "mount": "/conf", "config_map": "settings"},
    ],
    "secrets": ["wandb"],
    "labels": {"team": "vision"},
    "annotations": {"note": "a quick one"},
    "priority_class": "high",
    "runtime_class": "gvisor",
    "shm": "8Gi",
    "queue": "research",
}


def site(**changes: Any) -> manifests.Site:
    settings: dict[str, Any] = {
        "type": "kubernetes",
        "image": "python:3.12",
        "node_selector": {"windlass": "yes"},
        "security": {"host_paths": ["/mnt"], "service_accounts": ["trainer"], "secrets": ["registry", "wandb"]},
    }
    config = KubernetesConfig(**{**settings, **changes})
    return manifests.Site(
        engine="k8s", config=config, server_url="https://windlass.example", bootstrap="print('hello')\n"
    )


def launch(**changes: Any) -> Launch:
    shares = (
        NodeShare(node="n1", cpus=7.5, memory_bytes=64 << 30, gpu_indices=(0, 1)),
        NodeShare(node="n2", cpus=7.5, memory_bytes=64 << 30, gpu_indices=(4, 5)),
    )
    settings: dict[str, Any] = {
        "run_id": "r-bcdfghjkmn",
        "attempt_id": "r-bcdfghjkmn.2",
        "attempt": 2,
        "placement": Placement(engine="k8s", shares=shares),
        "argv": ("python", "train.py"),
        "workers_per_node": 2,
        "self_launching": False,
        "env": {"A": "1"},
        "secrets": {"KEY": "hush"},
        "grace_s": 25.5,
        "project": "vision",
    }
    return Launch(**{**settings, **changes})


def render(name: str) -> list[dict[str, Any]]:
    """Everything that the case named makes."""
    plain, rich = launch(), launch(image="registry.example/train:7", options=RICH)
    if name == "pods":
        at, options = site(), decide_options(site().config, {})
        pods = [manifests.render_pod(plain, rank, at, options, OWNER) for rank in range(2)]
        tokens = manifests.render_tokens(plain, at, ["t0", "t1"], OWNER)
        return [manifests.render_policy(plain, at), manifests.render_service(plain, at), tokens, *pods]
    if name == "one_pod":
        at, options = site(), decide_options(site().config, {})
        one = launch(placement=Placement(engine="k8s", shares=(NodeShare(node="n1", cpus=2.0, memory_bytes=0),)))
        pod = manifests.render_pod(one, 0, at, options, None)
        return [pod, manifests.render_tokens(one, at, ["t0"], POD), manifests.render_service(one, at, POD)]
    if name == "rich_pod":
        at = site()
        return [manifests.render_pod(rich, 1, at, decide_options(at.config, RICH), OWNER)]
    if name == "kueue_pod":
        at = site(queueing="kueue")
        return [manifests.render_pod(rich, 0, at, decide_options(at.config, {"queue": "research"}), OWNER)]
    if name == "tpu_pods":
        gang = launch(tpus=True)
        options = decide_tpu_options(decide_options(site().config, {}), site().config, TPU_HOSTS)
        return [manifests.render_pod(gang, rank, site(), options, OWNER) for rank in range(2)]
    if name == "volcano":
        at = site(queueing="volcano")
        options = decide_options(at.config, {"queue": "research"})
        return [
            manifests.render_pod_group(plain, at, options, OWNER),
            manifests.render_pod(plain, 0, at, options, OWNER),
        ]
    at = site(queueing="kueue", gpu_resource="google.com/tpu")
    options = decide_options(at.config, {"queue": "research"})
    return [
        render_job(plain, at, options, OWNER) if name == "indexed_job" else render_jobset(plain, at, options, OWNER)
    ]


CASES = ["pods", "one_pod", "rich_pod", "kueue_pod", "tpu_pods", "volcano", "indexed_job", "jobset"]


@pytest.mark.parametrize("name", CASES)
def test_manifests_are_as_written_down(name: str) -> None:
    """After a change that is meant: `python -m tests.unit.engines.test_kubernetes_manifests`, and read the diff."""
    assert render(name) == list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))


@pytest.mark.parametrize("name", CASES)
def test_current_versions_of_kubernetes_take_them(name: str) -> None:
    for manifest in render(name):
        if manifest["kind"] == "JobSet":  # not part of Kubernetes itself; the Jobs in it are
            template = manifest["spec"]["replicatedJobs"][0]["template"]
            manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": manifest["metadata"], **template}
        if manifest["kind"] != "PodGroup":
            check(manifest)


def test_nothing_secret_is_in_a_pod() -> None:
    pods = [manifest for manifest in render("pods") if manifest["kind"] == "Pod"]
    assert "hush" not in repr(pods)
    assert "t0" not in repr(pods)


def test_a_pod_on_tpus_says_what_the_cluster_wants_to_hear() -> None:
    config = site().config
    plain = decide_options(config, {})
    found = decide_tpu_options(plain, config, TPU_HOSTS)
    assert found.node_selector == TPU_LABELS
    assert [(each.key, each.effect) for each in found.tolerations] == [("google.com/tpu", "NoSchedule")]
    assert decide_tpu_options(found, config, TPU_HOSTS) == found
    # One that says otherwise itself, hosts that differ, hosts without TPUs, hosts that nobody knows of.
    own = decide_options(config, {"node_selector": {"cloud.google.com/gke-tpu-topology": "4x4"}})
    assert decide_tpu_options(own, config, TPU_HOSTS).node_selector == {**TPU_LABELS, **own.node_selector}
    other = replace(TPU_HOSTS[0], labels={**TPU_LABELS, "cloud.google.com/gke-tpu-topology": "2x2"})
    mixed = decide_tpu_options(plain, config, [TPU_HOSTS[1], other])
    assert list(mixed.node_selector) == ["cloud.google.com/gke-tpu-accelerator"]
    assert decide_tpu_options(plain, config, [replace(TPU_HOSTS[0], allocatable={"cpu": "4"})]) == plain
    assert decide_tpu_options(plain, config, []) == plain


@pytest.mark.parametrize("name", ["pods", "one_pod", "rich_pod", "indexed_job"])
def test_pods_are_confined(name: str) -> None:
    for manifest in render(name):
        spec = manifest["spec"]["template"]["spec"] if manifest["kind"] == "Job" else manifest.get("spec")
        if manifest["kind"] not in ("Pod", "Job"):
            continue
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        container = spec["containers"][0]["securityContext"]
        assert container["allowPrivilegeEscalation"] is False
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert container["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("project", ["vision", "Vision.2", "x" * 63, "_odd_", "0"])
def test_names_and_labels_are_acceptable_and_distinct(project: str) -> None:
    check(manifests.render_policy(launch(project=project), site()))
    others = {"vision", "Vision.2", "vision-2", "x" * 63, "_odd_", "odd", "0"} - {project}
    assert names.object_name("p", project) not in {names.object_name("p", other) for other in others}
    assert names.label_value(project) not in {names.label_value(other) for other in others}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(yaml.safe_dump_all(render(case), sort_keys=True))
