"""From a Launch to the objects of an attempt: its service, tokens, pods and policy. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.core.resources import NodeShare
from windlass.engines.contract import Launch
from windlass.engines.kubernetes import names
from windlass.engines.kubernetes.api import Json
from windlass.engines.kubernetes.tpus import render_tpu_workers
from windlass.wire.kubernetes import KubernetesConfig, KubernetesOptions, Queueing, Toleration, Volume

HOME = "/windlass"  # the node's folder: plan, logs, code
TOKENS = "/run/windlass/tokens"
# After its ranks had their grace, a node needs a moment to send the last lines.
_LAST_WORDS_S = 20
_NODE_TROUBLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where an engine's attempts go, the same for all of them."""

    engine: str
    config: KubernetesConfig
    server_url: str
    bootstrap: str  # the program that brings a node's agent into a container


def render_labels(launch: Launch, site: Site) -> dict[str, str]:
    return {
        names.MANAGED_BY: "windlass",
        names.ENGINE: names.label_value(site.engine),
        names.ATTEMPT: launch.attempt_id,
        names.RUN: launch.run_id,
        names.PROJECT: names.label_value(launch.project),
    }


def render_service(launch: Launch, site: Site, owner: Json | None = None) -> Json:
    """Gives every pod of the attempt a name in the cluster's DNS. Without an owner it is itself the one of what else
    the attempt has: deleting it deletes them."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **_metadata(names.attempt_name(launch.attempt_id), render_labels(launch, site), site),
            **_owned_by(owner),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks look for each other before they are ready for anything
            "selector": {names.ATTEMPT: launch.attempt_id},
        },
    }


def render_tokens(launch: Launch, site: Site, tokens: Sequence[str], owner: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            **_metadata(names.attempt_name(launch.attempt_id), render_labels(launch, site), site),
            "ownerReferences": [render_owner(owner)],
        },
        "type": "Opaque",
        "stringData": {token_key(rank): token for rank, token in enumerate(tokens)},
    }


def render_policy(launch: Launch, site: Site) -> Json:
    """Pods of a project are reached by pods of the same project, and by nobody else."""
    project = {names.PROJECT: names.label_value(launch.project)}
    labels = {names.MANAGED_BY: "windlass", **project}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(names.object_name("windlass-project", launch.project), labels, site),
        "spec": {
            "podSelector": {"matchLabels": project},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": project}}]}],
        },
    }


def render_pod(launch: Launch, rank: int, site: Site, options: KubernetesOptions, owner: Json | None) -> Json:
    share = launch.placement.shares[rank]
    name = names.pod_name(launch.attempt_id, rank)
    labels = {**options.labels, **render_labels(launch, site), names.NODE_RANK: str(rank)}
    env: list[Json] = [
        {"name": "WINDLASS_NODE_RANK", "value": str(rank)},
        {
            "name": "WINDLASS_NODE_TOKEN",
            "valueFrom": {
                "secretKeyRef": {"name": names.attempt_name(launch.attempt_id), "key": token_key(rank)},
            },
        },
    ]
    if launch.tpus and len(launch.placement.shares) > 1:
        workers = render_tpu_workers(launch.placement, launch.attempt_id, rank)
        env += [{"name": key, "value": value} for key, value in workers.items()]
    spec = render_pod_spec(launch, share, site, options, env=env)
    spec["hostname"] = name
    spec["subdomain"] = names.attempt_name(launch.attempt_id)
    # The cluster's scheduler has the last word: it knows what we do not, such as a volume that is elsewhere.
    spec["affinity"] = _on_nodes([share.node], "matchFields", "metadata.name")
    queue_labels, queue_annotations = render_queueing(launch, site, options)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **_metadata(name, {**labels, **queue_labels}, site),
            "annotations": {**options.annotations, **queue_annotations, names.TARGET: share.node},
            **_owned_by(owner),
        },
        "spec": spec,
    }


def render_pod_spec(
    launch: Launch, share: NodeShare, site: Site, options: KubernetesOptions, *, env: Sequence[Json]
) -> Json:
    """What pods have in common, whoever creates them."""
    config = site.config
    spec: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": options.service_account is not None,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(launch.grace_s) + _LAST_WORDS_S,
        "tolerations": [*map(_toleration, options.tolerations), *_tolerated_trouble(config.node_loss)],
        "securityContext": _pod_security(config),
        "containers": [_container(launch, share, site, options, env)],
        "volumes": [
            {"name": "windlass", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": _shm(options)},
            *map(_volume, options.volumes),
        ],
    }
    if selector := {**config.node_selector, **options.node_selector}:
        spec["nodeSelector"] = selector
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    if config.queueing is Queueing.VOLCANO:
        spec["schedulerName"] = "volcano"
    return spec


def render_pod_group(launch: Launch, site: Site, options: KubernetesOptions, owner: Json) -> Json:
    """Volcano's way to say that pods start together or not at all."""
    queue = {"queue": options.queue} if options.queue else {}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            **_metadata(names.attempt_name(launch.attempt_id), render_labels(launch, site), site),
            "ownerReferences": [render_owner(owner)],
        },
        "spec": {"minMember": len(launch.placement.shares), **queue},
    }


def render_queueing(launch: Launch, site: Site, options: KubernetesOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations by which a queue system takes plain pods for one gang."""
    group = names.attempt_name(launch.attempt_id)
    if site.config.queueing is Queueing.KUEUE and options.queue:
        labels = {"kueue.x-k8s.io/queue-name": options.queue, "kueue.x-k8s.io/pod-group-name": group}
        return labels, {"kueue.x-k8s.io/pod-group-total-count": str(len(launch.placement.shares))}
    if site.config.queueing is Queueing.VOLCANO:
        return {}, {"scheduling.k8s.io/group-name": group}
    return {}, {}


def render_owner(owner: Json) -> Json:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def _owned_by(owner: Json | None) -> Json:
    return {} if owner is None else {"ownerReferences": [render_owner(owner)]}


def token_key(rank: int) -> str:
    return f"token-{rank}"


def _metadata(name: str, labels: Mapping[str, str], site: Site) -> Json:
    return {"name": name, "namespace": site.config.namespace, "labels": dict(labels)}


def _container(launch: Launch, share: NodeShare, site: Site, options: KubernetesOptions, env: Sequence[Json]) -> Json:
    config = site.config
    container: Json = {
        "name": "node",
        "image": launch.image or config.image,
        "command": [config.python, "-S", "-c", site.bootstrap],  # nothing that is installed there is needed
        "env": [
            {"name": "WINDLASS_SERVER", "value": site.server_url},
            {"name": "WINDLASS_NODE_ATTEMPT", "value": launch.attempt_id},
            *env,
            {"name": "WINDLASS_NODE_HOME", "value": HOME},
            {"name": "WINDLASS_NODE_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            # A user id that the image does not know has no home of its own.
            {"name": "HOME", "value": HOME},
        ],
        "resources": _resources(share, config.tpu_resource if launch.tpus else config.gpu_resource),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": config.security.read_only_root,
        },
        "volumeMounts": [
            {"name": "windlass", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            *map(_mount, options.volumes),
        ],
        # Should the agent not even reach the server, its last lines are all there is to go by.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if options.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in options.secrets]
    return container


def _resources(share: NodeShare, accelerator: str) -> Json:
    """Requests are limits: what one attempt gets, no other can use."""
    amounts: dict[str, str] = {}
    if share.cpus:
        amounts["cpu"] = f"{max(1, round(share.cpus * 1000))}m"
    if share.memory_bytes:
        amounts["memory"] = str(share.memory_bytes)
    if share.gpu_indices:
        amounts[accelerator] = str(len(share.gpu_indices))
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _pod_security(config: KubernetesConfig) -> Json:
    security = config.security
    return {
        "runAsNonRoot": security.uid != 0,
        "runAsUser": security.uid,
        "runAsGroup": security.gid,
        "fsGroup": security.gid,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _shm(options: KubernetesOptions) -> dict[str, Any]:
    """The 64 MB that containers get by default are too little for data loaders."""
    return {"medium": "Memory", **({"sizeLimit": str(options.shm)} if options.shm else {})}


def _volume(volume: Volume) -> Json:
    source: Json
    if volume.claim:
        source = {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    elif volume.host_path:
        source = {"hostPath": {"path": volume.host_path}}
    elif volume.secret:
        source = {"secret": {"secretName": volume.secret}}
    elif volume.config_map:
        source = {"configMap": {"name": volume.config_map}}
    else:
        source = {"emptyDir": {"sizeLimit": str(volume.empty)}}
    return {"name": volume.name, **source}


def _mount(volume: Volume) -> Json:
    return {"name": volume.name, "mountPath": volume.mount, "readOnly": volume.read_only}


def _toleration(toleration: Toleration) -> Json:
    rendered: Json = {"operator": "Exists" if toleration.value is None else "Equal"}
    for name, value in (
        ("key", toleration.key),
        ("value", toleration.value),
        ("effect", toleration.effect),
        ("tolerationSeconds", toleration.seconds),
    ):
        if value is not None:
            rendered[name] = value
    return rendered


def _tolerated_trouble(node_loss_s: float) -> list[Json]:
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": math.ceil(node_loss_s)}
        for key in _NODE_TROUBLE
    ]


def _on_nodes(nodes: Sequence[str], match: str, key: str) -> Json:
    term = {match: [{"key": key, "operator": "In", "values": list(nodes)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
