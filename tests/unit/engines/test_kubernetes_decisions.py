"""What pods and machines mean for an attempt, what nodes offer, and what specs may ask for. Pure."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from windlass.agent.remedy import NODE
from windlass.core.errors import LaunchFailed
from windlass.core.exits import ExitReason
from windlass.engines.contract import NodeReport
from windlass.engines.kubernetes.lives import Patience, decide_life, decide_life_unseen
from windlass.engines.kubernetes.nodes import (
    NodeState,
    decide_inventory,
    parse_foreign_pod,
    parse_node,
    parse_quantity,
)
from windlass.engines.kubernetes.options import decide_options
from windlass.engines.kubernetes.pods import PodState, parse_pod
from windlass.engines.remote.observing import Life, NodeLife
from windlass.wire.kubernetes import KubernetesConfig, KubernetesOptions

NOW = 1_700_000_000.0
PATIENCE = Patience(schedule_s=600.0, image_s=300.0)
SILENT = NodeReport(node_rank=0)
HEARD = NodeReport(node_rank=0, reported_at=NOW - 100)
READY = NodeState(
    name="n1", ready=True, ready_since=1.0, cordoned=False, leaving=None, taints=(), labels={}, allocatable={}
)
NOT_HEARD_OF = replace(READY, ready=None)


def pod(status: dict[str, Any], *, node: str | None = "n1", **metadata: Any) -> PodState:
    labels = {"windlass.dev/attempt": "r-bcdfghjkmn.1", "windlass.dev/node-rank": "0"}
    found = parse_pod(
        {
            "metadata": {"name": "wl-0", "labels": labels, "creationTimestamp": "2023-11-14T22:13:20Z", **metadata},
            "spec": {"nodeName": node} if node else {},
            "status": status,
        }
    )
    assert found is not None
    return found


def ended(code: int, why: str, **more: Any) -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": why, "finishedAt": "2023-11-14T22:13:30Z", "message": "last words"}
    return {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}], **more}


def waiting(reason: str) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "why"}}}]}


def look(
    status: dict[str, Any],
    report: NodeReport = HEARD,
    machine: NodeState | None = READY,
    *,
    now: float = NOW,
    **more: Any,
) -> NodeLife:
    return decide_life(report, pod(status, **more), None, machine, PATIENCE, now=now)


DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "make room"}]


@pytest.mark.parametrize(
    ("status", "report", "reason", "words"),
    [
        (ended(137, "OOMKilled"), HEARD, ExitReason.OOM, "memory limit"),
        (ended(1, "Error"), HEARD, ExitReason.LOST, "exited with 1 and left no outcome: last words"),
        (ended(137, "Error"), HEARD, ExitReason.LOST, "killed by signal 9"),
        (ended(127, "StartError"), SILENT, ExitReason.LAUNCH_FAILED, "before it reached the server: last words"),
        (ended(143, "Error", reason="Evicted", message="disk"), HEARD, ExitReason.PREEMPTED, "from node n1: disk"),
        (ended(143, "Error", conditions=DISRUPTED), HEARD, ExitReason.PREEMPTED, "make room"),
        ({"phase": "Failed", "reason": "NodeLost"}, HEARD, ExitReason.LOST, "node n1 is lost"),
        ({"phase": "Failed", "reason": "OutOfcpu", "message": "none"}, SILENT, ExitReason.LOST, "turned pod wl-0 away"),
        ({"phase": "Failed", "reason": "Strange"}, SILENT, ExitReason.LAUNCH_FAILED, "Strange"),
    ],
)
def test_how_a_pod_ended_is_translated(
    status: dict[str, Any], report: NodeReport, reason: ExitReason, words: str
) -> None:
    life = look(status, report)
    assert (life.life, life.reason) == (Life.GONE, reason)
    assert words in life.message


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError", "RunContainerError"])
def test_a_container_that_does_not_start_is_waited_for_and_then_given_up(reason: str) -> None:
    soon = look(waiting(reason), SILENT, now=NOW + 10)
    assert soon.life is Life.WAITING
    assert f"{reason}: why" in soon.message
    late = look(waiting(reason), SILENT, now=NOW + 301)
    assert (late.life, late.reason) == (Life.GONE, ExitReason.LAUNCH_FAILED)


def test_a_name_that_is_no_image_is_not_waited_for() -> None:
    assert look(waiting("InvalidImageName"), SILENT).reason is ExitReason.LAUNCH_FAILED


def test_a_pod_without_a_place_says_why_and_is_given_up() -> None:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
    status = {"phase": "Pending", "conditions": conditions}
    assert "0/3 nodes" in look(status, SILENT, None, node=None, now=NOW + 10).message
    assert look(status, SILENT, None, node=None, now=NOW + 601).reason is ExitReason.LAUNCH_FAILED


def test_a_silent_machine_is_unknown_until_its_pod_is_given_up() -> None:
    running = {"phase": "Running"}
    assert look(running, HEARD, NOT_HEARD_OF).life is Life.UNKNOWN
    lost = look(running, HEARD, NOT_HEARD_OF, deletionTimestamp="2023-11-14T22:13:40Z")
    assert (lost.life, lost.reason, lost.message) == (Life.GONE, ExitReason.LOST, "node n1 is lost")
    assert lost.trouble == NODE
    rarely = NodeReport(node_rank=0, reported_at=NOW - 25, beat_s=10.0)
    assert look(running, rarely, NOT_HEARD_OF).life is Life.ALIVE
    lately = NodeReport(node_rank=0, reported_at=NOW - 1)
    assert look(running, lately, NOT_HEARD_OF).life is Life.ALIVE


@pytest.mark.parametrize("machine", [NOT_HEARD_OF, replace(READY, cordoned=True), None])
def test_a_pod_that_waits_for_a_machine_that_takes_none_is_moved(machine: NodeState | None) -> None:
    pinned = {"annotations": {"windlass.dev/node": "n1"}}
    life = look({"phase": "Pending"}, SILENT, machine, node=None, **pinned)
    assert life.life is Life.WAITING
    assert life.notice is not None
    assert look({"phase": "Pending"}, SILENT, READY, node=None, **pinned).notice is None


def test_a_deleted_pod_is_a_notice_with_its_deadline() -> None:
    life = look({"phase": "Running"}, deletionTimestamp="2023-11-14T22:13:40Z")
    assert life.life is Life.ALIVE
    assert life.notice is not None
    assert life.notice.deadline == NOW + 20


@pytest.mark.parametrize(
    ("taint", "deadline"),
    [
        ("ToBeDeletedByClusterAutoscaler", None),
        ("cloud.google.com/impending-node-termination", NOW + 25),
        ("aws-node-termination-handler/spot-itn", NOW + 110),
    ],
)
def test_a_machine_that_is_going_away_is_a_notice(taint: str, deadline: float | None) -> None:
    taints = [{"key": taint, "effect": "NoSchedule", "timeAdded": "2023-11-14T22:13:20Z"}]
    life = look({"phase": "Running"}, machine=node(spec={"taints": taints}))
    assert life.notice is not None
    assert "n1" in life.notice.message
    assert life.notice.deadline == deadline


@pytest.mark.parametrize(
    ("machine", "reason"), [(READY, ExitReason.PREEMPTED), (NOT_HEARD_OF, ExitReason.LOST), (None, ExitReason.LOST)]
)
def test_a_pod_that_is_gone_is_explained_by_its_machine(machine: NodeState | None, reason: ExitReason) -> None:
    life = decide_life(HEARD, None, pod({"phase": "Running"}), machine, PATIENCE, now=NOW)
    assert (life.life, life.reason) == (Life.GONE, reason)
    assert "n1" in life.message


def test_while_the_cluster_cannot_be_asked_only_reports_count() -> None:
    lately = NodeReport(node_rank=0, reported_at=NOW - 1)
    assert decide_life_unseen(lately, "it is away", now=NOW).life is Life.ALIVE
    assert decide_life_unseen(HEARD, "it is away", now=NOW).life is Life.UNKNOWN
    assert "it is away" in decide_life_unseen(SILENT, "it is away", now=NOW).message


def test_pods_of_a_job_know_their_rank_by_index() -> None:
    index = {"batch.kubernetes.io/job-completion-index": "3"}
    metadata = {"name": "x", "labels": {"windlass.dev/attempt": "a"}, "creationTimestamp": "2023-11-14T22:13:20Z"}
    for marks in ({"annotations": index}, {"labels": {**metadata["labels"], **index}}):  # type: ignore[dict-item]
        found = parse_pod({"metadata": {**metadata, **marks}, "spec": {}, "status": {"phase": "Pending"}})
        assert found is not None
        assert found.node_rank == 3
    assert parse_pod({"metadata": metadata, "spec": {}, "status": {}}) is None


# ---- nodes -------------------------------------------------------------------------------------------------------


def node(name: str = "n1", *, spec: dict[str, Any] | None = None, **labels: str) -> NodeState:
    allocatable = {"cpu": "7910m", "memory": "32Gi", "nvidia.com/gpu": "4"}
    return parse_node(
        {
            "metadata": {"name": name, "labels": {"pool": "gpu", "nvidia.com/gpu.product": "H100", **labels}},
            "spec": spec or {},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )


def inventory(
    *nodes: NodeState, foreign: list[dict[str, Any]] | None = None, tolerated: tuple[str, ...] = ()
) -> list[Any]:
    pods = [found for item in foreign or [] if (found := parse_foreign_pod(item))]
    return decide_inventory(
        nodes,
        pods,
        engine="k8s",
        selector={"pool": "gpu"},
        tolerated=tolerated,
        gpu_resource="nvidia.com/gpu",
        gpu_type_label="nvidia.com/gpu.product",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("250m", "0.25"), ("2", "2"), ("16Gi", str(16 << 30)), ("1e3", "1000"), ("5k", "5000"), ("1500M", "1500000000")],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


def test_what_others_have_asked_for_is_not_offered() -> None:
    asked = {"resources": {"requests": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}}}
    first = {"resources": {"requests": {"cpu": "3"}}}
    theirs = {
        "spec": {"nodeName": "n1", "containers": [asked, asked], "initContainers": [first], "overhead": {"cpu": "10m"}},
        "status": {"phase": "Running"},
    }
    done = {"spec": {"nodeName": "n1", "containers": [asked]}, "status": {"phase": "Succeeded"}}
    (found,) = inventory(node(), foreign=[theirs, done])
    assert (found.cpus, found.memory_bytes, found.gpus, found.gpu_type) == (4.9, 28 << 30, 2, "H100")


def test_nodes_that_take_no_pods_are_left_out() -> None:
    tainted = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
    nodes = [
        node("cordoned", spec={"unschedulable": True}),
        node("elsewhere", pool="cpu"),
        node("going", spec={"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}),
        replace(node("down"), ready=None),
        node("tainted", spec=tainted),
        node("fine", spec={"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}),
    ]
    assert [found.name for found in inventory(*nodes)] == ["fine"]
    assert [found.name for found in inventory(*nodes, tolerated=("gpu",))] == ["fine", "tainted"]


# ---- options -----------------------------------------------------------------------------------------------------


def config(**changes: Any) -> KubernetesConfig:
    return KubernetesConfig(type="kubernetes", **changes)


def test_a_spec_adds_to_the_defaults_and_wins() -> None:
    defaults = {
        "node_selector": {"pool": "a", "zone": "1"},
        "secrets": ["base"],
        "volumes": [{"name": "data", "mount": "/data", "claim": "one"}],
        "priority_class": "low",
    }
    given = {
        "node_selector": {"pool": "b"},
        "volumes": [{"name": "data", "mount": "/data", "claim": "two"}],
        "tolerations": [{"key": "spot"}],
    }
    merged = decide_options(config(defaults=defaults), given)
    assert merged.node_selector == {"pool": "b", "zone": "1"}
    assert [volume.claim for volume in merged.volumes] == ["two"]
    assert (merged.secrets, merged.priority_class) == (("base",), "low")
    assert [toleration.key for toleration in merged.tolerations] == ["spot"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"service_account": "admin"}, "service account 'admin' may not be used by specs; allowed: trainer"),
        ({"secrets": ["root-password"]}, "Secret 'root-password'"),
        ({"volumes": [{"name": "x", "mount": "/x", "secret": "root-password"}]}, "Secret 'root-password'"),
        ({"volumes": [{"name": "x", "mount": "/x", "host_path": "/"}]}, "folder of nodes '/'"),
        ({"volumes": [{"name": "x", "mount": "/x", "host_path": "/mnt/../etc"}]}, "'/mnt/../etc'"),
        ({"volumes": [{"name": "x", "mount": "/x", "host_path": "/mntother"}]}, "'/mntother'"),
    ],
)
def test_what_the_operator_has_not_allowed_is_refused(given: dict[str, Any], words: str) -> None:
    security = {"service_accounts": ["trainer"], "host_paths": ["/mnt"]}
    with pytest.raises(LaunchFailed) as refused:
        decide_options(config(security=security), given)
    assert words in str(refused.value)
    assert decide_options(config(security=security), {"service_account": "trainer"}).service_account == "trainer"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"volumes": [{"name": "x", "mount": "/x"}]}, "one of claim, host_path"),
        ({"volumes": [{"name": "tmp", "mount": "/x", "empty": 1}]}, "a volume of Windlass itself"),
        ({"labels": {"windlass.dev/project": "other"}}, "are set by Windlass"),
        ({"tolerations": [{"key": "x", "seconds": 5}]}, "goes with `effect: NoExecute`"),
        ({"node_selector": {"bad key": "x"}}, "pattern"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        KubernetesOptions(**given)
