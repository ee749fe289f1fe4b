"""Questions to reviewers and queues of traces, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Delete, Update, delete, update

from tests.contract.locks import until_it_waits
from windlass.core.errors import AlreadyExists, InvalidInput, NotFound
from windlass.db.database import Database
from windlass.evaluation.labels import AnswerInput, LabelSchema, LabelService
from windlass.evaluation.reviews import ReviewQueue, ReviewService
from windlass.evaluation.tables import label_schemas, review_queues
from windlass.experiments.catalogue import put_default, put_experiment
from windlass.experiments.service import ExperimentService
from windlass.testing.clock import FakeClock
from windlass.traces import tables as trace_tables
from windlass.traces.service import TraceService
from windlass.traces.types import Trace

THUMBS = AnswerInput(form="pass_fail", limits={"positive_label": "Good", "negative_label": "Bad"})


@pytest.fixture
def db(database: Database) -> Database:
    with database.write() as tx:
        put_default(tx, now_ms=0)
        put_experiment(tx, "other", None, (), now_ms=0)
    return database


@pytest.fixture
def labels(db: Database, clock: FakeClock) -> LabelService:
    return LabelService(db=db, clock=clock)


@pytest.fixture
def reviews(db: Database, clock: FakeClock) -> ReviewService:
    return ReviewService(db=db, clock=clock)


@pytest.fixture
def traces(db: Database, clock: FakeClock) -> TraceService:
    """With three of experiment 0, and one of another."""
    service = TraceService(db=db, clock=clock)
    for trace_id in ("tr-1", "tr-2", "tr-3"):
        service.start(Trace(id=trace_id, experiment_id=0, request_ms=0, duration_ms=0, state="OK"), experiment_id="0")
    service.start(Trace(id="tr-x", experiment_id=1, request_ms=0, duration_ms=0, state="OK"), experiment_id="1")
    return service


def question(labels: LabelService, name: str, input: AnswerInput = THUMBS) -> LabelSchema:
    return labels.create("0", name=name, kind="feedback", input=input, instruction=None, comment=False)


def queue(reviews: ReviewService, name: str, *, users: tuple[str, ...] = (), asks: tuple[str, ...] = ()) -> ReviewQueue:
    return reviews.create("0", name=name, kind="custom", users=users, schema_ids=asks)


# ---- questions -----------------------------------------------------------------------------------------------------


def test_a_question_is_kept_as_it_was_asked(labels: LabelService) -> None:
    made = labels.create(
        "0",
        name="How long?",
        kind="expectation",
        input=AnswerInput(form="numeric", limits={"min_value": 0.0}),
        instruction="in words",
        comment=True,
    )
    assert labels.get(made.id) == made == labels.get_named("0", "How long?")
    assert (made.kind, made.input.limits, made.instruction, made.comment) == (
        "expectation",
        {"min_value": 0.0},
        "in words",
        True,
    )


def test_names_of_questions_are_their_experiments(labels: LabelService) -> None:
    question(labels, "Correct?")
    labels.create("1", name="Correct?", kind="feedback", input=THUMBS, instruction=None, comment=False)
    with pytest.raises(AlreadyExists, match=r"'Correct\?' already exists for experiment '0'"):
        question(labels, "Correct?")
    other = question(labels, "Polite?")
    with pytest.raises(AlreadyExists, match=r"'Correct\?' already exists"):
        labels.update(other.id, name="Correct?", instruction=None, comment=None, input=None)
    assert labels.get(other.id).name == "Polite?"


def test_every_experiment_has_one_question_that_stays(labels: LabelService, clock: FakeClock) -> None:
    for number in range(3):
        clock.advance(1)
        question(labels, f"q{number}")
    clock.advance(1)
    first, token = labels.list("0", most=2, token=None)
    rest, end = labels.list("0", most=2, token=token)
    assert [one.name for one in [*first, *rest]] == ["Feedback", "q2", "q1", "q0"]
    assert (token is None, end) == (False, None)
    (default,) = [one for one in first if one.is_default]
    with pytest.raises(InvalidInput, match="cannot be deleted"):
        labels.delete(default.id)
    with pytest.raises(InvalidInput, match="cannot be edited"):
        labels.update(default.id, name="mine", instruction=None, comment=None, input=None)
    with pytest.raises(InvalidInput, match="reserved"):
        question(labels, " feedback ")
    assert labels.get(default.id) == default


def test_answers_that_were_given_still_fit(labels: LabelService, clock: FakeClock) -> None:
    chosen = AnswerInput(form="categorical", limits={"options": ["a", "b"], "multi_select": False})
    held = question(labels, "Which?", chosen)
    clock.advance(1)
    more = AnswerInput(form="categorical", limits={"options": ["a", "b", "c"], "multi_select": False})
    changed = labels.update(held.id, name=None, instruction="pick", comment=True, input=more)
    assert labels.get(held.id) == changed
    assert (changed.name, changed.input, changed.updated_ms > held.updated_ms) == ("Which?", more, True)
    with pytest.raises(InvalidInput, match="input type cannot be changed"):
        labels.update(held.id, name=None, instruction=None, comment=None, input=THUMBS)
    several = AnswerInput(form="categorical", limits={"options": ["a"], "multi_select": True})
    with pytest.raises(InvalidInput, match="multi_select` cannot be changed"):
        labels.update(held.id, name=None, instruction=None, comment=None, input=several)


@pytest.mark.parametrize(
    ("form", "limits", "message"),
    [
        ("pass_fail", {"positive_label": "", "negative_label": "b"}, "non-empty string"),
        ("pass_fail", {"positive_label": "a" * 65, "negative_label": "b"}, "at most 64"),
        ("pass_fail", {"positive_label": "b", "negative_label": "b"}, "must be distinct"),
        ("categorical", {"options": []}, "non-empty list"),
        ("categorical", {"options": ["a", "a"]}, "deduplicated"),
        ("categorical", {"options": [""]}, "non-empty strings"),
        ("categorical", {"options": ["a" * 65]}, "at most 64 characters"),
        ("categorical", {"options": [str(number) for number in range(11)]}, "at most 10"),
        ("numeric", {"min_value": 1.0, "max_value": 1.0}, "strictly less"),
        ("numeric", {"min_value": float("nan")}, "`InputNumeric.min_value` must be a finite number; got nan"),
        ("numeric", {"min_value": 0.0, "max_value": float("inf")}, "max_value` must be a finite number; got inf"),
        ("text", {"max_length": 0}, "at least 1"),
    ],
)
def test_inputs_that_nobody_can_use(labels: LabelService, form: str, limits: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        question(labels, "q", AnswerInput(form=form, limits=limits))


def test_questions_go_with_whoever_deletes_them(labels: LabelService) -> None:
    held = question(labels, "q")
    labels.delete(held.id)
    labels.delete(held.id)
    with pytest.raises(NotFound, match=f"'{held.id}' not found"):
        labels.get(held.id)
    with pytest.raises(NotFound, match="'q' not found for experiment '0'"):
        labels.get_named("0", "q")


def test_deleted_experiments_are_asked_nothing_new(labels: LabelService, db: Database, clock: FakeClock) -> None:
    held = labels.create("1", name="q", kind="feedback", input=THUMBS, instruction=None, comment=False)
    ExperimentService(db=db, clock=clock).delete("1")
    assert labels.get(held.id) == held
    with pytest.raises(NotFound, match="No Experiment with id=1"):
        labels.create("1", name="r", kind="feedback", input=THUMBS, instruction=None, comment=False)


# ---- queues --------------------------------------------------------------------------------------------------------


def test_a_queue_has_people_and_questions(labels: LabelService, reviews: ReviewService) -> None:
    asked = question(labels, "q")
    made = queue(reviews, " Night shift ", users=("Bob", "ann ", "bob"), asks=(asked.id,))
    assert (made.name, made.users, made.schema_ids) == ("Night shift", ["ann", "bob"], [asked.id])
    assert reviews.get(made.id) == made == reviews.get_named("0", "night SHIFT")
    with pytest.raises(AlreadyExists, match="case-insensitive"):
        queue(reviews, "NIGHT shift")
    with pytest.raises(InvalidInput, match=r"\['ls-none'\] not found for experiment '0'"):
        queue(reviews, "other", asks=("ls-none",))


def test_everybody_has_a_queue_of_their_own(labels: LabelService, reviews: ReviewService) -> None:
    asked = question(labels, "q")
    mine = reviews.queue_of("0", " Ann@Example.com ")
    assert (mine.name, mine.kind, mine.users, mine.created_by) == (
        "ann@example.com",
        "user",
        ["ann@example.com"],
        "ann@example.com",
    )
    assert reviews.queue_of("0", "ANN@example.com") == mine
    assert reviews.queue_of("1", "ann@example.com").id != mine.id
    with pytest.raises(InvalidInput, match="fixed and cannot be updated"):
        reviews.update(mine.id, name="other", owner=None, users=None, schema_ids=None)
    with pytest.raises(InvalidInput, match="cannot have explicitly-attached schemas"):
        reviews.create("0", name="bob", kind="user", users=(), schema_ids=(asked.id,))
    with pytest.raises(InvalidInput, match="exactly one assigned user"):
        reviews.create("0", name="bob", kind="user", users=("eve",), schema_ids=())
    queue(reviews, "carl")
    with pytest.raises(AlreadyExists, match="A non-user queue named 'carl'"):
        reviews.queue_of("0", "Carl")


@pytest.mark.parametrize(
    ("name", "users", "message"),
    [
        ("  ", (), "`name` must be a non-empty string"),
        ("x" * 251, (), "at most 250 characters"),
        ("Default", (), "reserved queue name"),
        ("q", (" ",), "`user` must be a non-empty string"),
        ("q", tuple(f"u{number}" for number in range(11)), "at most 10 assigned users"),
    ],
)
def test_queues_that_nobody_can_have(reviews: ReviewService, name: str, users: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        queue(reviews, name, users=users)


def test_queues_are_found_by_people_and_traces(reviews: ReviewService, traces: TraceService, clock: FakeClock) -> None:
    first = queue(reviews, "first", users=("ann",))
    clock.advance(1)
    second = queue(reviews, "second", users=("ann", "bob"))
    clock.advance(1)
    own = reviews.queue_of("0", "bob")
    reviews.add(first.id, ["tr-1"])

    def names(user: str | None = None, trace_id: str | None = None) -> list[str]:
        return [one.name for one in reviews.list("0", user=user, trace_id=trace_id, most=10, token=None)[0]]

    assert names() == ["bob", "second", "first"]
    assert names(user="ANN") == ["second", "first"]
    assert names(user="bob") == ["bob", "second"]
    assert names(trace_id="tr-1") == ["first"]
    page, token = reviews.list("0", user=None, trace_id=None, most=2, token=None)
    assert [one.id for one in page] == [own.id, second.id]
    assert [one.id for one in reviews.list("0", user=None, trace_id=None, most=2, token=token)[0]] == [first.id]


def test_a_queue_changes_while_it_is_set_up(
    labels: LabelService, reviews: ReviewService, traces: TraceService, clock: FakeClock
) -> None:
    asked, other = question(labels, "q"), question(labels, "r")
    held = queue(reviews, "mine", users=("ann",), asks=(asked.id,))
    queue(reviews, "Taken")
    clock.advance(1)
    changed = reviews.update(held.id, name="Mine", owner=" Bob ", users=["eve", "bob"], schema_ids=[other.id])
    assert reviews.get(held.id) == changed
    assert (changed.name, changed.created_by, changed.users, changed.schema_ids) == (
        "Mine",
        "Bob",
        ["bob", "eve"],
        [other.id],
    )
    assert reviews.update(held.id, name=None, owner=None, users=None, schema_ids=None) == changed
    with pytest.raises(AlreadyExists, match="'taken' already exists"):
        reviews.update(held.id, name="taken", owner=None, users=None, schema_ids=None)
    reviews.add(held.id, ["tr-1"])
    with pytest.raises(InvalidInput, match="locked once items are assigned"):
        reviews.update(held.id, name=None, owner=None, users=None, schema_ids=[asked.id])
    assert reviews.update(held.id, name=None, owner=None, users=["zoe"], schema_ids=None).users == ["zoe"]
    reviews.remove(held.id, ["tr-1"])
    assert reviews.update(held.id, name=None, owner=None, users=None, schema_ids=[]).schema_ids == []


# ---- items ---------------------------------------------------------------------------------------------------------


def test_traces_are_reviewed_by_whoever_comes_first(
    reviews: ReviewService, traces: TraceService, clock: FakeClock
) -> None:
    held = queue(reviews, "q")
    added = reviews.add(held.id, ["tr-2", "tr-1", " tr-2 "])
    assert [(one.trace_id, one.status) for one in added] == [("tr-2", "pending"), ("tr-1", "pending")]
    clock.advance(1)
    done = reviews.set_status(held.id, "tr-1", status="complete", completed_by=" Ann ")
    assert (done.completed_by, done.completed_ms) == ("ann", int(clock.now() * 1000))
    clock.advance(1)
    assert reviews.set_status(held.id, "tr-1", status="complete", completed_by="bob") == done
    assert reviews.add(held.id, ["tr-1"]) == [done]
    assert reviews.items(held.id, status="complete", most=10, token=None) == ([done], None)
    declined = reviews.set_status(held.id, "tr-1", status="declined", completed_by="bob")
    assert (declined.completed_by, declined.status) == ("bob", "declined")
    again = reviews.set_status(held.id, "tr-1", status="pending", completed_by=None)
    assert (again.completed_by, again.completed_ms, again.status) == (None, None, "pending")
    with pytest.raises(InvalidInput, match="required when setting status to `complete`"):
        reviews.set_status(held.id, "tr-1", status="complete", completed_by=" ")
    with pytest.raises(InvalidInput, match="must not be set when reopening"):
        reviews.set_status(held.id, "tr-1", status="pending", completed_by="ann")
    with pytest.raises(NotFound, match="'tr-3' is not attached"):
        reviews.set_status(held.id, "tr-3", status="complete", completed_by="ann")


def test_only_traces_of_the_experiment_are_reviewed(reviews: ReviewService, traces: TraceService) -> None:
    held = queue(reviews, "q")
    with pytest.raises(NotFound, match=r"Cannot attach trace\(s\) \['tr-x', 'tr-none'\].*experiment '0'"):
        reviews.add(held.id, ["tr-1", "tr-x", "tr-none"])
    assert reviews.items(held.id, status=None, most=10, token=None) == ([], None)
    with pytest.raises(InvalidInput, match="non-empty list"):
        reviews.add(held.id, [])
    for deed in (reviews.add, reviews.remove):
        with pytest.raises(InvalidInput, match=r"`item_ids` must have at most 10000 entries; got 300000\."):
            deed(held.id, [f"tr-{number}" for number in range(300_000)])
    with pytest.raises(InvalidInput, match="`schema_ids` must have at most 10000 entries"):
        queue(reviews, "r", asks=tuple(f"ls-{number}" for number in range(10_001)))
    with pytest.raises(NotFound, match="'rq-none' not found"):
        reviews.add("rq-none", ["tr-1"])


def test_items_come_in_pages_the_newest_first(reviews: ReviewService, traces: TraceService, clock: FakeClock) -> None:
    held = queue(reviews, "q")
    for trace_id in ("tr-3", "tr-1", "tr-2"):
        clock.advance(1)
        reviews.add(held.id, [trace_id])
    first, token = reviews.items(held.id, status=None, most=2, token=None)
    rest, end = reviews.items(held.id, status="pending", most=2, token=token)
    assert [one.trace_id for one in [*first, *rest]] == ["tr-2", "tr-1", "tr-3"]
    assert end is None


def test_traces_that_are_deleted_leave_their_queues(reviews: ReviewService, traces: TraceService) -> None:
    held = queue(reviews, "q")
    reviews.add(held.id, ["tr-1", "tr-2"])
    traces.delete("0", until_ms=None, at_most=None, trace_ids=["tr-1"])
    assert [one.trace_id for one in reviews.items(held.id, status=None, most=10, token=None)[0]] == ["tr-2"]


def test_a_queue_goes_with_all_that_is_in_it(reviews: ReviewService, traces: TraceService) -> None:
    held = queue(reviews, "q", users=("ann",))
    reviews.add(held.id, ["tr-1"])
    reviews.delete(held.id)
    reviews.delete(held.id)
    with pytest.raises(NotFound, match=f"'{held.id}' not found"):
        reviews.items(held.id, status=None, most=10, token=None)
    again = queue(reviews, "q")
    assert (again.users, reviews.items(again.id, status=None, most=10, token=None)) == ([], ([], None))


# ---- two at a time -------------------------------------------------------------------------------------------------


def do_while_another_writes(db: Database, written: Update | Delete, deed: Callable[[], object]) -> None:
    """The deed looks before the other one is done, and comes to write after it, where the database lets it."""
    with ThreadPoolExecutor(1) as pool:
        with db.write() as tx:
            tx.execute(written)
            doing = pool.submit(deed)
            until_it_waits(db, doing)
        doing.result()


def test_of_two_that_take_one_name_the_second_is_refused(
    db: Database, labels: LabelService, reviews: ReviewService
) -> None:
    first, second = question(labels, "a"), question(labels, "b")
    renamed: Update | Delete = update(label_schemas).where(label_schemas.c.id == first.id).values(name="c")
    with pytest.raises(AlreadyExists, match="'c' already exists"):
        do_while_another_writes(
            db, renamed, lambda: labels.update(second.id, name="c", instruction=None, comment=None, input=None)
        )
    one, other = queue(reviews, "a"), queue(reviews, "b")
    renamed = update(review_queues).where(review_queues.c.id == one.id).values(name="C", name_key="c")
    with pytest.raises(AlreadyExists, match="'c' already exists"):
        do_while_another_writes(
            db, renamed, lambda: reviews.update(other.id, name="c", owner=None, users=None, schema_ids=None)
        )


def test_a_trace_that_is_deleted_meanwhile_is_not_there(
    db: Database, reviews: ReviewService, traces: TraceService
) -> None:
    held = queue(reviews, "q")
    gone = delete(trace_tables.traces).where(trace_tables.traces.c.id == "tr-1")
    with pytest.raises(NotFound, match=r"Cannot attach trace\(s\) \['tr-1'\]"):
        do_while_another_writes(db, gone, lambda: reviews.add(held.id, ["tr-1", "tr-2"]))
