"""Events reach webhooks: written where they happen, claimed by one, tried again, and never lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from sqlalchemy import select

from windlass.core.errors import InvalidInput, NotFound, Unavailable
from windlass.db.database import Database
from windlass.registry.service import RegistryService
from windlass.registry.types import NewVersion
from windlass.runs.announcements import announcements
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.runs.store import record_event
from windlass.runs.types import EventKind
from windlass.testing.clock import FakeClock
from windlass.webhooks import outbox
from windlass.webhooks.addresses import WebhookRules
from windlass.webhooks.deliverer import Deliverer
from windlass.webhooks.events import EXAMPLES, RUN_EXAMPLES
from windlass.webhooks.sending import Letter
from windlass.webhooks.service import Changes, WebhookService
from windlass.webhooks.tables import webhook_deliveries, webhooks
from windlass.webhooks.types import Delivery, Reply, Webhook, WebhookStatus
from windlass.wire import runs as wire

RULES = WebhookRules(schemes=("https",), allow_private=True, timeout_s=10.0)
EVENTS = ("registered_model.created", "model_version.created")


@dataclass
class FakeReceiver:
    """Remembers what it was sent and answers what it was told to, then 200."""

    replies: list[Reply] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def send(self, letter: Letter, *, at: float) -> Reply:
        self.letters.append(letter)
        self.times.append(at)
        return self.replies.pop(0) if self.replies else Reply(status=200)

    def told(self) -> list[str]:
        return [json.loads(letter.body)["data"]["name"] for letter in self.letters]


@pytest.fixture
def receiver() -> FakeReceiver:
    return FakeReceiver()


@pytest.fixture
def hooks(database: Database, clock: FakeClock, seal: Seal, receiver: FakeReceiver) -> WebhookService:
    return WebhookService(db=database, clock=clock, seal=seal, sender=receiver, rules=RULES)


@pytest.fixture
def registry(database: Database, clock: FakeClock) -> RegistryService:
    return RegistryService(db=database, clock=clock)


@dataclass
class Server:
    """A deliverer whose threads are the test itself."""

    database: Database
    clock: FakeClock
    seal: Seal
    receiver: FakeReceiver
    name: str = "one"

    def __post_init__(self) -> None:
        self.deliverer = Deliverer(
            self.database,
            self.clock,
            seal=self.seal,
            sender=self.receiver,
            rules=RULES,
            holder=self.name,
            monotonic=self.clock.monotonic,
        )

    def claim(self) -> list[Delivery]:
        return self.deliverer.take()[0]

    def deliver(self) -> int:
        claimed = self.claim()
        for delivery in claimed:
            self.deliverer.deliver_claimed(delivery)
        return len(claimed)


@pytest.fixture
def server(database: Database, clock: FakeClock, seal: Seal, receiver: FakeReceiver) -> Server:
    return Server(database, clock, seal, receiver)


def add_hook(hooks: WebhookService, name: str = "hook", secret: str | None = None) -> Webhook:
    return hooks.create(name=name, url="https://example.com/hook", events=EVENTS, secret=secret)


def add_model(registry: RegistryService, name: str = "m") -> None:
    registry.create_model(name, tags={}, description=None)


def states(database: Database, hook: Webhook) -> list[str]:
    with database.read() as tx:
        return [str(row["state"]) for row in outbox.load_states(tx, hook.id)]


def test_a_webhook_is_what_it_was_made_of(hooks: WebhookService, clock: FakeClock) -> None:
    made = add_hook(hooks)
    assert hooks.get(made.id) == made
    assert made.events == EVENTS
    changed = hooks.update(made.id, Changes(name="other", status=WebhookStatus.DISABLED, events=EVENTS[:1]))
    assert (changed.name, changed.url, changed.status) == ("other", made.url, WebhookStatus.DISABLED)
    assert changed.events == EVENTS[:1]
    assert changed.updated_at > made.updated_at
    hooks.delete(made.id)
    for deed in (hooks.get, hooks.delete):
        with pytest.raises(NotFound, match=f"Webhook with ID {made.id} not found"):
            deed(made.id)
    with pytest.raises(NotFound):
        hooks.update(made.id, Changes(name="-"))
    with pytest.raises(InvalidInput, match="must be a non-empty list"):
        hooks.create(name="a", url="https://a", events=[])


def test_webhooks_are_listed_newest_first_in_pages(hooks: WebhookService, clock: FakeClock) -> None:
    for number in range(3):
        clock.advance(1)
        add_hook(hooks, f"h{number}")
    first, token = hooks.list(most=2, token=None)
    rest, end = hooks.list(most=2, token=token)
    assert [[hook.name for hook in page] for page in (first, rest)] == [["h2", "h1"], ["h0"]]
    assert end is None
    with pytest.raises(InvalidInput, match="max_results must be between 1 and 1000"):
        hooks.list(most=1001, token=None)


def test_an_event_is_told_to_who_wants_it(
    hooks: WebhookService, registry: RegistryService, server: Server, receiver: FakeReceiver, database: Database
) -> None:
    hook = add_hook(hooks)
    off = add_hook(hooks, "off")
    hooks.update(off.id, Changes(status=WebhookStatus.DISABLED))
    hooks.create(name="other", url="https://example.com/other", events=["prompt.created"])
    add_model(registry, "m")
    registry.set_model_tag("m", "a", "b")
    assert server.deliver() == 1
    assert receiver.told() == ["m"]
    assert states(database, hook) == ["delivered"]
    assert server.deliver() == 0


def test_what_does_not_happen_is_not_told(hooks: WebhookService, registry: RegistryService, server: Server) -> None:
    add_hook(hooks)
    add_model(registry)
    with pytest.raises(Exception, match="already exists"):
        add_model(registry)
    assert server.deliver() == 1


def test_a_secret_is_sealed_and_signs(
    hooks: WebhookService, registry: RegistryService, server: Server, receiver: FakeReceiver, database: Database
) -> None:
    hook = add_hook(hooks, secret="hunter2-correct-horse")
    with database.read() as tx:
        assert b"hunter2" not in bytes(tx.execute(select(webhooks.c.secret)).scalar_one())
    add_model(registry)
    server.deliver()
    hooks.try_out(hook.id, None)
    assert [letter.secret for letter in receiver.letters] == ["hunter2-correct-horse"] * 2
    hooks.update(hook.id, Changes(secret=""))
    assert hooks.get(hook.id).secret is None


def test_trouble_is_tried_again_under_the_same_id(
    hooks: WebhookService,
    registry: RegistryService,
    server: Server,
    receiver: FakeReceiver,
    clock: FakeClock,
    database: Database,
) -> None:
    hook = add_hook(hooks)
    receiver.replies = [Reply(status=500), Reply(error="refused"), Reply(status=503, retry_after_s=60.0)]
    add_model(registry)
    assert server.deliver() == 1  # 500: again at once
    assert server.deliver() == 1  # refused: again in 2 s and a bit
    assert server.deliver() == 0
    clock.advance(3.1)
    assert server.deliver() == 1  # 503: in a minute, as it was asked
    clock.advance(59)
    assert server.deliver() == 0
    clock.advance(2)
    assert server.deliver() == 1
    assert states(database, hook) == ["delivered"]
    assert len({letter.delivery_id for letter in receiver.letters}) == 1
    assert len({letter.body for letter in receiver.letters}) == 1


def test_it_is_given_up_in_the_end(
    hooks: WebhookService,
    registry: RegistryService,
    server: Server,
    receiver: FakeReceiver,
    clock: FakeClock,
    database: Database,
) -> None:
    hook = add_hook(hooks)
    receiver.replies = [Reply(status=500)] * 9
    add_model(registry)
    tries = 0
    for _ in range(9):
        tries += server.deliver()
        clock.advance(61)
    assert (tries, states(database, hook)) == (4, ["failed"])


def test_a_refusal_is_not_tried_again(
    hooks: WebhookService, registry: RegistryService, server: Server, receiver: FakeReceiver, database: Database
) -> None:
    hook = add_hook(hooks)
    receiver.replies = [Reply(status=401)]
    add_model(registry)
    assert (server.deliver(), server.deliver(), states(database, hook)) == (1, 0, ["failed"])


def test_one_of_several_servers_sends(
    hooks: WebhookService, registry: RegistryService, server: Server, receiver: FakeReceiver
) -> None:
    other = Server(server.database, server.clock, server.seal, receiver, name="two")
    add_hook(hooks)
    add_model(registry)
    with server.database.read() as tx:
        [seen] = outbox.load_due(tx, now=server.clock.now(), limit=10)
    with server.database.write() as tx:
        assert outbox.claim(tx, seen, "one")
        assert not outbox.claim(tx, seen, "two")  # which has seen it before it was claimed
    assert other.deliver() == 0


def test_a_claim_of_the_dead_passes_on(
    hooks: WebhookService,
    registry: RegistryService,
    server: Server,
    receiver: FakeReceiver,
    clock: FakeClock,
    database: Database,
) -> None:
    other = Server(database, clock, server.seal, receiver, name="two")
    hook = add_hook(hooks)
    add_model(registry)
    [lost] = server.claim()
    assert other.deliver() == 0
    clock.advance(29)
    assert other.deliver() == 0
    clock.advance(2)
    assert other.deliver() == 1
    assert states(database, hook) == ["delivered"]
    server.deliverer.deliver(lost)  # it was not dead after all: receivers know the id, and nothing is recorded twice
    assert states(database, hook) == ["delivered"]
    assert len({letter.delivery_id for letter in receiver.letters}) == 1


def test_what_could_not_be_recorded_is_sent_again(
    hooks: WebhookService,
    registry: RegistryService,
    server: Server,
    receiver: FakeReceiver,
    clock: FakeClock,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hook = add_hook(hooks)
    add_model(registry)

    def away(*_given: object, **_named: object) -> bool:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "conclude", away)
        assert server.deliver() == 1
    assert states(database, hook) == ["waiting"]
    assert server.deliver() == 0  # not at once, and again and again
    clock.advance(31)
    assert server.deliver() == 1
    assert states(database, hook) == ["delivered"]
    assert len({letter.delivery_id for letter in receiver.letters}) == 1


def test_what_is_in_hand_is_not_taken_again(
    hooks: WebhookService, registry: RegistryService, server: Server, clock: FakeClock
) -> None:
    add_hook(hooks)
    add_model(registry)
    [slow] = server.claim()
    for _ in range(3):
        clock.advance(31)
        assert server.claim() == []
    server.deliverer.deliver_claimed(slow)


def test_claims_of_others_are_forgotten_when_they_are_over(
    hooks: WebhookService, registry: RegistryService, server: Server, receiver: FakeReceiver
) -> None:
    other = Server(server.database, server.clock, server.seal, receiver, name="two")
    add_hook(hooks)
    add_model(registry)
    [theirs] = server.claim()
    assert other.claim() == []
    assert list(other.deliverer._claims) == [theirs.id]
    server.deliverer.deliver_claimed(theirs)
    server.clock.advance(3_601)
    assert other.claim() == []
    assert not other.deliverer._claims


def test_a_slow_webhook_keeps_no_other_waiting(
    hooks: WebhookService, registry: RegistryService, server: Server, clock: FakeClock
) -> None:
    slow = add_hook(hooks, "slow")
    for number in range(40):
        add_model(registry, f"m{number}")
    clock.advance(1)
    quick = hooks.create(name="quick", url="https://example.com", events=["registered_model.created"])
    add_model(registry, "last")
    in_hand = server.claim()
    assert [delivery.webhook_id for delivery in in_hand] == [slow.id] * 2
    assert [delivery.webhook_id for delivery in server.claim()] == [quick.id]
    assert server.claim() == []
    server.deliverer.deliver_claimed(in_hand[0])
    assert [delivery.webhook_id for delivery in server.claim()] == [slow.id]


def test_sqlite_has_no_other_server(
    hooks: WebhookService, registry: RegistryService, server: Server, database: Database
) -> None:
    add_hook(hooks)
    add_model(registry)
    server.claim()
    successor = Server(database, server.clock, server.seal, server.receiver, name="two")
    successor.deliverer.begin()
    assert successor.deliver() == (1 if database.is_sqlite else 0)


def test_what_is_switched_off_hears_nothing_any_more(
    hooks: WebhookService, registry: RegistryService, server: Server, receiver: FakeReceiver, database: Database
) -> None:
    off, gone = add_hook(hooks, "off"), add_hook(hooks, "gone")
    add_model(registry)
    hooks.update(off.id, Changes(status=WebhookStatus.DISABLED))
    hooks.delete(gone.id)
    server.deliver()
    assert (states(database, off), receiver.letters) == (["dropped"], [])


def test_what_is_over_is_forgotten_after_a_week(
    hooks: WebhookService, registry: RegistryService, server: Server, clock: FakeClock, database: Database
) -> None:
    add_hook(hooks)
    add_model(registry, "old")
    server.deliver()
    clock.advance(8 * 86_400)
    add_model(registry, "new")
    with database.write() as tx:
        assert outbox.delete_ended(tx, before=clock.now() - 7 * 86_400, limit=100) == 1
        assert len(tx.execute(select(webhook_deliveries.c.id)).all()) == 1


def test_all_that_is_over_goes_however_much_it_is(
    hooks: WebhookService,
    registry: RegistryService,
    server: Server,
    clock: FakeClock,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("windlass.webhooks.deliverer._CLEARED_AT_ONCE", 2)
    hook = add_hook(hooks)
    for number in range(5):
        add_model(registry, f"m{number}")
    while server.deliver():
        pass
    server.deliverer.begin()
    clock.advance(8 * 86_400)
    server.deliverer.look()
    assert states(database, hook) == []


def test_every_deed_is_told_as_what_it_is(
    hooks: WebhookService, registry: RegistryService, server: Server, receiver: FakeReceiver
) -> None:
    hooks.create(name="all", url="https://example.com", events=list(EXAMPLES))
    for name, tags in (("m", {}), ("p", {"mlflow.prompt.is_prompt": "true", "_mlflow_prompt_type": "text"})):
        registry.create_model(name, tags=tags, description="about")
        text = {**tags, "mlflow.prompt.text": "Hi"} if tags else {"a": "b"}
        registry.create_version(NewVersion(name=name, source="s3://b/c", run_id="r" if not tags else "", tags=text))
        registry.set_model_tag(name, "k", "v")
        registry.delete_model_tag(name, "k")
        registry.set_version_tag(name, 1, "k", "v")
        registry.delete_version_tag(name, 1, "k")
        registry.set_alias(name, "best", 1)
        registry.delete_alias(name, "best")
    while server.deliver():
        pass
    bodies = [json.loads(letter.body) for letter in receiver.letters]
    told = {f"{body['entity']}.{body['action']}": body["data"] for body in bodies}
    assert set(told) == set(EXAMPLES) - {"budget_policy.exceeded"}
    assert {event: set(data) for event, data in told.items()} == {event: set(EXAMPLES[event]) for event in told}
    assert told["prompt.created"]["tags"] == told["prompt_version.created"]["tags"] == {}
    assert told["prompt_version.created"]["template"] == "Hi"
    assert told["model_version.created"]["run_id"] == "r"


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800", "a" * 2001])
def test_what_cannot_be_kept_is_refused(hooks: WebhookService, text: str) -> None:
    hook = add_hook(hooks)
    for changes in (Changes(description=text), Changes(secret=text)):
        with pytest.raises(InvalidInput, match="text of at most 2000 characters"):
            hooks.update(hook.id, changes)
    with pytest.raises(NotFound):
        hooks.get(text)


def test_runs_are_told_of(
    hooks: WebhookService, service: RunService, server: Server, receiver: FakeReceiver, database: Database
) -> None:
    hooks.create(name="runs", url="https://example.com", events=["run.submitted", "run.cancelled", "run.alert"])
    run = service.submit(wire.SubmitRequest(spec={"command": "true", "code": None}), idempotency_key=None, user=None)
    with database.write() as tx:
        record_event(tx, run.id, EventKind.ALERT, at=1.0, message="loss is not a number", data={"title": "nan"})
        record_event(tx, run.id, EventKind.CHECKPOINT, at=1.0, message="saved")
    service.cancel(run.id, grace_s=None)
    while server.deliver():
        pass
    bodies = [json.loads(letter.body) for letter in receiver.letters]
    told = {f"{body['entity']}.{body['action']}": body["data"] for body in bodies}
    assert set(told) == {"run.submitted", "run.cancelled", "run.alert"}
    assert told["run.alert"] == {
        "run_id": run.id,
        "attempt": None,
        "message": "loss is not a number",
        "data": {"title": "nan"},
    }


def test_every_event_of_runs_is_known() -> None:
    rows = [{"run_id": "r", "kind": kind, "at": 1.0, "message": "", "attempt": 1, "data": {}} for kind in EventKind]
    assert {one.event for one in announcements(rows)} == set(RUN_EXAMPLES)
    assert all(set(one.data) == set(RUN_EXAMPLES[one.event]) for one in announcements(rows))


def test_an_event_that_nobody_knows(hooks: WebhookService) -> None:
    with pytest.raises(InvalidInput, match=r"unknown event 'run\.exploded'; known: registered_model\.created"):
        hooks.create(name="a", url="https://a", events=["run.exploded"])
