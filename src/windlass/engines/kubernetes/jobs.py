"""The same pods under an Indexed Job or a JobSet, where the cluster has them: `render_job`, `render_jobset`. Pure.

One template serves all pods, so a pod may land on any of the attempt's machines; which rank it is, it learns from its
index, and its token from a file of that name.
"""

from __future__ import annotations

from windlass.engines.contract import Launch
from windlass.engines.kubernetes import names
from windlass.engines.kubernetes.api import Json
from windlass.engines.kubernetes.manifests import (
    TOKENS,
    Site,
    render_labels,
    render_owner,
    render_pod_spec,
    render_queueing,
)
from windlass.wire.kubernetes import KubernetesOptions, Queueing

HOSTNAME_LABEL = "kubernetes.io/hostname"
# Reads the token of the pod's own rank, then goes on as every pod does.
_PREAMBLE = f"""\
import os
with open("{TOKENS}/token-" + os.environ["WINDLASS_NODE_RANK"]) as file:
    os.environ["WINDLASS_NODE_TOKEN"] = file.read()
"""


def render_job(launch: Launch, site: Site, options: KubernetesOptions, owner: Json) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": names.attempt_name(launch.attempt_id),
            "namespace": site.config.namespace,
            "labels": {**render_labels(launch, site), **_queue(site, options)},
            "ownerReferences": [render_owner(owner)],
        },
        "spec": _job_spec(launch, site, options),
    }


def render_jobset(launch: Launch, site: Site, options: KubernetesOptions, owner: Json) -> Json:
    job = {"spec": _job_spec(launch, site, options)}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": names.attempt_name(launch.attempt_id),
            "namespace": site.config.namespace,
            "labels": {**render_labels(launch, site), **_queue(site, options)},
            "ownerReferences": [render_owner(owner)],
        },
        "spec": {
            # Trying again is ours: a new attempt has new names and new tokens.
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": False},
            "replicatedJobs": [{"name": "nodes", "replicas": 1, "template": job}],
        },
    }


def _job_spec(launch: Launch, site: Site, options: KubernetesOptions) -> Json:
    nodes = len(launch.placement.shares)
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.JOB_INDEX}']"}}
    env = [{"name": "WINDLASS_NODE_RANK", "valueFrom": rank}]
    # All shares of an attempt are alike: a run asks for so many nodes of so much each.
    spec = render_pod_spec(launch, launch.placement.shares[0], site, options, env=env)
    spec["subdomain"] = names.attempt_name(launch.attempt_id)
    spec["affinity"] = _on_any_of(launch)
    spec["volumes"].append({"name": "tokens", "secret": {"secretName": names.attempt_name(launch.attempt_id)}})
    container = spec["containers"][0]
    container["volumeMounts"].append({"name": "tokens", "mountPath": TOKENS, "readOnly": True})
    container["command"][-1] = _PREAMBLE + container["command"][-1]
    _, annotations = render_queueing(launch, site, options) if site.config.queueing is Queueing.VOLCANO else ({}, {})
    return {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": 0,
        "template": {
            "metadata": {
                "labels": {**options.labels, **render_labels(launch, site)},
                "annotations": {**options.annotations, **annotations},
            },
            "spec": spec,
        },
    }


def _on_any_of(launch: Launch) -> Json:
    """On the machines chosen, and as many pods on each as it was chosen for, if that is one."""
    machines = sorted({share.node for share in launch.placement.shares})
    term = {"matchExpressions": [{"key": HOSTNAME_LABEL, "operator": "In", "values": machines}]}
    affinity: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    if len(machines) == len(launch.placement.shares) > 1:
        apart = {"labelSelector": {"matchLabels": {names.ATTEMPT: launch.attempt_id}}, "topologyKey": HOSTNAME_LABEL}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    return affinity


def _queue(site: Site, options: KubernetesOptions) -> dict[str, str]:
    if site.config.queueing is Queueing.KUEUE and options.queue:
        return {"kueue.x-k8s.io/queue-name": options.queue}
    return {}
