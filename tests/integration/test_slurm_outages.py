"""Slurm away, servers killed in the middle of a submission, jobs that slurmctld forgot: nothing is guessed, nothing is
started twice. Each test has a cluster of its own, which it may break."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.slurm_runs import RUN_ID, SlurmRuns, temporary_folder, wait_for
from windlass.agent.ranks import fork
from windlass.core.errors import Unavailable
from windlass.core.exits import ExitReason
from windlass.engines.contract import Observation, Phase
from windlass.engines.slurm.plans import token_of
from windlass.testing.slurm import SlurmCluster, SlurmUnavailable, running_slurm

pytestmark = pytest.mark.slurm


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    try:
        with running_slurm(nodes=2) as cluster:
            yield cluster
    except SlurmUnavailable as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Slurm: {reason}")


@pytest.fixture
def runs(cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmRuns]:
    runs = SlurmRuns(cluster, tmp_path)
    yield runs
    runs.clean_up()


class TestSlurmctldAway:
    def test_nothing_is_lost_or_started_again(self, runs: SlurmRuns) -> None:
        going = runs.shell("echo started; sleep 600", cpus=8)
        ending = runs.shell("echo started; until [ -e end ]; do sleep 0.1; done", nodes=("n2",), cpus=8)
        runs.wait(going, Phase.RUNNING)
        runs.wait(ending, Phase.RUNNING)
        waiting = runs.shell("echo started", cpus=8)
        runs.wait(waiting, Phase.STARTING)
        wait_for(lambda: runs.cluster.job_state(runs.job_id(waiting)) == "PENDING", "the third job to wait")
        state = runs.cluster.folder / "state" / "job_state"
        since = time.time()
        wait_for(lambda: state.exists() and state.stat().st_mtime > since, "slurmctld to have written its jobs to disk")
        runs.cluster.kill("slurmctld")
        runs.wait(waiting, Phase.UNKNOWN)
        assert "Slurm does not answer" in (runs.look(waiting).detail or "")
        assert runs.look(going).phase is Phase.RUNNING
        (runs.work / "end").touch()
        seen = runs.wait(ending)  # its folder tells; nobody has to be asked
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.COMPLETED
        with pytest.raises(Unavailable):
            runs.shell("echo started", nodes=("n2",))
        with pytest.raises(Unavailable):
            runs.engine.inventory()
        runs.cluster.start_slurmctld()
        wait_for(lambda: runs.look(waiting).phase is Phase.STARTING, "Slurm to be heard again")
        assert runs.look(going).phase is Phase.RUNNING
        runs.engine.stop(going, grace_s=1.0)
        runs.wait(going)
        assert runs.wait(waiting).exit is not None
        for attempt_id in (going, ending, waiting):
            assert runs.log(attempt_id).count(" o started") == 1

    def test_a_job_that_slurmctld_forgot_is_lost_and_its_id_is_not_trusted(self, runs: SlurmRuns) -> None:
        first = runs.shell("sleep 600", cpus=8)
        runs.wait(first, Phase.RUNNING)
        waiting = runs.shell("echo started", cpus=8)
        wait_for(lambda: runs.cluster.job_state(runs.job_id(waiting)) == "PENDING", "the second job to wait")
        job_id = runs.job_id(waiting)
        runs.cluster.kill("slurmctld")
        for path in (runs.cluster.folder / "state").glob("*job*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in (runs.cluster.folder / "state").glob("hash.*"):
            shutil.rmtree(path)
        runs.cluster.start_slurmctld()
        wait_for(lambda: "UP" in runs.cluster.ask("scontrol", "ping", check=False), "slurmctld to answer")
        foreign = ""
        while foreign != job_id:
            sbatch = ("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "sleep 600")
            foreign = runs.cluster.ask(*sbatch).strip()
            assert int(foreign) <= int(job_id)
        seen = runs.wait(waiting)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.LOST
        assert f"does not know its job {job_id}" in seen.exit.message
        assert seen.started_at is None
        also = runs.wait(first)
        assert also.exit is not None
        assert also.exit.reason is ExitReason.LOST
        wait_for(lambda: not runs.processes(), "the ranks of the forgotten job to be gone")
        runs.engine.stop(waiting, grace_s=0.0)
        runs.engine.release(waiting)
        runs.engine.close()
        assert runs.cluster.job_state(foreign) == "PENDING"


class TestServerKilledWhileSubmitting:
    """sbatch is replaced by a program that kills the server before, or after, the job is with Slurm."""

    @pytest.mark.parametrize("submitted", [True, False])
    def test_the_job_runs_once(self, cluster: SlurmCluster, tmp_path: Path, submitted: bool) -> None:
        commands, _ = cluster.counting_commands(tmp_path / "bin")
        real = (commands / "sbatch").read_text()
        submit = shutil.which("sbatch")
        last = f'{submit} "$@" >/dev/null' if submitted else "true"
        (commands / "sbatch").write_text(f"#!/bin/sh\n{last}\nkill -KILL $PPID\n")
        runs = SlurmRuns(cluster, tmp_path, bin_dir=commands)
        try:
            launch = runs.render("/bin/sh", "-c", "echo started; sleep 1")
            pid = fork()
            if pid == 0:
                second = runs.open_engine()
                second.launch(launch)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 9
            (commands / "sbatch").write_text(real)
            assert not (runs.folder(launch.attempt_id) / "job.json").exists()
            phases = self.drive(runs, launch.attempt_id)
            assert (Phase.ABSENT in phases) is not submitted
            assert runs.log(launch.attempt_id).count(" o started") == 1
            assert len(self.jobs_of(runs, launch.attempt_id)) == 1
        finally:
            runs.clean_up()

    def test_a_duplicate_job_leaves_at_once(self, runs: SlurmRuns) -> None:
        attempt_id = runs.shell("echo started; until [ -e end ]; do sleep 0.1; done")
        runs.wait(attempt_id, Phase.RUNNING)
        script = runs.folder(attempt_id) / "job.sh"
        env = {**os.environ, "SLURM_CONF": str(runs.cluster.conf), "WINDLASS_ATTEMPT_ID": attempt_id}
        words = ["sbatch", "--parsable", str(script)]
        second = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.strip()
        wait_for(lambda: runs.cluster.job_state(second) == "COMPLETED", "the duplicate to end")
        assert runs.look(attempt_id).phase is Phase.RUNNING
        (runs.work / "end").touch()
        seen = runs.wait(attempt_id)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.COMPLETED
        assert runs.log(attempt_id).count(" o started") == 1

    @staticmethod
    def drive(runs: SlurmRuns, attempt_id: str) -> set[Phase]:
        """As a controller does: what is absent is launched. The phases that were seen on the way to the end."""
        phases: set[Phase] = set()

        def has_ended() -> bool:
            seen: Observation = runs.look(attempt_id)
            phases.add(seen.phase)
            if seen.phase is Phase.ABSENT:
                runs.launch_again(attempt_id)
            return seen.phase is Phase.ENDED

        wait_for(has_ended, "its end")
        return phases

    @staticmethod
    def jobs_of(runs: SlurmRuns, attempt_id: str) -> list[str]:
        listing = runs.cluster.ask("squeue", "-h", "-a", "-t", "all", "-O", "Comment:200")
        return [line for line in listing.splitlines() if line.strip() == token_of(runs.shared, attempt_id)]


@pytest.mark.timeout(300)
def test_slurm_is_asked_as_often_for_many_runs_as_for_few(cluster: SlurmCluster, tmp_path: Path) -> None:
    commands, calls = cluster.counting_commands(tmp_path / "bin")
    runs = SlurmRuns(cluster, tmp_path, bin_dir=commands, poll_interval_s=0.5)
    window_s = 6.0

    def listings_in_window(attempts: list[str]) -> Counter[str]:
        before = Counter(calls.read_text().split())
        end = time.monotonic() + window_s
        while time.monotonic() < end:
            runs.engine.poll(attempts)
            threading.Event().wait(0.1)
        return Counter(calls.read_text().split()) - before

    try:
        attempts = [runs.shell("sleep 600", run_id=f"r-few{number}", nodes=("n1",)) for number in range(2)]
        wait_for(lambda: all(seen.phase is Phase.RUNNING for seen in runs.engine.poll(attempts).values()), "the few")
        few = listings_in_window(attempts)
        attempts += [
            runs.shell("sleep 600", run_id=f"r-many{number}", nodes=(f"n{number % 2 + 1}",)) for number in range(48)
        ]
        running: Callable[[], int] = lambda: sum(  # noqa: E731
            seen.phase is Phase.RUNNING for seen in runs.engine.poll(attempts).values()
        )
        wait_for(lambda: running() == 16, "as many as fit")
        many = listings_in_window(attempts)
        asked = {"squeue", "sinfo", "sacct", "scancel"}
        assert 3 <= few["squeue"] <= window_s / 0.5 + 2
        assert sum(many[name] for name in asked) <= sum(few[name] for name in asked) + 2
        for attempt_id in attempts:
            runs.engine.stop(attempt_id, grace_s=1.0)
        before = Counter(calls.read_text().split())
        wait_for(lambda: all(seen.phase is Phase.ENDED for seen in runs.engine.poll(attempts).values()), "all ends")
        assert (Counter(calls.read_text().split()) - before)["scancel"] < 20
    finally:
        runs.clean_up()


@pytest.mark.skipif(os.getuid() != 0, reason="takes root to become somebody else")
def test_an_ordinary_user_can_use_it(cluster: SlurmCluster) -> None:
    folder = temporary_folder()
    nobody = 65534
    try:
        os.chown(folder, nobody, nobody)
        (folder / "drive.py").write_text(_AS_NOBODY.format(shared=folder, conf=cluster.conf, run_id=RUN_ID))
        words = ["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", sys.executable]
        probe = subprocess.run([*words, "-c", "import windlass"], capture_output=True, text=True, check=False, cwd="/")
        if probe.returncode != 0:
            pytest.skip("this interpreter is out of reach of other users")
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*words, str(folder / "drive.py")],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        assert "completed" in done.stdout
        assert "uid 65534" in done.stdout
    finally:
        cluster.cancel_all()
        shutil.rmtree(folder)


_AS_NOBODY = """
import sys, time
from pathlib import Path
from windlass.core.clock import SystemClock
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import EngineContext, Launch, Phase
from windlass.engines.slurm import open_engine
from windlass.wire.slurm import SlurmConfig

shared = Path("{shared}") / "shared"
config = SlurmConfig(type="slurm", shared_dir=shared, conf=Path("{conf}"), python="/usr/bin/python3")
context = EngineContext(
    name="hpc", home=shared, clock=SystemClock(), notify=lambda: None, code=None, nodes=None, server_url=None
)
engine = open_engine(config, context)
share = NodeShare(node=engine.inventory()[0].name, cpus=1.0, memory_bytes=0)
engine.launch(Launch(
    run_id="{run_id}", attempt_id="{run_id}.1", attempt=1, placement=Placement(engine="hpc", shares=(share,)),
    argv=("/bin/sh", "-c", "echo uid $(id -u)"), workers_per_node=1, self_launching=False,
    env=dict(PATH="/usr/bin:/bin"),
))
deadline = time.monotonic() + 60
while (seen := engine.poll(["{run_id}.1"])["{run_id}.1"]).phase is not Phase.ENDED:
    assert time.monotonic() < deadline, seen
    time.sleep(0.05)
print(seen.exit.reason, seen.exit.message)
print((Path(seen.log_dirs[0]) / "rank-0.log").read_text())
engine.close()
"""
