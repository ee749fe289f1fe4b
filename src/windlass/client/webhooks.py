"""`client.webhooks`: who is told of what happens to runs and models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windlass.client.answers import read
from windlass.core.errors import Ambiguous, NotFound
from windlass.core.names import nearest

if TYPE_CHECKING:
    from windlass.client.client import Client
    from windlass.wire.webhooks import DeliveryView, TrialView, WebhookView

_TRIAL_PATIENCE_S = 120.0  # the receiver has its time, and the server tells what came of it


class Webhooks:
    def __init__(self, client: Client) -> None:
        self._transport = client.transport

    def list(self) -> Iterator[WebhookView]:
        """Newest first."""
        from windlass.wire.webhooks import WebhookList

        token = None
        while True:
            page = read(WebhookList, self._transport.get("/api/webhooks", {"token": token}))
            yield from page.webhooks
            token = page.next_token
            if token is None:
                return

    def find(self, ref: str) -> WebhookView:
        """By id, the unique beginning of one, or name. Raises NotFound or Ambiguous."""
        known = list(self.list())
        found = [hook for hook in known if ref in (hook.id, hook.name)] or [
            hook for hook in known if ref and hook.id.startswith(ref)
        ]
        if len(found) > 1:
            raise Ambiguous(
                f"'{ref}' may be several webhooks: {', '.join(hook.id for hook in found)}", hint="give the id of one"
            )
        if not found:
            guess = nearest(ref, [hook.name for hook in known])
            hint = f"did you mean '{guess}'?" if guess else "`windlass webhooks ls` lists all"
            raise NotFound(f"there is no webhook '{ref}'", hint=hint)
        return found[0]

    def add(
        self, name: str, url: str, events: Sequence[str], *, secret: str | None = None, description: str | None = None
    ) -> WebhookView:
        """`secret` signs what is sent; no answer contains it."""
        from windlass.wire.webhooks import WebhookView

        body = {"name": name, "url": url, "events": list(events), "secret": secret, "description": description}
        return read(WebhookView, self._transport.post("/api/webhooks", body))

    def remove(self, ref: str) -> WebhookView:
        """What it was; with what is on its way to it."""
        hook = self.find(ref)
        self._transport.delete(f"/api/webhooks/{hook.id}")
        return hook

    def test(self, ref: str, event: str | None = None) -> TrialView:
        """Has an example sent now, once."""
        from windlass.wire.webhooks import TrialView

        path = f"/api/webhooks/{self.find(ref).id}/test"
        return read(TrialView, self._transport.post(path, {"event": event}, patience_s=_TRIAL_PATIENCE_S))

    def deliveries(self, ref: str, *, limit: int = 100) -> Sequence[DeliveryView]:
        """What became of what it was to hear in the last week, newest first."""
        from windlass.wire.webhooks import DeliveryList

        path = f"/api/webhooks/{self.find(ref).id}/deliveries"
        return read(DeliveryList, self._transport.get(path, {"limit": limit})).deliveries
