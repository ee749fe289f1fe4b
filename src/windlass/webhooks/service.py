"""What can be done with webhooks; one transaction each. Secrets are sealed before they reach the database."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, Unavailable
from windlass.core.paging import offset_of, page_token
from windlass.core.storable import storable_text
from windlass.db.database import Database
from windlass.webhooks import outbox, store
from windlass.webhooks.addresses import WebhookRules, check_name, check_url
from windlass.webhooks.events import ALL_EXAMPLES, check_events, render_body
from windlass.webhooks.sending import Letter, Sender
from windlass.webhooks.types import Reply, Webhook, WebhookStatus

_MOST_AT_ONCE = 1_000
_MOST_TRIALS = 4
_SECRET = "secret"
_LONGEST_TEXT = 2_000


class Sealing(Protocol):
    def wrap(self, values: Mapping[str, str]) -> bytes | None: ...

    def unwrap(self, sealed: bytes | None) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is None stays as it is."""

    name: str | None = None
    description: str | None = None
    url: str | None = None
    events: Sequence[str] | None = None
    secret: str | None = None
    status: WebhookStatus | None = None


class WebhookService:
    def __init__(self, *, db: Database, clock: Clock, seal: Sealing, sender: Sender, rules: WebhookRules) -> None:
        self._db = db
        self._clock = clock
        self._seal = seal
        self._sender = sender
        self._rules = rules
        self._trials = threading.BoundedSemaphore(_MOST_TRIALS)

    def create(
        self,
        *,
        name: str,
        url: str,
        events: Sequence[str],
        description: str | None = None,
        secret: str | None = None,
        status: WebhookStatus = WebhookStatus.ACTIVE,
    ) -> Webhook:
        self._check(Changes(name=name, url=url, events=events, description=description, secret=secret))
        now = self._clock.now()
        webhook = Webhook(
            id=str(uuid.uuid4()),
            name=name,
            description=description,
            url=url,
            status=status,
            secret=self._sealed(secret),
            created_at=now,
            updated_at=now,
            events=tuple(dict.fromkeys(events)),
        )
        with self._db.write() as tx:
            store.put_webhook(tx, webhook)
        return webhook

    def get(self, webhook_id: str) -> Webhook:
        with self._db.read() as tx:
            return store.load_webhook(tx, webhook_id)

    def list(self, *, most: int, token: str | None) -> tuple[list[Webhook], str | None]:
        """One page, and the token of the next."""
        most = most or 100
        if not 1 <= most <= _MOST_AT_ONCE:
            raise InvalidInput("max_results must be between 1 and 1000.")
        offset = offset_of(token)
        with self._db.read() as tx:
            found, more = store.load_webhooks(tx, most=most, offset=offset)
        return found, page_token(offset + most) if more else None

    def update(self, webhook_id: str, changes: Changes) -> Webhook:
        with self._db.read() as tx:
            store.load_webhook(tx, webhook_id)  # what is not there is said before what is wrong with the rest
        self._check(changes)
        values: dict[str, Any] = {
            "name": changes.name,
            "description": changes.description,
            "url": changes.url,
            "status": changes.status,
        }
        values = {name: value for name, value in values.items() if value is not None}
        if changes.secret is not None:
            values["secret"] = self._sealed(changes.secret)
        events = None if changes.events is None else tuple(dict.fromkeys(changes.events))
        with self._db.write() as tx:
            before = store.load_webhook(tx, webhook_id, lock=True)
            at = max(self._clock.now(), before.updated_at + 0.001)  # clients tell versions apart by it
            store.update_webhook(tx, webhook_id, events, **values, updated_at=at)
            return store.load_webhook(tx, webhook_id)

    def delete(self, webhook_id: str) -> None:
        with self._db.write() as tx:
            store.delete_webhook(tx, webhook_id)

    def deliveries(self, webhook_id: str, *, most: int) -> Sequence[Mapping[str, Any]]:
        """What became of what it was to hear, newest first."""
        with self._db.read() as tx:
            store.load_webhook(tx, webhook_id)
            return outbox.load_states(tx, webhook_id, most=most)

    def try_out(self, webhook_id: str, event: str | None) -> Reply:
        """Sends an example at once, a single time, and says what came of it. Raises Unavailable while as many others
        do so as may: receivers can take long, and who waits for them holds a thread of the server."""
        webhook = self.get(webhook_id)
        now = self._clock.now()
        wanted = event or webhook.events[0]
        check_events([wanted])
        body = render_body(wanted, ALL_EXAMPLES[wanted], at=now)
        secret = self._seal.unwrap(webhook.secret).get(_SECRET)
        letter = Letter(url=webhook.url, delivery_id=str(uuid.uuid4()), body=body, secret=secret)
        if not self._trials.acquire(blocking=False):
            raise Unavailable(
                f"webhooks are being tried out already, {_MOST_TRIALS} of them", hint="try again in a moment"
            )
        try:
            return self._sender.send(letter, at=now)
        finally:
            self._trials.release()

    def _check(self, changes: Changes) -> None:
        if changes.name is not None:
            check_name(changes.name)
        if changes.url is not None:
            check_url(changes.url, self._rules)
        if changes.events is not None and not changes.events:
            raise InvalidInput("Webhook events must be a non-empty list of WebhookEvent objects: [].")
        check_events(changes.events or ())
        for what in ("url", "description", "secret"):
            text = getattr(changes, what) or ""
            if len(text) > _LONGEST_TEXT or storable_text(text) != text:
                raise InvalidInput(f"a webhook's {what} is text of at most {_LONGEST_TEXT} characters, without NUL")

    def _sealed(self, secret: str | None) -> bytes | None:
        return self._seal.wrap({_SECRET: secret}) if secret else None
