"""Controllers at work with a thousand nodes, a thousand runs at a time and submissions as they come, a hundred times as
fast as in life; controllers die meanwhile. Everything is accounted for afterwards.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
from sqlalchemy import func, select

from tests.integration import crowd, ledger
from tests.integration.ledger import Ledger
from windlass.blobs.local import LocalBlobs
from windlass.controller.lease import ShardLeases
from windlass.controller.loop import Controller
from windlass.core.errors import Conflict
from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import Node
from windlass.db.database import Database
from windlass.db.faults import CommitFault
from windlass.engines.contract import Engine
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.runs.tables import runs
from windlass.runs.types import RunState
from windlass.scheduling.core import index
from windlass.scheduling.core.types import Policy, Project
from windlass.scheduling.rules import Rules
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import ScaledClock
from windlass.testing.fake_engine import FakeCluster, FakeEngine
from windlass.wire import runs as wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODES = tuple(Node(engine="fake", name=f"n{at:04}", cpus=128, memory_bytes=2 << 40, gpus=8) for at in range(1000))
AT_FIRST = 1000  # runs, all of which find room
PER_HOUR = 500.0
SPEED = 100.0
LASTS_S = 6000.0  # by the fast clock: a minute
PATIENCE_S = 400.0  # by the wall, for anything
MOST_PASSES = 3  # that find room for all that waits, and start none
URGENT = 30  # gangs at one moment: more than come free before anybody is warned, so that some are stopped for them
RULES = Rules(
    policy=Policy(rank=index.rank),
    projects={
        "vision": Project(name="vision", weight=3, quota={"gpu": 2000}),
        "speech": Project(name="speech", weight=2),
        "robots": Project(name="robots", weight=1, quota={"gpu": 1000}),
    },
)


class Death(BaseException):
    """The controller is gone, with its process as it were: nothing of it may catch this."""


class Fatal(CommitFault):
    """At one of the next commits: nothing is given back, nothing closed."""

    def __init__(self) -> None:
        super().__init__(0, "before")
        self._left: int | None = None

    def arm(self, commits: int, when: str) -> None:
        self._left, self._when = commits, when

    def before(self) -> None:
        if self._left is not None:
            self._left -= 1
        self._die_if("before")

    def _die_if(self, moment: str) -> None:
        if self._left is not None and self._left <= 0 and moment == self._when:
            raise Death


class Watched(Controller):
    """Remembers its passes: when, by the runs' clock, and how long, by the wall."""

    clock: ScaledClock
    passes: list[tuple[float, float, float]]

    def tick(self) -> None:
        began, wall = self.clock.now(), time.monotonic()
        super().tick()
        self.passes.append((began, self.clock.now(), time.monotonic() - wall))


class Member:
    """One controller in a thread, with its own connections and its own view of the engine."""

    def __init__(self, site: Site) -> None:
        self.fault = Fatal()
        self.db = Database(site.url, fault=self.fault)
        self._listening: list[Any] = []
        self._listen = self.db.listen
        self.db.listen = self._remember  # type: ignore[method-assign]
        self.controller = Watched(
            self.db,
            lambda nudge: self._open(site, nudge),
            site.seal,
            site.clock,
            ShardLeases(monotonic=time.monotonic),
            prices=site.prices,
            rules=RULES,
            jitter=random.Random(0),
        )
        self.controller.clock, self.controller.passes = site.clock, site.passes
        self.took_over_at: float | None = None
        self.thread = threading.Thread(target=self._work, name="controller")
        self.thread.start()

    def die(self, commits: int, when: str) -> None:
        self.fault.arm(commits, when)
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    def close(self) -> None:
        self.controller.stop()
        self.thread.join()
        for listener in self._listening:
            listener.close()
        self.db.close()

    def _work(self) -> None:
        with contextlib.suppress(Death):
            self.controller.run_forever()

    def _open(self, site: Site, nudge: Callable[[], None]) -> Mapping[str, Engine]:
        self.took_over_at = site.clock.now()
        return {"fake": FakeEngine(site.clock, cluster=site.cluster, notify=nudge)}

    def _remember(self, channel: str, heard: Callable[[], None]) -> Any:
        found = self._listen(channel, heard)
        self._listening += [found] if found is not None else []
        return found


class Site:
    """The cluster, the record, and controllers of which one works and another stands by."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.clock = ScaledClock(speed=0)
        self.cluster = FakeCluster(nodes=NODES)
        self.seal = Seal(folder / "secret.key")
        self.prices = PriceBook()
        self.passes: list[tuple[float, float, float]] = []
        self.db = Database(url)
        blobs = LocalBlobs(folder / "blobs")
        self.service = RunService(
            self.db, blobs, self.seal, self.clock, prices=self.prices, runs_dir=None, nudge=self._nudge
        )
        self.members: list[Member] = []

    def submit(self, spec: dict[str, Any]) -> str:
        return self.service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user="u").id

    def count(self) -> Counter[str]:
        query = select(runs.c.state, func.count().label("count")).group_by(runs.c.state)
        with self.db.read() as tx:
            return Counter({row.state: row.count for row in tx.execute(query)})

    def active(self) -> Member:
        found: list[Member] = []
        self.wait(lambda: bool(found.extend(m for m in self.members if m.took_over_at is not None) or found))
        return found[0]

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain; {dict(self.count())}"
            assert any(member.thread.is_alive() for member in self.members)
            time.sleep(0.02)

    def replace_active(self, draw: random.Random) -> float:
        """It dies; the other takes over, by the clock after so long; a new one stands by."""
        active = self.active()
        active.die(draw.randint(1, 5), draw.choice(["before", "after"]))
        died_at = self.clock.now()
        self.members.remove(active)
        active.close()
        self.members.append(Member(self))
        return (self.active().took_over_at or died_at) - died_at

    def lose(self, draw: random.Random) -> None:
        """A node of some attempt is gone, for a moment."""
        living = [id for id, one in list(self.cluster.attempts.items()) if one.end is None]
        gone = Exit(reason=ExitReason.LOST, message="its node is gone")
        FakeEngine(self.clock, cluster=self.cluster).finish(draw.choice(living), gone)
        self._nudge()

    def cancel(self, draw: random.Random) -> None:
        with self.db.read() as tx:
            ended = [state for state in RunState if state.is_terminal]
            ids = tx.execute(select(runs.c.id).where(runs.c.state.not_in(ended))).scalars().all()
        try:
            self.service.cancel(draw.choice(ids), grace_s=None)
        except Conflict:
            return  # it has just ended

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.db.close()

    def _nudge(self) -> None:
        for member in self.members:
            member.controller.nudge()


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(database_url, tmp_path)
    yield site
    site.close()


def test_a_thousand_runs_at_a_time_and_every_transition_accounted(site: Site) -> None:
    draw = random.Random(6)
    for _ in range(AT_FIRST):  # as if they had been running for a while already
        site.submit(crowd.spec(draw, crowd.left_s(draw)))
    site.members += [Member(site), Member(site)]
    site.wait(lambda: site.count()["queued"] == 0 or len(site.passes) > 20)
    submitted, sizes, takeovers = AT_FIRST, [], []
    site.clock.run_at(SPEED)
    began, wall = site.clock.now(), time.monotonic()
    coming = list(crowd.submissions(draw, int(PER_HOUR * LASTS_S / 3600), per_hour=PER_HOUR))
    for number, submission in enumerate(coming, 1):
        site.clock.sleep_until(began + submission.due_s)
        site.submit(submission.spec)
        submitted += 1
        sizes.append(site.count()["running"])
        if number % 25 == 0:
            site.cancel(draw)
        if number % 40 == 0:
            site.lose(draw)
        if number == len(coming) // 2:
            for _ in range(URGENT):
                site.submit(crowd.urgent())
            submitted += URGENT
        if number in (len(coming) // 3, 2 * len(coming) // 3):
            takeovers.append(site.replace_active(draw))
    lasted_s, busy = time.monotonic() - wall, list(site.passes)
    site.clock.run_at(10 * SPEED)  # nobody comes any more: the rest ends sooner
    site.wait(lambda: all(RunState(state).is_terminal for state in site.count()))
    site.clock.run_at(0)
    unreleased = [one for one in site.cluster.attempts.values() if not one.released]
    site.wait(lambda: all(one.released for one in unreleased))
    for member in site.members:
        member.close()

    book = ledger.load_ledger(site.db)
    ledger.check_paths(book)
    ledger.check_attempts(book)
    ledger.check_preemptions(book)
    ledger.check_costs(book, site.prices, NODES)
    ledger.check_rooms(book, NODES)
    states = Counter(str(run.state) for run in book.runs.values())
    assert states.total() == submitted
    assert set(states) <= {"succeeded", "failed", "cancelled"}
    assert {attempt.id for attempt in book.all_attempts} >= site.cluster.attempts.keys()
    idle = ledger.longest_idle_wait(book, NODES, [one[:2] for one in site.passes])
    times_ms = [1000 * one[2] for one in busy]
    waits_s = [some[0].created_at - book.runs[id].submitted_at for id, some in book.attempts.items() if some]
    preempted = sum(run.preemptions for run in book.runs.values())
    print(
        f"\n{submitted} runs, {len(coming)} of them within {lasted_s:.0f} s: {dict(states)}; "
        f"{min(sizes)} to {max(sizes)} at a time, {median(sizes):.0f} in the middle\n"
        f"{len(book.all_attempts)} attempts, {preempted} of them preempted; waits by the fast clock: "
        f"half below {median(waits_s):.0f} s, 99 of 100 below {worst(waits_s):.0f} s\n"
        f"{len(busy)} passes: half below {median(times_ms):.0f} ms, 99 of 100 below {worst(times_ms):.0f} ms; "
        f"at most {idle.passes} in a row with room for all and no start\n"
        f"taken over after {', '.join(f'{after_s / SPEED:.1f} s' for after_s in takeovers)}"
    )
    assert_falsehoods_are_found(book)
    # A machine that cannot submit as fast as they come has fewer of them at a time.
    assert median(sizes) > 900 * min(1.0, LASTS_S / SPEED / lasted_s)
    assert preempted > 0  # or nothing was shown of them
    assert idle.passes <= MOST_PASSES, idle
    assert median(times_ms) < 1000
    assert worst(times_ms) < 5000


def assert_falsehoods_are_found(book: Ledger) -> None:
    """With a record that is not true."""
    last = max((some[0] for some in book.attempts.values() if len(some) == 1), key=lambda one: one.created_at)
    assert last.ended_at is not None
    late = replace(last, created_at=last.ended_at)
    dense = [(last.created_at + part, last.created_at + part) for part in range(int(late.created_at - last.created_at))]
    told_late = replace(book, attempts={**book.attempts, last.run_id: [late]})
    assert ledger.longest_idle_wait(told_late, NODES, dense).passes > MOST_PASSES
    with pytest.raises(AssertionError, match=r"GPUs|CPUs"):
        ledger.check_rooms(replace(book, attempts={"one": [last], "another": [last] * 32}), NODES)
    with pytest.raises(AssertionError, match="while it was"):
        ledger.check_paths(replace(book, events={last.run_id: book.events[last.run_id][::-1]}))
    with pytest.raises(AssertionError):
        ledger.check_costs(replace(book, attempts={id: [] for id in book.runs}), PriceBook(), NODES)


def worst(values: Sequence[float]) -> float:
    """But for one in a hundred."""
    return quantiles(values, n=100)[-1]
