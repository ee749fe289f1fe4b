"""Webhooks as they are kept, and which events they are told of: written where they happen, by the same transaction."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from tests.contract.webhook_stage import EVENTS, FakeReceiver, Server, add_hook, add_model, states
from windlass.core.errors import InvalidInput, NotFound
from windlass.db.database import Database
from windlass.registry.service import RegistryService
from windlass.registry.types import NewVersion
from windlass.runs.announcements import announcements
from windlass.runs.service import RunService
from windlass.runs.store import record_event
from windlass.runs.types import EventKind
from windlass.testing.clock import FakeClock
from windlass.webhooks.events import EXAMPLES, RUN_EXAMPLES
from windlass.webhooks.service import Changes, WebhookService
from windlass.webhooks.tables import webhooks
from windlass.webhooks.types import WebhookStatus
from windlass.wire import runs as wire


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
