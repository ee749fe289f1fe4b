"""Pods on nodes with TPUs, as GKE has them: what they must say to go there, and what they are told of each other.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.resources import Placement
from windlass.engines.kubernetes import names
from windlass.engines.kubernetes.nodes import NodeState
from windlass.wire.kubernetes import KubernetesConfig, KubernetesOptions, Toleration

TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"


def decide_tpu_options(
    options: KubernetesOptions, config: KubernetesConfig, machines: Sequence[NodeState]
) -> KubernetesOptions:
    """With what it takes to go to these machines, if they have TPUs: GKE admits only pods that name type and topology,
    and keeps others out by a taint. What the options say themselves wins."""
    keys = (config.tpu_type_label, TOPOLOGY_LABEL)
    if not machines or any(config.tpu_resource not in machine.allocatable for machine in machines):
        return options
    alike = {
        key: values.pop()
        for key in keys
        if len(values := {machine.labels.get(key, "") for machine in machines}) == 1 and "" not in values
    }
    tolerated = any(toleration.key in (None, config.tpu_resource) for toleration in options.tolerations)
    return options.model_copy(
        update={
            "node_selector": {**alike, **options.node_selector},
            "tolerations": options.tolerations if tolerated else (*options.tolerations, _toleration(config)),
        }
    )


def _toleration(config: KubernetesConfig) -> Toleration:
    return Toleration(key=config.tpu_resource, effect="NoSchedule")


def render_tpu_workers(placement: Placement, attempt_id: str, rank: int) -> dict[str, str]:
    """By which the hosts of a slice find each other: GKE itself tells it only to pods of Jobs."""
    service = names.attempt_name(attempt_id)
    hosts = [f"{names.pod_name(attempt_id, other)}.{service}" for other in range(len(placement.shares))]
    return {"TPU_WORKER_ID": str(rank), "TPU_WORKER_HOSTNAMES": ",".join(hosts)}
