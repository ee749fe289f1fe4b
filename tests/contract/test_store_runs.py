"""What a database must do for runs, on each kind of database: submission, guarded changes, pages, names, events."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from windlass.core.errors import (
    Ambiguous,
    CannotFit,
    Conflict,
    IdempotencyMismatch,
    InvalidInput,
    InvalidSpec,
    InvalidTransition,
    NotFound,
)
from windlass.core.resources import Node, NodeShare, Placement
from windlass.db.database import Database
from windlass.runs import aftermath, store
from windlass.runs.records import RunRecord
from windlass.runs.service import RunService
from windlass.runs.types import STATE_AFTER, EventKind, RunState
from windlass.scheduling.nodes import commit_nodes
from windlass.testing.clock import FakeClock
from windlass.wire import runs as wire


def request(**spec: Any) -> wire.SubmitRequest:
    return wire.SubmitRequest(spec={"command": "true", "code": None, **spec})


def submit(service: RunService, key: str | None = None, **spec: Any) -> wire.RunView:
    return service.submit(request(**spec), idempotency_key=key, user="tester")


def load(db: Database, run_id: str) -> RunRecord:
    with db.read() as tx:
        run = store.load_run(tx, run_id)
    assert run is not None
    return run


def advance(db: Database, run_id: str, kind: EventKind, **changes: Any) -> None:
    with db.write() as tx:
        run = store.load_run(tx, run_id)
        assert run is not None
        store.advance(tx, run, kind, now=0.0, message=f"test: {kind}", **changes)


# ---- submission ----------------------------------------------------------------------------------------------------


def test_a_submitted_run_is_queued_with_its_event(service: RunService, clock: FakeClock) -> None:
    run = submit(service, name="first", params={"lr": 0.1}, tags={"a": "b"}, seed=7)
    assert (run.state, run.name, run.user, run.seed, run.attempts) == ("queued", "first", "tester", 7, 0)
    assert run.submitted_at == clock.now()
    assert [event.kind for event in service.events(run.id, after=0).events] == ["submitted"]


def test_a_run_without_a_name_is_named_after_its_script(service: RunService) -> None:
    assert submit(service, command="python nets/train.py").name.startswith("train-")
    assert submit(service, command="cd x && echo hi").name.startswith("cd-")
    assert submit(service, command=["./ünïcode!.sh"]).name


def test_what_cannot_be_started_leaves_no_trace(service: RunService, database: Database) -> None:
    with database.write() as tx:
        commit_nodes(tx, "fake", [Node(engine="fake", name="n", cpus=4, memory_bytes=10**9)], now=0)
    with pytest.raises(CannotFit, match="can never start here"):
        submit(service, resources={"cpus": 5})
    with pytest.raises(InvalidSpec, match="not a param"):
        submit(service, command="x ${nope}")
    with pytest.raises(InvalidInput, match="is not here"):
        service.submit(wire.SubmitRequest(spec={"command": "x"}, code_digest="0" * 64), idempotency_key=None, user=None)
    assert service.page(states=[], project=None, name=None, cursor=None, limit=9).runs == []


def test_one_key_and_one_body_are_one_run(service: RunService) -> None:
    assert submit(service, "k", name="a").id == submit(service, "k", name="a").id
    assert submit(service, "l", name="a").id != submit(service, "k", name="a").id
    assert submit(service, None, name="a").id != submit(service, None, name="a").id


def test_one_key_and_two_bodies_are_a_mistake(service: RunService) -> None:
    first = submit(service, "k", name="a")
    with pytest.raises(IdempotencyMismatch, match=rf"'k' was used before, for another request \(run {first.id}\)"):
        submit(service, "k", name="b")


def test_a_repeat_is_harmless_even_if_the_run_could_not_start_any_more(service: RunService, database: Database) -> None:
    first = submit(service, "k", resources={"cpus": 64})
    with database.write() as tx:
        commit_nodes(tx, "fake", [Node(engine="fake", name="n", cpus=4, memory_bytes=10**9)], now=0)
    assert submit(service, "k", resources={"cpus": 64}).id == first.id


def test_one_key_from_many_threads_is_one_run(service: RunService) -> None:
    start = threading.Barrier(20)

    def race(_number: int) -> str:
        start.wait()
        return submit(service, "the key", name="once", secrets=[]).id

    with ThreadPoolExecutor(20) as pool:
        ids = set(pool.map(race, range(20)))
    assert len(ids) == 1
    assert len(service.page(states=[], project=None, name=None, cursor=None, limit=99).runs) == 1
    assert len(service.events(ids.pop(), after=0).events) == 1


# ---- guarded changes -----------------------------------------------------------------------------------------------


def test_a_change_moves_state_version_and_events_together(service: RunService, database: Database) -> None:
    run_id = submit(service).id
    advance(database, run_id, EventKind.PLACED, attempt_count=1)
    run = load(database, run_id)
    assert (run.state, run.version, run.attempt_count) == (RunState.STARTING, 2, 1)
    assert [event.kind for event in service.events(run_id, after=0).events] == ["submitted", "placed"]


def test_a_decision_about_an_older_version_is_refused_whole(service: RunService, database: Database) -> None:
    run_id = submit(service).id
    stale = load(database, run_id)
    service.cancel(run_id, grace_s=None)
    before = service.events(run_id, after=0)
    with pytest.raises(store.ChangedMeanwhile), database.write() as tx:
        store.advance(tx, stale, EventKind.PLACED, now=0.0, message="too late")
    assert load(database, run_id).state is RunState.CANCELLED
    assert service.events(run_id, after=0) == before


def test_a_change_outside_the_table_is_refused(service: RunService, database: Database) -> None:
    run_id = submit(service).id
    with pytest.raises(InvalidTransition, match="a run that is queued cannot become succeeded"):
        advance(database, run_id, EventKind.SUCCEEDED)
    assert load(database, run_id).state is RunState.QUEUED


def test_of_many_that_change_one_version_exactly_one_succeeds(service: RunService, database: Database) -> None:
    run = load(database, submit(service).id)
    start = threading.Barrier(8)

    def race(_number: int) -> bool:
        start.wait()
        try:
            with database.write() as tx:
                store.advance(tx, run, EventKind.PLACED, now=0.0, message="mine")
        except store.ChangedMeanwhile:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1
    assert len(service.events(run.id, after=0).events) == 2


def test_an_attempt_ends_once(service: RunService, database: Database) -> None:
    from windlass.core.exits import Exit, ExitReason

    run = load(database, submit(service).id)
    placement = Placement(engine="fake", shares=(NodeShare(node="n", cpus=1, memory_bytes=0, gpu_indices=(0, 2)),))
    ended = Exit(reason=ExitReason.SIGNAL, signal=9, rank=1, message="killed", fingerprint="f")
    with database.write() as tx:
        store.insert_attempt(tx, run, placement, now=1.0)
    with database.read() as tx:
        [attempt] = store.load_attempts(tx, run.id)
    assert (attempt.id, attempt.number, attempt.placement) == (f"{run.id}.1", 1, placement)
    with database.write() as tx:
        store.end_attempt(tx, attempt, ended, started_at=2.0, ended_at=3.0)
    with pytest.raises(store.ChangedMeanwhile), database.write() as tx:
        store.end_attempt(tx, attempt, ended, started_at=2.0, ended_at=9.0)
    with database.read() as tx:
        [attempt] = store.load_attempts(tx, run.id)
        assert aftermath.load_unreleased(tx) == [(attempt.id, "fake")]
    assert (attempt.exit, attempt.ended_at) == (ended, 3.0)


# ---- pages ---------------------------------------------------------------------------------------------------------


def walk(service: RunService, limit: int, **filters: Any) -> list[str]:
    wanted: dict[str, Any] = {"states": [], "project": None, "name": None, **filters}
    found, cursor = [], None
    while True:
        page = service.page(cursor=cursor, limit=limit, **wanted)
        assert len(page.runs) <= limit
        found += [run.id for run in page.runs]
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor


@pytest.mark.parametrize("limit", [1, 3, 10, 100])
def test_pages_are_complete_and_newest_first(service: RunService, clock: FakeClock, limit: int) -> None:
    """Several in one moment: the id decides then."""
    made = []
    for number in range(10):
        made.append((clock.now(), submit(service, name=f"n{number}").id))
        clock.advance(number % 3)
    assert walk(service, limit) == [run_id for _, run_id in sorted(made, reverse=True)]


def test_pages_stay_complete_while_runs_are_added(service: RunService, clock: FakeClock) -> None:
    first = {submit(service).id for _ in range(20)}
    clock.advance(1)
    stop = threading.Event()

    def add() -> None:
        while not stop.is_set():
            submit(service)

    adder = threading.Thread(target=add)
    adder.start()
    try:
        for _ in range(5):
            seen = walk(service, 3)
            assert len(seen) == len(set(seen))
            assert first <= set(seen)
    finally:
        stop.set()
        adder.join()


def test_pages_can_be_filtered(service: RunService) -> None:
    a, b = submit(service, project="p1", name="x").id, submit(service, project="p2", name="y").id
    service.cancel(b, grace_s=None)
    assert walk(service, 1, project="p1") == [a]
    assert walk(service, 1, name="y") == [b]
    assert walk(service, 1, states=["cancelled"]) == [b]
    assert set(walk(service, 1, states=["cancelled", "queued"])) == {a, b}
    assert walk(service, 1, project="none") == []


def test_an_unknown_state_is_named_with_the_known_ones(service: RunService) -> None:
    with pytest.raises(InvalidInput, match="unknown state 'runing'; did you mean 'running'"):
        service.page(states=["runing"], project=None, name=None, cursor=None, limit=1)


@pytest.mark.parametrize("cursor", ["x", "!!", "W10=", "WzEsMl0", "bnVsbA==", "e30=", "WyJ4IiwgInkiXQ==", "ü"])
def test_what_is_no_cursor_is_refused(service: RunService, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="is not a cursor"):
        service.page(states=[], project=None, name=None, cursor=cursor, limit=1)


# ---- names ---------------------------------------------------------------------------------------------------------


def test_a_run_is_found_by_id_beginning_and_name(service: RunService) -> None:
    run = submit(service, name="gpt-small")
    assert {service.resolve_id(ref) for ref in (run.id, run.id[:6], run.id[2:], run.id[2:7], "gpt-small")} == {run.id}


def test_a_name_means_its_newest_run(service: RunService, clock: FakeClock) -> None:
    submit(service, name="again")
    clock.advance(1)
    newest = submit(service, name="again")
    assert service.resolve_id("again") == newest.id


def test_a_beginning_of_several_ids_is_ambiguous(service: RunService) -> None:
    ids = sorted(submit(service).id for _ in range(3))
    with pytest.raises(Ambiguous, match="is short for several runs") as refused:
        service.resolve_id("r-")
    assert all(run_id in refused.value.message for run_id in ids)


@pytest.mark.parametrize("wrong", ["gpt-smal", "GPT-SMALL", "gpt_small"])
def test_a_wrong_name_gets_the_nearest(service: RunService, wrong: str) -> None:
    submit(service, name="gpt-small")
    with pytest.raises(NotFound, match=f"there is no run '{wrong}'") as refused:
        service.view(wrong)
    assert refused.value.hint == "did you mean 'gpt-small'?"


@pytest.mark.parametrize("wrong", ["%", "_", "r-%", "''; DROP TABLE runs", "日本", "\x7f", "r-\U0010ffff"])
def test_strange_names_are_only_not_found(service: RunService, wrong: str) -> None:
    submit(service)
    with pytest.raises(NotFound):
        service.view(wrong)


# ---- cancel, resume, clone -----------------------------------------------------------------------------------------


def test_a_waiting_run_is_cancelled_at_once(service: RunService, clock: FakeClock) -> None:
    run = service.cancel(submit(service).id, grace_s=None)
    assert (run.state, run.ended_at, run.exit_code) == ("cancelled", clock.now(), 130)
    assert run.exit is not None
    assert run.exit.message == "cancelled before it started"


def test_a_live_run_is_asked_to_stop(service: RunService, database: Database) -> None:
    run_id = submit(service, grace=7).id
    advance(database, run_id, EventKind.PLACED)
    run = service.cancel(run_id, grace_s=None)
    assert (run.state, run.cancelling) == ("starting", True)
    assert load(database, run_id).cancel_grace_s == 7


def test_cancelling_again_changes_nothing_unless_more_haste_is_asked_for(
    service: RunService, database: Database
) -> None:
    run_id = submit(service).id
    advance(database, run_id, EventKind.PLACED)
    service.cancel(run_id, grace_s=5)
    version = load(database, run_id).version
    service.cancel(run_id, grace_s=None)
    service.cancel(run_id, grace_s=5)
    assert load(database, run_id).version == version
    service.cancel(run_id, grace_s=0)
    assert load(database, run_id).cancel_grace_s == 0


def test_a_finished_run_cannot_be_cancelled_but_a_cancelled_one_can_be_again(
    service: RunService, database: Database
) -> None:
    run_id = submit(service).id
    for kind in (EventKind.PLACED, EventKind.STARTED, EventKind.SUCCEEDED):
        advance(database, run_id, kind)
    with pytest.raises(Conflict, match="has succeeded already"):
        service.cancel(run_id, grace_s=None)
    other = submit(service).id
    assert service.cancel(other, grace_s=None) == service.cancel(other, grace_s=None)


def test_a_cancelled_or_failed_run_goes_on_under_its_id(service: RunService, clock: FakeClock) -> None:
    run_id = service.cancel(submit(service).id, grace_s=None).id
    clock.advance(10)
    run = service.resume(run_id)
    assert (run.state, run.cancelling, run.exit, run.ended_at, run.exit_code) == ("queued", False, None, None, None)
    assert [event.kind for event in service.events(run_id, after=0).events] == ["submitted", "cancelled", "resumed"]


def test_only_failed_and_cancelled_runs_can_be_resumed(service: RunService, database: Database) -> None:
    run_id = submit(service).id
    with pytest.raises(Conflict, match="is queued; only failed and cancelled runs can be resumed"):
        service.resume(run_id)
    for kind in (EventKind.PLACED, EventKind.STARTED, EventKind.SUCCEEDED):
        advance(database, run_id, kind)
    with pytest.raises(Conflict, match="is succeeded") as refused:
        service.resume(run_id)
    assert f"windlass clone {run_id}" in (refused.value.hint or "")


def test_earlier_failures_do_not_count_after_a_resume(service: RunService, database: Database) -> None:
    run_id = submit(service).id
    advance(database, run_id, EventKind.PLACED, attempt_count=4)
    advance(database, run_id, EventKind.FAILED)
    service.resume(run_id)
    assert load(database, run_id).first_attempt == 5


def test_a_clone_is_the_same_but_for_its_changes(service: RunService) -> None:
    original = submit(
        service, name="base", command="python t.py --lr ${lr} --n ${n}", params={"lr": 0.1, "n": 2}, retry={"max": 5}
    )
    changes: dict[str, Any] = {"lr": 0.2, "resources.cpus": 3, "priority": "high", "params.n": 4}
    clone = service.clone(original.id, wire.CloneRequest(set=changes), user=None)
    assert clone.id != original.id
    assert clone.clone_of == original.id
    assert clone.command == ["python", "t.py", "--lr", "0.2", "--n", "4"]
    assert (clone.spec.resources.cpus, clone.priority, clone.seed) == (3, "high", original.seed)
    assert clone.spec.retry == original.spec.retry
    assert clone.spec.code is None
    assert clone.name != original.name
    assert service.clone(original.id, wire.CloneRequest(name="mine"), user=None).name == "mine"


def test_a_copy_is_of_who_asked_for_it(service: RunService) -> None:
    origin = wire.Origin(user="ann", host="here", cwd="/work")
    request = wire.SubmitRequest(spec={"command": "true", "code": None}, origin=origin)
    original = service.submit(request, idempotency_key=None, user=None)
    asker = wire.Asker(user="bob", host="there")
    for copy in (
        service.clone(original.id, wire.CloneRequest(asker=asker), user=None),
        service.reproduce(original.id, wire.ReproduceRequest(asker=asker), user=None).run,
    ):
        assert (copy.user, copy.origin.user, copy.origin.host, copy.origin.cwd) == ("bob", "bob", "there", "/work")
    unknown = service.clone(original.id, wire.CloneRequest(), user=None)
    assert (unknown.user, unknown.origin.host) == ("ann", "here")


def test_a_clone_can_have_another_seed(service: RunService) -> None:
    original = submit(service, seed=1)
    assert service.clone(original.id, wire.CloneRequest(set={"seed": 2}), user=None).seed == 2
    assert service.clone(original.id, wire.CloneRequest(), user=None).seed == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lrr": 1}, "unknown key 'lrr'; did you mean 'lr'"),
        ({"resources.gpu": 1}, "unknown key `resources.gpu`; did you mean `gpus`"),
        ({"priority": "urgent"}, "`priority`: input should be 'low', 'normal' or 'high'"),
        ({"command.x": 1}, "`command.x` cannot be set: `command` has no keys of its own"),
        ({"params": 5, "lr": 1}, "unknown key 'lr'"),
        ({"params": 5}, "`params`: input should be a valid dictionary"),
        ({"name.x": 1}, "`name"),
        ({"tags.x.y": 1}, "`tags"),
    ],
)
def test_a_wrong_change_is_refused_by_name(service: RunService, changes: dict[str, Any], message: str) -> None:
    original = submit(service, params={"lr": 1})
    with pytest.raises(InvalidInput) as refused:
        service.clone(original.id, wire.CloneRequest(set=changes), user=None)
    assert message in refused.value.message


# ---- events --------------------------------------------------------------------------------------------------------


def test_the_state_is_what_the_events_say(service: RunService, database: Database) -> None:
    run_id = submit(service).id
    for kind in (
        EventKind.PLACED, EventKind.STARTED, EventKind.RETRYING, EventKind.PLACED, EventKind.FAILED, EventKind.RESUMED,
        EventKind.PLACED, EventKind.STARTED, EventKind.SUCCEEDED,
    ):  # fmt: skip
        advance(database, run_id, kind)
        events = service.events(run_id, after=0).events
        assert STATE_AFTER[EventKind(events[-1].kind)] == load(database, run_id).state
        assert [event.seq for event in events] == sorted({event.seq for event in events})


def test_events_can_be_read_from_where_one_was(service: RunService, database: Database) -> None:
    run_id = submit(service).id
    first = service.events(run_id, after=0)
    assert service.events(run_id, after=first.next_after).events == []
    assert service.events(run_id, after=first.next_after).next_after == first.next_after
    advance(database, run_id, EventKind.PLACED)
    assert [event.kind for event in service.events(run_id, after=first.next_after).events] == ["placed"]


def test_surroundings_that_two_controllers_find_at_once_are_kept_once(database: Database) -> None:
    found = [{"host": "a"}, {"host": "b"}]
    with ThreadPoolExecutor(1) as threads:
        with database.write() as tx:
            digests = store.put_environments(tx, found)
            other = threads.submit(put_environments, database, list(reversed(found)))
            wait([other], timeout=0.2)  # it waits for this one to end
        assert other.result(150) == list(reversed(digests))
    with database.read() as tx:
        assert store.load_environments(tx, digests) == dict(zip(digests, found, strict=True))


def put_environments(db: Database, found: list[dict[str, str]]) -> list[str]:
    with db.write() as tx:
        return store.put_environments(tx, found)
