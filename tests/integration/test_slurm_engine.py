"""The Slurm engine against a real cluster: what jobs are given, gangs, stopping, and what Slurm does by itself."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.slurm_runs import SlurmRuns, is_running, wait_for
from tests.integration.test_spot import aws, metadata_service
from windlass.agent.remedy import NODE
from windlass.core.errors import LaunchFailed
from windlass.core.exits import ExitReason
from windlass.engines.contract import Phase, StopKind
from windlass.engines.slurm.plans import token_of
from windlass.testing.slurm import SlurmCluster

pytestmark = pytest.mark.slurm


_COUNTS_SIGNALS = """
import signal, time
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(time.time()))
print('ready', flush=True)
while not got: time.sleep(0.05)
time.sleep(1.5)
print('times', len(got), flush=True)
"""


_STAND_IN = """#!/bin/sh
shift
while [ "$1" = --bind ]; do shift 2; done
PATH=/usr/bin:/bin:$1
export PATH
shift
exec "$@"
"""


@pytest.fixture
def runs(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmRuns]:
    runs = SlurmRuns(slurm_cluster, tmp_path)
    yield runs
    runs.clean_up()


class TestWhatAJobIsGiven:
    def test_secrets_reach_ranks_but_not_the_disk(self, runs: SlurmRuns) -> None:
        secret = "hush-4711, with a comma"
        expected = hashlib.sha256(secret.encode()).hexdigest()
        text = f'[ "$(printf %s "$KEY" | sha256sum | cut -c-64)" = {expected} ] && echo same; echo "it is <$KEY>"'
        attempt_id = runs.shell(text, secrets={"KEY": secret})
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.COMPLETED
        assert " o same" in runs.log(attempt_id)
        assert "it is <" in runs.log(attempt_id)
        written = [path for path in runs.shared.rglob("*") if path.is_file() and b"hush-4711" in path.read_bytes()]
        assert written == []

    @pytest.mark.skipif(os.getuid() != 0, reason="fake devices take root")
    def test_gpus_are_those_that_slurm_allotted(self, runs: SlurmRuns) -> None:
        first = runs.shell("echo gpus=$CUDA_VISIBLE_DEVICES; sleep 600", gpus=2)
        runs.wait_for_text(first, "gpus=0,1")
        second = runs.shell("echo gpus=$CUDA_VISIBLE_DEVICES", gpus=2)
        runs.wait(second)
        assert "gpus=2,3" in runs.log(second)

    def test_without_gpus_none_are_seen(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell('echo "gpus=<$CUDA_VISIBLE_DEVICES>"')
        runs.wait(attempt_id)
        assert "gpus=<>" in runs.log(attempt_id)

    def test_the_rest_of_their_environment_is_the_jobs(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell(
            'echo "home=<$HOME> lang=<$LANG> ours=<$WINDLASS_SECRETS>"', host_env={"HOME": "/other"}
        )
        runs.wait(attempt_id)
        home, lang = os.environ["HOME"], os.environ.get("LANG") or "C.UTF-8"
        assert f"home=<{home}> lang=<{lang}> ours=<>" in runs.log(attempt_id)

    def test_the_jobs_own_variables_do_not_mislead_frameworks(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("env | grep ^SLURM_ | sort; echo done")
        runs.wait(attempt_id)
        names = {word.partition("=")[0] for word in runs.log(attempt_id).split() if word.startswith("SLURM_")}
        assert "SLURM_JOB_ID" in names
        assert names <= {"SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_JOB_PARTITION"}

    def test_a_job_that_slurm_refuses_fails_with_its_words(self, runs: SlurmRuns) -> None:
        with pytest.raises(LaunchFailed, match="invalid partition"):
            runs.shell("true", options={"partition": "nosuch"})

    def test_a_job_waits_and_says_for_what(self, runs: SlurmRuns) -> None:
        first = runs.shell("sleep 600", cpus=8)
        runs.wait(first, Phase.RUNNING)
        second = runs.shell("echo at last", cpus=8)
        wait_for(lambda: (runs.look(second).detail or "").startswith("pending in Slurm: "), "a reason for waiting")
        assert runs.look(second).phase is Phase.STARTING
        runs.engine.stop(first, grace_s=0.0)
        assert runs.wait(second).exit is not None
        assert "at last" in runs.log(second)


class TestImages:
    def test_an_image_is_run_by_apptainer_with_its_own_search_path(
        self, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stand-in takes apptainer's arguments, and runs the command outside of any container."""
        stand_in = tmp_path / "bin" / "apptainer"
        stand_in.parent.mkdir()
        stand_in.write_text(_STAND_IN)
        stand_in.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
        runs = SlurmRuns(slurm_cluster, tmp_path, container_runtime="apptainer")
        try:
            attempt_id = runs.shell('echo "path=$PATH"', image="/images/torch.sif", nodes=("n1", "n2"))
            seen = runs.wait(attempt_id)
            assert seen.exit is not None
            assert seen.exit.reason is ExitReason.COMPLETED, seen.exit
            assert "path=/usr/bin:/bin:/images/torch.sif" in runs.log(attempt_id, rank=1, node=1)
        finally:
            runs.clean_up()


class TestGangs:
    def test_ranks_are_numbered_in_the_placements_order(self, runs: SlurmRuns) -> None:
        """Slurm has an order of its own."""
        attempt_id = runs.shell(
            "echo rank=$RANK world=$WORLD_SIZE local=$LOCAL_RANK master=$MASTER_ADDR:$MASTER_PORT hosts=$SM_HOSTS",
            nodes=("n3", "n1"),
            workers=2,
        )
        assert runs.wait(attempt_id).exit is not None
        lines = [runs.log(attempt_id, rank=rank, node=rank // 2) for rank in range(4)]
        for rank, line in enumerate(lines):
            assert f"rank={rank} world=4 local={rank % 2}" in line
        assert len({line.partition("master=")[2].split()[0] for line in lines}) == 1
        assert runs.status(attempt_id, 0)["job"]["job_id"] == runs.job_id(attempt_id)
        plans = [json.loads((runs.folder(attempt_id) / f"node-{rank}" / "plan.json").read_text()) for rank in (0, 1)]
        assert [plan["node_name"] for plan in plans] == ["n3", "n1"]

    @pytest.mark.torch
    @pytest.mark.timeout(240)
    def test_two_nodes_reduce_over_gloo(self, runs: SlurmRuns) -> None:
        script = runs.script(
            "reduce.py",
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "total = torch.tensor([float(dist.get_rank() + 1)])\n"
            "dist.all_reduce(total)\n"
            "print('total', total.item(), flush=True)\n"
            "dist.destroy_process_group()\n",
        )
        attempt_id = runs.start("python", script, nodes=("n1", "n2"), workers=2)
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.COMPLETED, seen.exit
        assert all("total 10.0" in runs.log(attempt_id, rank=rank, node=rank // 2) for rank in range(4))

    def test_when_a_node_fails_the_others_are_stopped(self, runs: SlurmRuns) -> None:
        fails = "until [ -e ready ]; do sleep 0.05; done; exit 7"
        goes_on = 'trap "echo told; exit 0" TERM; touch ready; while :; do sleep 0.1; done'
        text = f'if [ "$RANK" = 1 ]; then {fails}; fi; {goes_on}'
        attempt_id = runs.shell(text, nodes=("n1", "n2"))
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert (seen.exit.reason, seen.exit.exit_code, seen.exit.rank) == (ExitReason.EXIT_CODE, 7, 1)
        assert "told" in runs.log(attempt_id)

    def test_a_dead_supervisor_ends_the_gang(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("sleep 600", nodes=("n1", "n2"))
        runs.wait(attempt_id, Phase.RUNNING)
        os.kill(runs.status(attempt_id, 1)["pid"], 9)
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        wait_for(lambda: not runs.processes(), "its ranks to be gone")

    def test_a_node_that_does_not_come_is_named(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
        runs = SlurmRuns(slurm_cluster, tmp_path, rendezvous_s=1.0)
        try:
            launch = runs.render("/bin/true", nodes=("n1", "n2"))
            runs.engine.launch(launch)
            (runs.folder(launch.attempt_id) / "node-1" / "outcome.json").write_text("{}")  # taken out of the game
            outcome = runs.folder(launch.attempt_id) / "node-0" / "outcome.json"
            wait_for(outcome.exists, "the first node to give up")
            assert "no sign of n2" in json.loads(outcome.read_text())["message"]
        finally:
            runs.clean_up()


class TestStopping:
    def test_ranks_are_told_once_and_have_their_grace(self, runs: SlurmRuns) -> None:
        """Slurm itself would signal every process of the job; only supervisors are to do that."""
        script = runs.script("count.py", _COUNTS_SIGNALS)
        attempt_id = runs.start("python3", script)
        runs.wait_for_text(attempt_id, "ready")
        runs.engine.stop(attempt_id, grace_s=30.0)
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED
        assert "times 1" in runs.log(attempt_id)

    def test_a_warned_stop_is_a_preemption(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("sleep 600")
        runs.wait(attempt_id, Phase.RUNNING)
        runs.engine.stop(attempt_id, grace_s=5.0, kind=StopKind.PREEMPTED)
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.PREEMPTED

    def test_a_waiting_job_is_taken_back(self, runs: SlurmRuns) -> None:
        first = runs.shell("sleep 600", cpus=8)
        runs.wait(first, Phase.RUNNING)
        second = runs.shell("echo never", cpus=8)
        wait_for(lambda: runs.cluster.job_state(runs.job_id(second)) == "PENDING", "the second job to wait")
        runs.engine.stop(second, grace_s=5.0)
        seen = runs.wait(second)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED
        wait_for(lambda: runs.cluster.job_state(runs.job_id(second)) == "CANCELLED", "Slurm to forget it")

    def test_it_works_while_slurmctld_is_down(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("sleep 600")
        runs.wait(attempt_id, Phase.RUNNING)
        runs.cluster.end("slurmctld")  # killed, it would give its job ids away again
        runs.engine.stop(attempt_id, grace_s=5.0)
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED


class TestWhatSlurmDoes:
    def test_a_preempted_job_is_warned_and_preempted(self, runs: SlurmRuns) -> None:
        text = 'trap "echo saving; exit 0" TERM; echo ready; while :; do sleep 0.1; done'
        attempt_id = runs.shell(text, nodes=("n1", "n2"), cpus=8)
        runs.wait_for_text(attempt_id, "ready")
        runs.wait(attempt_id, Phase.RUNNING)
        sbatch = ("sbatch", "--parsable", "-p", "high", "-N2", "--ntasks-per-node=8", "-w", "n1,n2")
        runs.cluster.ask(*sbatch, "--output=/dev/null", "--wrap", "sleep 1")
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.PREEMPTED, seen.exit
        assert "saving" in runs.log(attempt_id)

    def test_a_job_cancelled_by_hand_is_lost_and_says_so(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("sleep 600")
        runs.wait(attempt_id, Phase.RUNNING)
        runs.cluster.ask("scancel", runs.job_id(attempt_id))
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        assert "cancelled in Slurm" in seen.exit.message

    def test_a_waiting_job_cancelled_by_hand_is_lost(self, runs: SlurmRuns) -> None:
        first = runs.shell("sleep 600", cpus=8)
        runs.wait(first, Phase.RUNNING)
        second = runs.shell("echo never", cpus=8)
        runs.cluster.ask("scancel", runs.job_id(second))
        seen = runs.wait(second)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        assert seen.started_at is None

    def test_a_failed_node_is_named_and_its_ranks_are_fenced(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("sleep 600", nodes=("n1", "n2"))
        runs.wait(attempt_id, Phase.RUNNING)
        rank_pid = runs.status(attempt_id, 1)["ranks"][0]["pid"]
        runs.cluster.kill("n2")
        runs.cluster.ask("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        began = time.monotonic()
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        assert "node n2 failed" in seen.exit.message
        assert (seen.exit.trouble, seen.exit.node_rank) == (NODE, 1)
        assert time.monotonic() - began < 20
        wait_for(lambda: not is_running(rank_pid), "the rank on the failed node to be gone")
        assert runs.look(attempt_id).exit == seen.exit

    def test_an_attempt_does_not_wait_for_a_node_that_went_down_before_it_began(self, runs: SlurmRuns) -> None:
        runs.cluster.ask("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        attempt_id = runs.shell("sleep 600", nodes=("n1", "n2"))
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        assert "node n2 went down before its job began" in seen.exit.message
        assert (seen.exit.trouble, seen.exit.node_rank) == (NODE, 1)
        wait_for(lambda: not runs.cluster.ask("squeue", "-h").strip(), "its job to be cancelled")

    def test_a_time_limit_of_the_spec_ends_it_with_grace(self, runs: SlurmRuns) -> None:
        launch = runs.render("/bin/sh", "-c", "sleep 600", options={"time": "00:00:06"})
        runs.engine.launch(launch)
        seen = runs.wait(launch.attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.TIMEOUT

    def test_a_requeued_job_does_not_run_the_attempt_again(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
        runs = SlurmRuns(slurm_cluster, tmp_path, requeue=True)
        try:
            attempt_id = runs.shell("echo started; sleep 600")
            runs.wait(attempt_id, Phase.RUNNING)
            job_id = runs.job_id(attempt_id)
            runs.cluster.ask("scontrol", "requeue", job_id)
            seen = runs.wait(attempt_id)
            assert seen.exit is not None
            assert seen.exit.reason in (ExitReason.LOST, ExitReason.PREEMPTED)
            assert runs.log(attempt_id).count(" o started") == 1
        finally:
            runs.clean_up()


class TestWithoutSteps:
    """A single node whose supervisor is the batch script itself."""

    @pytest.fixture
    def runs(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmRuns]:
        runs = SlurmRuns(slurm_cluster, tmp_path, single_node_steps=False)
        yield runs
        runs.clean_up()

    def test_it_runs_with_its_gpus_and_is_told_to_stop_once(self, runs: SlurmRuns) -> None:
        script = runs.script("count.py", _COUNTS_SIGNALS)
        attempt_id = runs.start("python3", script, gpus=1)
        runs.wait_for_text(attempt_id, "ready")
        assert "srun" not in (runs.folder(attempt_id) / "job.sh").read_text()
        runs.engine.stop(attempt_id, grace_s=30.0)
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED
        assert "times 1" in runs.log(attempt_id)

    def test_a_preemption_is_warned_of_and_recorded(self, runs: SlurmRuns) -> None:
        text = 'trap "echo saving; exit 0" TERM; echo ready; while :; do sleep 0.1; done'
        attempt_id = runs.shell(text, cpus=8)
        runs.wait_for_text(attempt_id, "ready")
        sbatch = ("sbatch", "--parsable", "-p", "high", "-c8", "-w", "n1", "--output=/dev/null")
        runs.cluster.ask(*sbatch, "--wrap", "sleep 1")
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.PREEMPTED
        assert "saving" in runs.log(attempt_id)

    def test_a_dead_supervisor_is_lost_and_leaves_nothing(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("sleep 600")
        runs.wait(attempt_id, Phase.RUNNING)
        os.kill(runs.status(attempt_id)["pid"], 9)
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        wait_for(lambda: not runs.processes(), "its ranks to be gone")


class TestNodes:
    def test_fit_nodes_are_offered_with_their_gpus(self, runs: SlurmRuns) -> None:
        nodes = {node.name: node for node in runs.engine.inventory()}
        assert set(nodes) == {"n1", "n2", "n3"}
        assert (nodes["n1"].cpus, nodes["n1"].gpus, nodes["n1"].gpu_type) == (8.0, 4, "fake")
        assert nodes["n1"].engine == "hpc"

    def test_what_others_hold_is_not_offered_and_what_we_hold_is(self, runs: SlurmRuns) -> None:
        ours = runs.shell("sleep 600", cpus=2, gpus=1)
        runs.wait(ours, Phase.RUNNING)
        sbatch = ("sbatch", "--parsable", "-w", "n1", "-c3", "--gres=gpu:2", "--output=/dev/null")
        job_id = runs.cluster.ask(*sbatch, "--wrap", "sleep 600").strip()
        wait_for(lambda: runs.cluster.job_state(job_id) == "RUNNING", "the other job to run")
        runs.engine.close()
        runs.engine = runs.open_engine()  # one that has never been asked about the attempt: another controller's
        runs.engine.inventory()
        wait_for(lambda: runs.engine._watcher.tables is not None, "Slurm's tables")
        node = next(node for node in runs.engine.inventory() if node.name == "n1")
        assert node.cpus == 8 - 3
        assert node.gpus == 2

    def test_drained_nodes_are_not_offered(self, runs: SlurmRuns) -> None:
        runs.cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
        runs.engine.close()
        runs.engine = runs.open_engine(nodes=("n[12]",))
        assert [node.name for node in runs.engine.inventory()] == ["n1"]

    def test_a_draining_node_gives_notice_if_wanted(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
        runs = SlurmRuns(slurm_cluster, tmp_path, drain_is_notice=True)
        try:
            attempt_id = runs.shell("sleep 600", nodes=("n2",))
            runs.wait(attempt_id, Phase.RUNNING)
            runs.cluster.ask("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
            wait_for(lambda: runs.look(attempt_id).notice is not None, "the notice")
            assert runs.look(attempt_id).phase is Phase.RUNNING
        finally:
            runs.clean_up()


def test_jobs_of_another_server_are_none_of_ours(tmp_path: Path) -> None:
    assert token_of(tmp_path / "a", "r-x.1") != token_of(tmp_path / "b", "r-x.1")


def test_a_clouds_notice_is_a_warned_preemption(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with metadata_service(aws(action="terminate")) as url:
        monkeypatch.setenv("WINDLASS_SPOT_ENDPOINT", url)
        monkeypatch.setenv("WINDLASS_SPOT_EVERY_S", "0.2")
        runs = SlurmRuns(slurm_cluster, tmp_path, spot_notices="aws")
        try:
            attempt_id = runs.shell('trap "echo saving; exit 0" TERM; echo ready; while :; do sleep 0.1; done')
            seen = runs.wait(attempt_id)
            assert seen.exit is not None
            assert seen.exit.reason is ExitReason.PREEMPTED
        finally:
            runs.clean_up()
