"""Exactly one active controller, on each kind of database, with time in the test's hands."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, update

from windlass.controller.lease import TTL_S, ControllerWatch, LeaseLost, ShardLeases, leases
from windlass.db.database import Database
from windlass.testing.clock import FakeClock


def lease(clock: FakeClock) -> ShardLeases:
    return ShardLeases(monotonic=clock.monotonic)


def beat(db: Database, holder: ShardLeases) -> None:
    with db.write() as tx:
        holder.beat(tx)


def move_elsewhere(db: Database) -> None:
    """As if the holder were on another machine, where nobody can see whether its process lives."""
    with db.write() as tx:
        tx.execute(update(leases).values(host="elsewhere"))


def test_the_first_gets_it_and_keeps_it(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)
    assert first.acquire(database)
    assert first.acquire(database)
    assert not second.acquire(database)


def test_a_process_of_another_container_is_not_taken_for_dead(database: Database, clock: FakeClock) -> None:
    """Two containers may have one host name, and each a process 1."""
    first, second = lease(clock), lease(clock)
    first.acquire(database)
    with database.write() as tx:
        tx.execute(update(leases).values(host=socket.gethostname(), pid=2**22 + 1))
    assert not second.acquire(database)
    beat(database, first)
    clock.advance(TTL_S - 0.1)
    assert not second.acquire(database)


def test_of_many_that_come_together_exactly_one_gets_it(database: Database, clock: FakeClock) -> None:
    start = threading.Barrier(12)

    def race(_number: int) -> bool:
        mine = lease(clock)
        start.wait()
        return mine.acquire(database)

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(race, range(12))) == 1


def test_of_many_that_wait_exactly_one_takes_over(database: Database, clock: FakeClock) -> None:
    first = lease(clock)
    first.acquire(database)
    move_elsewhere(database)
    standbys = [lease(clock) for _ in range(8)]
    assert not any(standby.acquire(database) for standby in standbys)
    clock.advance(TTL_S)
    start = threading.Barrier(8)

    def race(standby: ShardLeases) -> bool:
        start.wait()
        return standby.acquire(database)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, standbys)) == 1


def test_a_standby_takes_over_when_the_beat_has_stood_still(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)
    first.acquire(database)
    move_elsewhere(database)
    for _ in range(5):
        clock.advance(TTL_S - 0.1)
        beat(database, first)
        assert not second.acquire(database)
    clock.advance(TTL_S - 0.1)
    assert not second.acquire(database)
    clock.advance(0.1)
    assert second.acquire(database)


def test_a_standby_that_has_just_come_waits_a_whole_while(database: Database, clock: FakeClock) -> None:
    """It cannot know how long the beat has stood still before it looked."""
    lease(clock).acquire(database)
    move_elsewhere(database)
    clock.advance(1_000)
    late = lease(clock)
    assert not late.acquire(database)
    clock.advance(TTL_S)
    assert late.acquire(database)


def test_one_that_was_replaced_cannot_write_any_more(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)
    first.acquire(database)
    move_elsewhere(database)
    second.acquire(database)
    clock.advance(TTL_S)
    second.acquire(database)
    with pytest.raises(LeaseLost, match="held by another controller"), database.write() as tx:
        first.beat(tx)
    assert not first.acquire(database)
    beat(database, second)


def _write_then_beat(db: Database, holder: ShardLeases) -> None:
    with db.write() as tx:
        tx.execute(update(leases).values(host="changed"))
        holder.beat(tx)


def test_what_was_written_with_a_lost_lease_is_undone(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)
    first.acquire(database)
    first.give_up(database)
    assert second.acquire(database)
    with pytest.raises(LeaseLost):
        _write_then_beat(database, first)
    with database.read() as tx:
        hosts = tx.execute(select(leases.c.host)).scalars().all()
    assert "changed" not in hosts


def test_a_lease_that_was_given_up_is_free_at_once(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)
    first.acquire(database)
    first.give_up(database)
    assert second.acquire(database)
    first.give_up(database)  # not its own any more: nothing happens
    beat(database, second)


def test_a_dead_holder_on_this_machine_is_replaced_at_once(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)
    first.acquire(database)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with database.write() as tx:
        tx.execute(update(leases).values(pid=ended.pid, pid_start=1))
    assert second.acquire(database)


def test_a_pid_that_is_used_again_is_not_the_holder(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)
    first.acquire(database)
    with database.write() as tx:
        tx.execute(update(leases).values(pid_start=leases.c.pid_start - 1))
    assert second.acquire(database)


def test_two_in_one_process_are_two(database: Database, clock: FakeClock) -> None:
    """The pid tells nothing then; only the beat does."""
    first, second = lease(clock), lease(clock)
    assert first.holder != second.holder
    first.acquire(database)
    assert not second.acquire(database)


def test_the_state_of_the_controller(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), lease(clock)

    def state(holder: str | None) -> str:
        with database.read() as tx:
            return ControllerWatch(holder, monotonic=clock.monotonic).state(tx)

    assert state(first.holder) == "absent"
    first.acquire(database)
    assert (state(first.holder), state(second.holder), state(None)) == ("active", "standby", "active")
    first.give_up(database)
    assert state(first.holder) == "absent"


# ---- several shards ------------------------------------------------------------------------------------------------


def settle(db: Database, controllers: list[ShardLeases], clock: FakeClock) -> list[frozenset[int]]:
    for _ in range(6):
        for controller in controllers:
            controller.acquire(db)
        clock.advance(TTL_S / 3)
    return [controller.held for controller in controllers]


def sharing(clock: FakeClock) -> ShardLeases:
    return ShardLeases(8, monotonic=clock.monotonic)


def test_controllers_share_the_shards(database: Database, clock: FakeClock) -> None:
    first = sharing(clock)
    first.acquire(database)
    assert first.held == frozenset(range(8))
    assert first.slots is None
    second = sharing(clock)
    parts = settle(database, [first, second], clock)
    assert sorted(map(len, parts)) == [4, 4]
    assert parts[0] | parts[1] == frozenset(range(8))
    assert first.slots is not None
    assert sum(controller.schedules for controller in (first, second)) == 1


def test_the_shards_of_one_that_is_gone_are_taken_over(database: Database, clock: FakeClock) -> None:
    first, second = sharing(clock), sharing(clock)
    settle(database, [first, second], clock)
    move_elsewhere(database)
    assert second.acquire(database)  # it sees how the beats stand now
    for _ in range(4):
        clock.advance(TTL_S / 2)
        beat(database, second)
        second.acquire(database)
    assert second.held == frozenset(range(8))
    with pytest.raises(LeaseLost):
        beat(database, first)


def test_one_that_leaves_leaves_nothing_behind(database: Database, clock: FakeClock) -> None:
    first, second = sharing(clock), sharing(clock)
    settle(database, [first, second], clock)
    first.give_up(database)
    assert second.acquire(database)
    assert second.held == frozenset(range(8))
    with database.read() as tx:
        assert (
            tx.execute(select(func.count()).select_from(leases)).scalar_one() == 10
        )  # eight shards, one member, the number


def test_a_standby_that_holds_nothing_stays_a_member(database: Database, clock: FakeClock) -> None:
    crowd = [ShardLeases(2, monotonic=clock.monotonic) for _ in range(3)]
    parts = settle(database, crowd, clock)
    assert sorted(map(len, parts)) == [0, 1, 1]
    settle(database, crowd, clock)
    with database.read() as tx:
        names = [row.name for row in tx.execute(select(leases.c.name))]
    assert sum(name.startswith("member/") for name in names) == 3


def test_one_that_has_died_without_a_word_is_not_called_active(database: Database, clock: FakeClock) -> None:
    lease(clock).acquire(database)
    move_elsewhere(database)
    watch = ControllerWatch(None, monotonic=clock.monotonic)

    def state() -> str:
        with database.read() as tx:
            return watch.state(tx)

    assert state() == "active"
    clock.advance(TTL_S)
    assert state() == "absent"


# ---- how many shards -----------------------------------------------------------------------------------------------


def numbered(clock: FakeClock, count: int) -> ShardLeases:
    return ShardLeases(count, monotonic=clock.monotonic)


def test_controllers_with_different_numbers_share_no_slot(
    database: Database, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = numbered(clock, 4), numbered(clock, 3)
    settle(database, [first, second], clock)
    assert first.slots is not None
    assert second.slots is not None
    assert not first.slots & second.slots
    assert first.slots | second.slots == frozenset(range(64))
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "`controller.shards` is 3 here, and this database's controllers share 4, so it is 4; "
        "to change it, stop all of them and start them with the new number"
    ]


def test_a_standby_for_one_shard_does_not_divide_it(database: Database, clock: FakeClock) -> None:
    first, second = lease(clock), numbered(clock, 4)
    assert first.acquire(database)
    assert not second.acquire(database)
    assert first.slots is None
    beat(database, first)


def test_the_number_changes_once_nobody_holds_a_shard(database: Database, clock: FakeClock) -> None:
    first, second = numbered(clock, 4), numbered(clock, 2)
    settle(database, [first, second], clock)
    first.give_up(database)
    second.give_up(database)
    third = numbered(clock, 2)
    assert third.acquire(database)
    assert third.held == {0, 1}
    assert third.slots is None
    with database.read() as tx:
        names = tx.execute(select(leases.c.name)).scalars().all()
    assert sorted(name for name in names if name.startswith("controller")) == ["controller", "controller/1"]


def test_one_that_was_slow_when_the_number_changed_has_lost_its_shards(database: Database, clock: FakeClock) -> None:
    slow, other = numbered(clock, 4), numbered(clock, 2)
    slow.acquire(database)
    move_elsewhere(database)
    assert not other.acquire(database)
    clock.advance(TTL_S)
    assert other.acquire(database)
    assert other.held == {0, 1}
    with pytest.raises(LeaseLost):
        beat(database, slow)
    slow.acquire(database)
    clock.advance(TTL_S / 2)
    beat(database, other)
    settle(database, [slow, other], clock)
    assert sorted([len(slow.held), len(other.held)]) == [1, 1]


def test_of_many_with_different_numbers_that_come_together_no_two_share_a_slot(
    database: Database, clock: FakeClock
) -> None:
    crowd = [numbered(clock, count) for count in (1, 2, 3, 4, 5, 8)]
    start = threading.Barrier(len(crowd))

    def race(controller: ShardLeases) -> None:
        start.wait()
        controller.acquire(database)

    with ThreadPoolExecutor(len(crowd)) as pool:
        list(pool.map(race, crowd))
    held = [controller.slots if controller.held else frozenset() for controller in crowd]
    slots = [slot for slots in held for slot in (range(64) if slots is None else slots)]
    assert len(slots) == len(set(slots))
    assert slots
