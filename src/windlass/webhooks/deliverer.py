"""Sends what is in the outbox: a thread that claims what is due, and a few that send. Every server has one; a claim
decides which of them sends what.

A claim whose holder has died passes on when it has stood still for longer than a request can take, by the watcher's
own monotonic clock: clocks of different machines are never compared.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from windlass.core.clock import Clock
from windlass.core.errors import WindlassError
from windlass.db.database import Database
from windlass.webhooks import outbox, store
from windlass.webhooks.addresses import WebhookRules
from windlass.webhooks.retry import Verdict, decide_verdict
from windlass.webhooks.sending import Letter, Sender
from windlass.webhooks.service import Sealing
from windlass.webhooks.types import Delivery, DeliveryState, Reply, WebhookStatus

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_SOON_S = 0.01
_AT_ONCE = 8
_AT_ONCE_EACH = 2  # of one webhook
_MOST_LOOKED_AT = 4 * _AT_ONCE
_STOP_WITHIN_S = 2.0
_LONGER_THAN_A_REQUEST = 3.0  # times its limit: names are looked up, and outcomes recorded, besides
_FORGET_CLAIMS_S = 3_600.0
_KEEP_S = 7 * 86_400.0
_CLEAR_EVERY_S = 3_600.0
_CLEARED_AT_ONCE = 2_000  # in one transaction: others write in between


class Deliverer:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        seal: Sealing,
        sender: Sender,
        rules: WebhookRules,
        holder: str,
        monotonic: Callable[[], float],
    ) -> None:
        """`holder` names this server among those that share the database, and no earlier life of it."""
        self._db = db
        self._clock = clock
        self._seal = seal
        self._sender = sender
        self._rules = rules
        self._holder = holder
        self._monotonic = monotonic
        # Claims that stand still: whose, for which attempt, and since when that is known.
        self._claims: dict[str, tuple[tuple[str, int], float]] = {}
        self._sending: dict[str, str] = {}  # what threads of ours have in hand: delivery, and webhook
        self._change = threading.Condition()
        self._awake = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._clear_at = 0.0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """What is being sent has a moment left; it is sent again by the next server if that was too short."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_WITHIN_S)
        with self._change:
            self._change.wait_for(lambda: not self._sending, timeout=_STOP_WITHIN_S)

    def nudge(self) -> None:
        """There may be something to send."""
        with self._change:
            self._awake = True
            self._change.notify_all()

    def _run(self) -> None:
        while not self._stopping:
            wait_s = _LOOK_EVERY_S
            try:
                if not self._clear_at:
                    self.begin()
                wait_s = self.look()
            except WindlassError as error:
                log.warning("webhooks cannot be sent now: %s", error)
            except Exception:
                # The thread is a boundary: what is due is found the next time.
                log.exception("webhooks cannot be sent now")
            with self._change:
                self._change.wait_for(lambda: self._awake or self._stopping, timeout=wait_s)
                self._awake = False

    def begin(self) -> None:
        """With SQLite there is no other server: what was claimed was claimed by one that has died."""
        if self._db.is_sqlite:
            with self._db.read() as tx:
                lost = outbox.has_claims(tx)
            if lost:
                with self._db.write() as tx:
                    outbox.release_all(tx)
        self._clear_at = self._clock.now() + _CLEAR_EVERY_S

    def look(self) -> float:
        """Begin to send what is due, as much as there are hands for; how long to wait before the next look."""
        now = self._clock.now()
        if self._clear_at and now > self._clear_at:
            self._clear_away(now)
        mine, wait_s = self.take()
        for delivery in mine:
            threading.Thread(target=self.deliver_claimed, args=(delivery,), name="webhook", daemon=True).start()
        return wait_s

    def take(self) -> tuple[list[Delivery], float]:
        """What is due, claimed and in hand from now on; and how long to wait before the next look."""
        now = self._clock.now()
        with self._change:
            hands = Counter(self._sending.values())
        if hands.total() >= _AT_ONCE:
            return [], _LOOK_EVERY_S  # who is done says so before
        slow = [webhook_id for webhook_id, count in hands.items() if count >= _AT_ONCE_EACH]
        with self._db.read() as tx:
            due = outbox.load_due(tx, now=now, limit=_MOST_LOOKED_AT, besides=slow)
            next_due = outbox.load_next_due(tx, after=now)
        mine = self._claimed(self._wanted(due, hands))
        if mine and len(due) == _MOST_LOOKED_AT:
            return mine, _SOON_S  # behind those of a slow webhook there may be some of others
        return mine, _LOOK_EVERY_S if next_due is None else min(_LOOK_EVERY_S, max(_SOON_S, next_due - now))

    def _wanted(self, due: Sequence[Delivery], hands: Counter[str]) -> list[Delivery]:
        """Those that are free, as many as there are hands for, and few of each webhook: one that is slow to answer
        must not keep the others waiting."""
        since = self._monotonic() - _FORGET_CLAIMS_S
        self._claims = {known: claim for known, claim in self._claims.items() if claim[1] > since}
        wanted: list[Delivery] = []
        for delivery in [found for found in due if self._is_free(found)]:
            if hands.total() < _AT_ONCE and hands[delivery.webhook_id] < _AT_ONCE_EACH:
                hands[delivery.webhook_id] += 1
                wanted.append(delivery)
        return wanted

    def _claimed(self, wanted: Sequence[Delivery]) -> list[Delivery]:
        if not wanted:
            return []
        with self._db.write() as tx:
            mine = [delivery for delivery in wanted if outbox.claim(tx, delivery, self._holder)]
        with self._change:
            self._sending.update((delivery.id, delivery.webhook_id) for delivery in mine)
        for delivery in mine:
            self._claims.pop(delivery.id, None)
        return mine

    def _is_free(self, delivery: Delivery) -> bool:
        """A claim of ours that none of our threads has in hand is like one of the dead: what came of it could not be
        recorded."""
        who = delivery.claimed_by
        if who is None or delivery.id in self._sending:
            self._claims.pop(delivery.id, None)
            return delivery.id not in self._sending
        claim = (who, delivery.attempts)
        seen, since = self._claims.setdefault(delivery.id, (claim, self._monotonic()))
        if seen != claim:
            self._claims[delivery.id] = (claim, self._monotonic())
            return False
        return self._monotonic() - since > self._rules.timeout_s * _LONGER_THAN_A_REQUEST

    def deliver_claimed(self, delivery: Delivery) -> None:
        """As `deliver`, whatever happens: a thread's."""
        try:
            self.deliver(delivery)
        except WindlassError as error:
            log.warning("what became of webhook delivery %s cannot be recorded: %s", delivery.id, error)
        except Exception:
            log.exception("webhook delivery %s", delivery.id)
        finally:
            with self._change:
                self._sending.pop(delivery.id, None)
                self._awake = True
                self._change.notify_all()

    def deliver(self, delivery: Delivery) -> None:
        """Send what is claimed, once, and record what came of it."""
        with self._db.read() as tx:
            webhook = store.load_webhook(tx, delivery.webhook_id)
        if webhook.status is WebhookStatus.ACTIVE:
            reply = self._send(delivery, webhook.url, webhook.secret)
            verdict = decide_verdict(
                reply,
                failed_before=delivery.attempts,
                most_retries=self._rules.most_retries,
                jitter=random.random(),
            )
        else:
            reply, verdict = Reply(), Verdict(state=DeliveryState.DROPPED, detail="the webhook is disabled")
        if verdict.state is DeliveryState.FAILED:
            log.warning("webhook %s did not get %s: %s", webhook.name, delivery.event, verdict.detail)
        with self._db.write() as tx:
            outbox.conclude(tx, delivery, self._holder, reply, verdict, at=self._clock.now())

    def _send(self, delivery: Delivery, url: str, sealed: bytes | None) -> Reply:
        try:
            secret = self._seal.unwrap(sealed).get("secret")
        except WindlassError as error:
            return Reply(error=error.message, hopeless=True)
        letter = Letter(url=url, delivery_id=delivery.id, body=delivery.body, secret=secret)
        return self._sender.send(letter, at=self._clock.now())

    def _clear_away(self, now: float) -> None:
        self._clear_at = now + _CLEAR_EVERY_S
        while not self._stopping:
            with self._db.write() as tx:
                if outbox.delete_ended(tx, before=now - _KEEP_S, limit=_CLEARED_AT_ONCE) < _CLEARED_AT_ONCE:
                    return
