"""Events reach webhooks: claimed by one, tried again, and never lost."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from tests.contract.webhook_stage import FakeReceiver, Server, add_hook, add_model, states
from windlass.core.errors import Unavailable
from windlass.db.database import Database
from windlass.registry.service import RegistryService
from windlass.testing.clock import FakeClock
from windlass.webhooks import outbox
from windlass.webhooks.service import Changes, WebhookService
from windlass.webhooks.tables import webhook_deliveries
from windlass.webhooks.types import Reply, WebhookStatus


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
