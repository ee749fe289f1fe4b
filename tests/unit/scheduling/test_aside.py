from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from windlass.core.resources import NodeShare, Placement
from windlass.db.database import Database, sqlite_url
from windlass.db.migrate import migrate
from windlass.scheduling.aside import (
    LONGEST_S,
    commit_aside,
    commit_back,
    decide_aside,
    load_aside,
    load_last_aside,
)
from windlass.scheduling.core.decide import decide
from windlass.scheduling.core.types import Health, NodeState, Policy, Running, Snapshot, Waiting, Want
from windlass.scheduling.types import Aside

FIRST_S = 1_800.0
GANG = Want(nodes=2, cpus=4)
ONE = Want(cpus=4)
BROKEN = Aside(reason="uncorrectable ECC error", since=0.0, until=1_800.0)
DRAINED = Aside(reason="new memory", since=0.0, until=None, by_hand=True)


def placement(*names: str) -> Placement:
    return Placement(engine="local", shares=tuple(NodeShare(node=name, cpus=4, memory_bytes=0) for name in names))


def cluster(
    names: str, *, aside: dict[str, Aside] | None = None, held: str = "", before: str = "", want: Want = GANG
) -> Snapshot:
    def health(name: str) -> Health:
        why = (aside or {}).get(name)
        return Health.SOUND if why is None else Health.CLOSED if why.by_hand else Health.DOUBTED

    return Snapshot(
        nodes=tuple(
            NodeState(engine="local", name=name, cpus=4, memory_bytes=10**9, health=health(name)) for name in names
        ),
        running=tuple(Running(run_id=name, project="p", want=ONE, placement=placement(name)) for name in held),
        waiting=(
            Waiting(run_id="r", project="p", wants=(want,), before=placement(*before)),
            Waiting(run_id="behind", project="p", wants=(ONE,), queued_at=1.0, served=1e6),
        ),
    )


def placed(snapshot: Snapshot, run_id: str = "r") -> str:
    """The names of its nodes by rank; empty: it waits."""
    found = {start.run_id: start.placement for start in decide(snapshot, Policy(preempts=False), 2.0).starts}
    return "".join(share.node for share in found[run_id].shares) if run_id in found else ""


def test_a_run_goes_back_to_its_nodes_each_to_its_rank() -> None:
    assert placed(cluster("abcd")) == "ab"
    assert placed(cluster("abcd", before="dc")) == "dc"


def test_only_the_node_that_is_gone_or_busy_is_replaced() -> None:
    assert placed(cluster("abc", before="xc")) == "ac"
    assert placed(cluster("abcd", before="dc", held="d")) == "ac"


def test_a_node_that_is_set_aside_is_replaced() -> None:
    assert placed(cluster("abcd", before="dc", aside={"d": BROKEN})) == "ac"


def test_with_room_to_come_elsewhere_it_waits_rather_than_go_back_to_a_broken_node() -> None:
    waits = cluster("abc", held="b", aside={"a": BROKEN})
    assert placed(waits) == ""
    assert placed(waits, "behind") == ""  # nor is it overtaken


def test_where_nothing_else_could_ever_hold_it_a_node_that_failed_is_used_again() -> None:
    assert placed(cluster("ab", before="ba", aside={"a": BROKEN})) == "ba"
    assert placed(cluster("a", before="a", aside={"a": BROKEN}, want=ONE)) == "a"


def test_a_node_set_aside_by_hand_is_never_used_and_holds_up_nobody_else() -> None:
    waits = cluster("ab", aside={"a": DRAINED})
    assert placed(waits) == ""
    assert placed(waits, "behind") == "b"


def test_each_time_in_a_row_is_twice_as_long_up_to_a_day() -> None:
    aside = decide_aside(None, "broke", FIRST_S, now=0.0, run_id="r")
    assert (aside.until, aside.times) == (FIRST_S, 1)
    spans = []
    for _ in range(8):
        again = decide_aside(aside, "broke", FIRST_S, now=(aside.until or 0.0) + 60)
        spans.append((again.until or 0.0) - again.since)
        aside = again
    assert spans[:3] == [2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert spans[-1] == LONGEST_S


def test_runs_that_fail_together_count_once() -> None:
    first = decide_aside(None, "broke", FIRST_S, now=0.0)
    assert decide_aside(first, "broke too", FIRST_S, now=5.0) == first
    assert decide_aside(DRAINED, "broke", FIRST_S, now=5.0) == DRAINED


def test_one_that_was_well_for_long_begins_anew() -> None:
    long_ago = Aside(reason="broke", since=0.0, until=10.0, times=5)
    assert decide_aside(long_ago, "broke", FIRST_S, now=10.0 + 25 * 3600).times == 1


@pytest.fixture
def db(tmp_path: Path) -> Database:
    found = Database(sqlite_url(tmp_path / "x.db"))
    migrate(found)
    return found


def test_what_is_kept_ends_by_itself_and_can_be_taken_back(db: Database) -> None:
    with db.write() as tx:
        commit_aside(tx, ("local", "a"), BROKEN)
        commit_aside(tx, ("local", "a"), Aside(reason="again", since=1.0, until=100.0, times=2, run_id="r"))
        commit_aside(tx, ("local", "b"), DRAINED)
    with db.write() as tx:
        assert load_aside(tx, now=50.0)["local", "a"].times == 2
        assert list(load_aside(tx, now=100.0)) == [("local", "b")]
        last = load_last_aside(tx, ("local", "a"))
        assert last is not None
        assert last.reason == "again"
        commit_back(tx, ("local", "b"))
        assert load_aside(tx, now=100.0) == {}
    db.close()


def test_a_node_that_two_controllers_set_aside_at_once_is_so_once(database_url: str) -> None:
    one, other = Database(database_url), Database(database_url)
    with ThreadPoolExecutor(1) as threads:
        with one.write() as tx:
            commit_aside(tx, ("local", "a"), BROKEN)
            later = threads.submit(set_aside_by, other)
            wait([later], timeout=0.2)  # it waits for this one to end
        later.result(150)
    with one.read() as tx:
        assert load_aside(tx, now=50.0) == {("local", "a"): DRAINED}
    one.close()
    other.close()


def set_aside_by(db: Database) -> None:
    with db.write() as tx:
        commit_aside(tx, ("local", "a"), DRAINED)
