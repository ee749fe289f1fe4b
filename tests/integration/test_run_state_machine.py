"""Runs, the controller and an engine in any order of events, with the controller dying at any commit."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import update

from windlass.blobs.local import LocalBlobs
from windlass.controller.lease import ShardLeases, leases
from windlass.controller.loop import Controller
from windlass.core.errors import Conflict, LaunchFailed
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.db.database import Database, sqlite_url
from windlass.db.faults import CommitFault
from windlass.runs import store
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.runs.types import STATE_AFTER, TRANSITIONS, AttemptState, EventKind, RunState
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeCluster, FakeEngine
from windlass.wire import runs as wire

NODES = tuple(Node(engine="fake", name=name, cpus=4, memory_bytes=8 * 10**9, gpus=2, gpu_type="h100") for name in "ab")
EXITS = [
    Exit(reason=ExitReason.COMPLETED, exit_code=0),
    Exit(reason=ExitReason.EXIT_CODE, exit_code=1, fingerprint="a"),
    Exit(reason=ExitReason.EXIT_CODE, exit_code=2, fingerprint="b"),
    Exit(reason=ExitReason.SIGNAL, signal=9),
    Exit(reason=ExitReason.SIGNAL, signal=11),
    Exit(reason=ExitReason.OOM),
    Exit(reason=ExitReason.TIMEOUT),
    Exit(reason=ExitReason.LOST),
    Exit(reason=ExitReason.CANCELLED),
    Exit(reason=ExitReason.LAUNCH_FAILED, message="no such command"),
]
SPECS = [
    {},
    {"resources": {"cpus": 3}},
    {"resources": {"nodes": 2, "cpus": 2}},
    {"resources": {"gpus": 2, "gpu_type": "h100"}},
    {"retry": {"max": 2, "backoff": 1}},
    {"retry": {"max": 0}},
    {"timeout": "30s", "retry": {"max": 5}},
    {"priority": "high"},
    {"command": "sleep 5"},
    {"command": "exit 3", "retry": {"max": 4}},
    {"command": "stubborn"},
]


MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # every commit is synced; here that costs nothing
Everything = list[tuple[RunRecord, list[AttemptRecord]]]


class Crash(BaseException):
    """The process is gone: nothing of it may catch this."""


class CrashAtCommit(CommitFault):
    """Like the real one, but this process goes on."""

    def __init__(self) -> None:
        super().__init__(0, "before")
        self._left: int | None = None

    def arm(self, commits: int, when: str) -> None:
        self._left, self._when = commits, when

    def disarm(self) -> None:
        self._left = None

    def before(self) -> None:
        if self._left is not None:
            self._left -= 1
        self._die_if("before")

    def after(self) -> None:
        self._die_if("after")

    def _die_if(self, moment: str) -> None:
        if self._left is not None and self._left <= 0 and moment == self._when:
            raise Crash


class RunsUnderControl(RuleBasedStateMachine):
    template: Path  # a migrated database file, set by the test
    root: str  # where folders are made

    runs = Bundle("runs")

    @initialize(target=runs, start_s=st.sampled_from([0.0, 2.0]), spec=st.sampled_from(SPECS))
    def set_up(self, start_s: float, spec: dict[str, object]) -> str:
        self.folder = Path(tempfile.mkdtemp(dir=self.root))
        shutil.copy(self.template, self.folder / "windlass.db")
        self.fault = CrashAtCommit()
        self.db = Database(sqlite_url(self.folder / "windlass.db"), fault=self.fault)
        self.clock = FakeClock()
        self.cluster = FakeCluster(nodes=NODES)
        self.start_s = start_s
        seal = Seal(self.folder / "secret.key")
        self.service = RunService(
            self.db,
            LocalBlobs(self.folder / "blobs"),
            seal,
            self.clock,
            prices=PriceBook(),
            runs_dir=None,
            nudge=lambda: None,
        )
        self.seal = seal
        self.costs: dict[str, float] = {}
        self.numbers = count()
        self.start_controller()
        first = self.submit(spec)
        self.passes(2.0)
        return first

    def start_controller(self) -> None:
        self.fault.disarm()
        self.engine = FakeEngine(self.clock, cluster=self.cluster, start_s=self.start_s)
        lease = ShardLeases(monotonic=self.clock.monotonic)
        self.controller = Controller(
            self.db,
            lambda _nudge: {"fake": self.engine},
            self.seal,
            self.clock,
            lease,
            prices=PriceBook(),
            jitter=random.Random(0),
        )
        with self.db.write() as tx:
            tx.execute(update(leases).values(pid_start=0))  # the process that held it is gone
        assert self.controller.activate()

    # ---- what users do ---------------------------------------------------------------------------------------------

    @rule(target=runs, spec=st.sampled_from(SPECS))
    def submit(self, spec: dict[str, object]) -> str:
        request = wire.SubmitRequest(spec={"command": "serve", "code": None, **spec})
        return self.service.submit(request, idempotency_key=None, user=None).id

    @rule(target=runs, when=st.sampled_from(["before", "after"]))
    def submit_through_a_crash(self, when: str) -> str:
        request = wire.SubmitRequest(spec={"command": "serve", "code": None})
        key = f"key-{next(self.numbers)}"
        self.fault.arm(1, when)
        with pytest.raises(Crash):
            self.service.submit(request, idempotency_key=key, user=None)
        self.fault.disarm()
        return self.service.submit(request, idempotency_key=key, user=None).id

    @rule(run_id=runs, grace_s=st.sampled_from([None, 0.0, 3.0]))
    def cancel(self, run_id: str, grace_s: float | None) -> None:
        state = self.load(run_id).state
        if state in (RunState.SUCCEEDED, RunState.FAILED):
            with pytest.raises(Conflict):
                self.service.cancel(run_id, grace_s=grace_s)
        else:
            view = self.service.cancel(run_id, grace_s=grace_s)
            assert view.cancelling or view.state == RunState.CANCELLED

    @rule(run_id=runs)
    def resume(self, run_id: str) -> None:
        if self.load(run_id).state in (RunState.FAILED, RunState.CANCELLED):
            assert self.service.resume(run_id).state == RunState.QUEUED
        else:
            with pytest.raises(Conflict):
                self.service.resume(run_id)

    # ---- what the controller does ----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 60.0]))
    def passes(self, seconds: float) -> None:
        """Two, with time between them: what one starts, the next one sees."""
        self.tick()
        self.clock.advance(seconds)
        self.tick()

    @rule()
    def tick(self) -> None:
        self.controller.tick()
        if not self.engine.away:
            wanted = [run.id for run, _ in self.everything() if run.cancelling]
            going = [self.cluster.attempts[key] for key in self.going_on() if key.rpartition(".")[0] in wanted]
            assert all(attempt.stopped_at is not None for attempt in going), "who is cancelled is asked to stop"

    @rule(commits=st.integers(1, 6), when=st.sampled_from(["before", "after"]))
    def die_at_a_commit(self, commits: int, when: str) -> None:
        self.fault.arm(commits, when)
        try:
            self.controller.tick()
        except Crash:
            pass  # either it died, or it had less to commit than that
        self.start_controller()

    @rule(part=st.sampled_from(["refresh_nodes", "reconcile", "place", "collect", "release"]))
    def do_one_part_of_a_pass_and_die(self, part: str) -> None:
        getattr(self.controller, part)()
        self.start_controller()

    # ---- what happens on the nodes ---------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 10.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(which=st.integers(0, 5), ended=st.sampled_from(EXITS), noticed=st.booleans())
    def an_attempt_ends(self, which: int, ended: Exit, noticed: bool) -> None:
        if going := self.going_on():
            self.engine.finish(going[which % len(going)], ended)
        if noticed:
            self.tick()

    @rule(which=st.integers(0, 5))
    def a_node_forgets_an_attempt(self, which: int) -> None:
        if going := self.going_on():
            self.engine.forget(going[which % len(going)])

    @rule(away=st.booleans())
    def the_engine_comes_and_goes(self, away: bool) -> None:
        self.engine.away = away

    @rule(refuses=st.booleans())
    def launches_are_refused_or_not(self, refuses: bool) -> None:
        self.engine.refusal = LaunchFailed("no interpreter") if refuses else None

    # ---- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        found = self.everything()
        self.the_state_is_what_the_events_say(found)
        self.attempts_are_in_order_and_one_at_a_time(found)
        live = [a for _, attempts in found for a in attempts if a.state is not AttemptState.ENDED]
        assert set(self.going_on()) <= {attempt.id for attempt in live}, "nothing runs that is not on record"
        self.no_node_is_given_out_twice(live)
        self.ends_are_complete_and_costs_only_grow(found)
        for run, _ in found:
            assert self.service.view(run.id).state == run.state
            assert self.service.why(run.id).summary

    def the_state_is_what_the_events_say(self, found: Everything) -> None:
        for run, _ in found:
            with self.db.read() as tx:
                kinds = [EventKind(row.kind) for row in store.load_events(tx, run.id)]
            states = [STATE_AFTER[kind] for kind in kinds if kind in STATE_AFTER]
            assert kinds[0] is EventKind.SUBMITTED
            assert states[-1] is run.state
            for before, after in pairwise(states):
                assert after in TRANSITIONS[before], (before, after)

    def attempts_are_in_order_and_one_at_a_time(self, found: Everything) -> None:
        for run, attempts in found:
            assert [attempt.number for attempt in attempts] == list(range(1, run.attempt_count + 1))
            live = [attempt for attempt in attempts if attempt.state is not AttemptState.ENDED]
            assert live == (attempts[-1:] if run.state.is_live else [])
            assert all((attempt.exit is None) == (attempt in live) for attempt in attempts)

    def no_node_is_given_out_twice(self, live: list[AttemptRecord]) -> None:
        for node in NODES:
            shares = [share for attempt in live for share in attempt.placement.shares if share.node == node.name]
            gpus = [index for share in shares for index in share.gpu_indices]
            assert sum(share.cpus for share in shares) <= node.cpus
            assert len(gpus) == len(set(gpus)) <= node.gpus

    def ends_are_complete_and_costs_only_grow(self, found: Everything) -> None:
        for run, _ in found:
            assert (run.exit is not None) == (run.ended_at is not None) == run.state.is_terminal
            if run.state is RunState.SUCCEEDED:
                assert run.exit is not None
                assert run.exit.reason is ExitReason.COMPLETED
            assert min(run.cpu_hours, run.gpu_hours, run.cost_usd) >= 0
            assert run.cost_usd >= self.costs.get(run.id, 0.0)
            self.costs[run.id] = run.cost_usd

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            self.everything_comes_to_an_end()
        finally:
            self.db.close()
            shutil.rmtree(self.folder)

    def everything_comes_to_an_end(self) -> None:
        """Once engines answer and finish what they have, nothing is left over."""
        self.engine.away, self.engine.refusal = False, None
        for _ in range(60):
            self.clock.advance(400)
            self.controller.tick()
            for attempt_id in self.going_on():
                self.engine.finish(attempt_id, EXITS[0])
            self.controller.tick()
            if all(run.state.is_terminal for run, _ in self.everything()):
                break
        self.controller.tick()
        for run, attempts in self.everything():
            assert run.state.is_terminal, run
            assert all(attempt.released_at is not None for attempt in attempts)
        assert self.going_on() == []
        assert self.service.cluster().running == 0
        assert all(node.cpus_used == 0 and node.gpus_used == 0 for node in self.service.cluster().nodes)

    # ----------------------------------------------------------------------------------------------------------------

    def load(self, run_id: str) -> RunRecord:
        with self.db.read() as tx:
            run = store.load_run(tx, run_id)
        assert run is not None
        return run

    def everything(self) -> Everything:
        with self.db.read() as tx:
            return [(run, store.load_attempts(tx, run.id)) for run in store.load_runs_in(tx, list(RunState))]

    def going_on(self) -> list[str]:
        self.engine.away, away = False, self.engine.away
        seen = self.engine.poll(list(self.cluster.attempts))
        self.engine.away = away
        return [attempt_id for attempt_id, one in seen.items() if one.exit is None]


@pytest.fixture(autouse=True)
def _ids_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens must depend on the drawn steps alone, and ids decide between runs of one moment."""
    numbers = count()
    monkeypatch.setattr("windlass.runs.submission.new_run_id", lambda: f"r-{next(numbers):010d}")


def explore(template: Path, *, examples: int, steps: int) -> None:
    RunsUnderControl.template = template
    wanted = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    with tempfile.TemporaryDirectory(prefix="windlass-machine-", dir=MEMORY) as RunsUnderControl.root:
        run_state_machine_as_test(RunsUnderControl, settings=wanted)


@pytest.mark.timeout(600)  # it takes seconds; finding the shortest way to a failure takes longer
def test_runs_under_control(sqlite_template: Path) -> None:
    explore(sqlite_template, examples=20, steps=30)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_runs_under_control_for_long(sqlite_template: Path) -> None:
    explore(sqlite_template, examples=120, steps=50)
