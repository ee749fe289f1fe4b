"""What happens to pods and machines, and what becomes of attempts: on a real control plane with stand-in nodes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.away import await_that
from tests.integration.kubernetes_runs import KubernetesRuns, kubernetes_runs
from windlass.core.errors import LaunchFailed, Unavailable
from windlass.core.exits import ExitReason
from windlass.db.database import sqlite_url
from windlass.engines.contract import Phase, StopKind
from windlass.testing.kubernetes import NAMESPACE, KubernetesCluster

pytestmark = pytest.mark.kubernetes

GOES_ON = ("/bin/sh", "-c", "echo started; exec sleep 600")


@pytest.fixture
def runs(tmp_path: Path, sqlite_template: Path, kubernetes_cluster: KubernetesCluster) -> Iterator[KubernetesRuns]:
    path = tmp_path / "windlass.db"
    shutil.copy(sqlite_template, path)
    with kubernetes_runs(tmp_path, sqlite_url(path), kubernetes_cluster) as found:
        yield found


def test_a_gang_has_one_pod_per_node_and_leaves_nothing(runs: KubernetesRuns) -> None:
    attempt = runs.launch("/bin/sh", "-c", "echo $RANK of $WORLD_SIZE", nodes=("n1", "n2"), workers=2)
    seen = runs.wait_until(attempt, Phase.ENDED)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED
    assert sorted(runs.away.texts(attempt, nodes=2)) == [f"{rank} of 4" for rank in range(4)]
    places = {pod["metadata"]["labels"]["windlass.dev/node-rank"]: pod["spec"]["nodeName"] for pod in runs.pods()}
    assert places == {"0": "n1", "1": "n2"}
    runs.engine.release(attempt)
    core = f"/api/v1/namespaces/{NAMESPACE}"
    await_that(lambda: not runs.pods())
    assert runs.cluster.admin.get(f"{core}/secrets")["items"] == []
    assert runs.cluster.admin.get(f"{core}/services")["items"] == []


def test_what_one_pod_has_goes_with_it(runs: KubernetesRuns) -> None:
    runs.launch(*GOES_ON)
    core = f"/api/v1/namespaces/{NAMESPACE}"
    [pod] = runs.pods()
    for kind in ("secrets", "services"):
        [made] = runs.cluster.admin.get(f"{core}/{kind}")["items"]
        assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]


def test_a_pod_whose_secret_was_never_made_gets_it_from_the_next_engine(
    runs: KubernetesRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the server had been killed right after the pod was there."""

    def killed(_self: object, _launch: object, _tokens: object, _owner: object, book: Callable[[], None]) -> None:
        book()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("windlass.engines.kubernetes.objects.AttemptObjects._lay_tokens", killed)
        with pytest.raises(KeyboardInterrupt):
            runs.launch(*GOES_ON)
    attempt = f"{runs.away.run_id}.1"
    assert len(runs.pods()) == 1
    await_that(lambda: runs.look(attempt).phase is Phase.ABSENT, lambda: runs.describe(attempt))
    assert runs.launch(*GOES_ON) == attempt
    runs.wait_until(attempt, Phase.RUNNING)
    assert len(runs.pods()) == 1


def test_a_policy_keeps_projects_apart(runs: KubernetesRuns) -> None:
    runs.launch(*GOES_ON)
    path = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies/windlass-project-default"
    policy = runs.cluster.admin.get(path)
    assert policy["spec"]["ingress"][0]["from"][0]["podSelector"] == policy["spec"]["podSelector"]


@pytest.mark.torch
def test_ranks_of_two_pods_reduce_together(runs: KubernetesRuns) -> None:
    script = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "t = torch.tensor([float(dist.get_rank() + 1)]); dist.all_reduce(t)\n"
        "print('sum', int(t)); dist.destroy_process_group()"
    )
    attempt = runs.launch("python", "-c", script, nodes=("n1", "n2"))
    seen = runs.wait_until(attempt, Phase.ENDED, timeout_s=120)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED, seen
    assert runs.away.texts(attempt, nodes=2).count("sum 3") == 2


def test_an_evicted_pod_is_preempted_and_so_is_its_gang(runs: KubernetesRuns) -> None:
    attempt = runs.launch(*GOES_ON, nodes=("n1", "n2"))
    runs.wait_until(attempt, Phase.RUNNING)
    pod = runs.pods()[0]["metadata"]["name"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    runs.cluster.admin.create(f"{path}/eviction", eviction)

    def is_over_or_noticed() -> bool:
        seen = runs.look(attempt)
        if seen.notice is not None:  # as the controller does
            runs.engine.stop(attempt, grace_s=2.0, kind=StopKind.PREEMPTED)
        return seen.phase is Phase.ENDED

    await_that(is_over_or_noticed, lambda: runs.describe(attempt))
    exit = runs.look(attempt).exit
    assert exit is not None
    assert exit.reason is ExitReason.PREEMPTED


def test_a_machine_that_dies_takes_its_attempt_and_is_named(runs: KubernetesRuns) -> None:
    doomed = runs.cluster.add_node("doomed")
    try:
        attempt = runs.launch(*GOES_ON, nodes=("doomed", "n2"))
        runs.wait_until(attempt, Phase.RUNNING)
        doomed.kill()
        seen = runs.wait_until(attempt, Phase.ENDED, timeout_s=90)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        assert "doomed" in seen.exit.message
        assert "doomed" not in [node.name for node in runs.engine.inventory()]
        runs.engine.release(attempt)
        await_that(lambda: not runs.pods())
        late = runs.launch(*GOES_ON, nodes=("doomed",), number=2)
        await_that(lambda: runs.look(late).notice is not None, lambda: runs.describe(late))
    finally:
        runs.cluster.remove_node(doomed)


def test_nothing_is_lost_or_started_again_while_the_api_server_is_away(runs: KubernetesRuns) -> None:
    script = "for i in $(seq 1 1000); do echo line $i; sleep 0.1; [ -e $STOP ] && exit 0; done"
    stop = runs.away.folder / "stop"
    attempt = runs.launch("/bin/sh", "-c", script, env={"STOP": str(stop)})
    runs.wait_until(attempt, Phase.RUNNING)
    runs.cluster.kill_part("apiserver")
    second = runs.open_engine()
    try:
        await_that(lambda: not any(watched.is_current for watched in runs.engine.watched))
        with pytest.raises(Unavailable):
            runs.engine.inventory()
        assert runs.look(attempt).phase is Phase.RUNNING  # its node goes on reporting
        unknown = second.poll([attempt])[attempt]
        assert unknown.phase in (Phase.RUNNING, Phase.UNKNOWN)
        with pytest.raises(Unavailable):
            runs.launch("true", number=2)
        stop.touch()
        runs.wait_until(attempt, Phase.ENDED)  # its end is told by the node itself
    finally:
        second.close()
        runs.cluster.start_part("apiserver")
        runs.cluster.wait_ready()
    await_that(lambda: runs.engine._pods.is_current)
    seen = runs.look(attempt)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED
    assert runs.away.texts(attempt).count("line 1") == 1


def test_what_cannot_be_told_is_unknown(runs: KubernetesRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.engines.kubernetes.lives.HEARD_LATELY_S", 2.0)
    attempt = runs.launch(*GOES_ON)
    runs.wait_until(attempt, Phase.RUNNING)
    runs.away.server.kill()  # nothing is heard of nodes
    runs.cluster.kill_part("apiserver")
    try:
        await_that(lambda: runs.look(attempt).phase is Phase.UNKNOWN)
        detail = runs.look(attempt).detail
    finally:
        runs.cluster.start_part("apiserver")
        runs.cluster.wait_ready()
        runs.away.start_server()
    assert detail is not None
    assert "cannot be asked" in detail
    runs.wait_until(attempt, Phase.RUNNING)
    assert runs.away.texts(attempt).count("started") == 1


def test_a_container_over_its_memory_is_out_of_memory(runs: KubernetesRuns) -> None:
    script = "x = bytearray(400 << 20); import time; time.sleep(600)"
    attempt = runs.launch("python", "-c", script, memory_bytes=200 << 20)
    seen = runs.wait_until(attempt, Phase.ENDED)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.OOM


def test_an_image_that_does_not_come_is_a_failed_launch(runs: KubernetesRuns) -> None:
    attempt = runs.launch(*GOES_ON, image="missing.example/image:1")
    await_that(lambda: "ImagePullBackOff" in (runs.look(attempt).detail or ""), lambda: runs.describe(attempt))
    seen = runs.wait_until_given_up(attempt, image_patience=1)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LAUNCH_FAILED
    assert "missing.example/image:1" in seen.exit.message


def test_a_pod_that_finds_no_room_says_why_and_gives_up(runs: KubernetesRuns) -> None:
    attempt = runs.launch(*GOES_ON, memory_bytes=1 << 50)
    await_that(lambda: "Insufficient memory" in (runs.look(attempt).detail or ""), lambda: runs.describe(attempt))
    seen = runs.wait_until_given_up(attempt, schedule_patience=1)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.LAUNCH_FAILED


def test_what_waits_for_room_can_be_cancelled(runs: KubernetesRuns) -> None:
    attempt = runs.launch(*GOES_ON, memory_bytes=1 << 50)
    runs.engine.stop(attempt, grace_s=1.0)
    seen = runs.wait_until(attempt, Phase.ENDED)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.CANCELLED


def test_all_pods_are_made_or_none(runs: KubernetesRuns) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "one", "namespace": NAMESPACE},
        "spec": {"hard": {"pods": "1"}},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    runs.cluster.admin.create(path, quota)
    try:
        await_that(lambda: "hard" in runs.cluster.admin.get(f"{path}/one").get("status", {}))
        with pytest.raises(Unavailable, match="quota"):
            runs.launch(*GOES_ON, nodes=("n1", "n2"))
        await_that(lambda: not runs.pods())
    finally:
        runs.cluster.admin.delete(f"{path}/one")
    await_that(lambda: runs.look(f"{runs.away.run_id}.1").phase is Phase.ABSENT)
    attempt = runs.launch(*GOES_ON, nodes=("n1", "n2"))
    runs.wait_until(attempt, Phase.RUNNING)


def test_a_manifest_that_is_refused_is_a_failed_launch(runs: KubernetesRuns) -> None:
    with pytest.raises(LaunchFailed, match="refused"):
        runs.launch(*GOES_ON, options={"priority_class": "no-such-class"})
    await_that(lambda: not runs.pods())


@pytest.mark.parametrize(("mode", "words"), [("indexed-job", "too old for Indexed Jobs"), ("jobset", "has no JobSets")])
def test_a_cluster_without_what_the_mode_needs_says_so_and_keeps_nothing(
    runs: KubernetesRuns, mode: str, words: str
) -> None:
    engine = runs.open_engine(mode=mode)
    try:
        with pytest.raises(LaunchFailed, match=words):
            runs.launch(*GOES_ON, engine=engine)
    finally:
        engine.close()
    admin = runs.cluster.admin
    assert admin.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")["items"] == []
    assert admin.get(f"/api/v1/namespaces/{NAMESPACE}/services")["items"] == []


def test_a_node_that_hangs_is_removed_after_its_grace(runs: KubernetesRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.engines.kubernetes.engine._LAST_WORDS_S", 1.0)
    attempt = runs.launch(*GOES_ON)
    runs.wait_until(attempt, Phase.RUNNING)
    relay = subprocess.run(["pgrep", "-x", "windlass-relay"], capture_output=True, text=True, check=True)
    own = [pid for pid in relay.stdout.split() if attempt in Path(f"/proc/{pid}/environ").read_text()]
    subprocess.run(["kill", "-STOP", *own], check=True)
    runs.engine.stop(attempt, grace_s=0.5)
    seen = runs.wait_until(attempt, Phase.ENDED)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.CANCELLED
    assert "by force" in seen.exit.message


def test_a_pod_that_somebody_deletes_by_force_is_not_made_again(runs: KubernetesRuns) -> None:
    attempt = runs.launch(*GOES_ON)
    runs.wait_until(attempt, Phase.RUNNING)
    runs.cluster.admin.delete(f"/api/v1/namespaces/{NAMESPACE}/pods", grace_s=0)
    seen = runs.wait_until(attempt, Phase.ENDED)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.PREEMPTED
    runs.launch(*GOES_ON)
    assert not runs.pods()
