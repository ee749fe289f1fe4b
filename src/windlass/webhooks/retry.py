"""What follows a reply: done, again in a while, or given up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.webhooks.types import DeliveryState, Reply

_MAY_PASS = frozenset({429, 500, 502, 503, 504})
_SAYS_WHEN = frozenset({413, 429, 503})
_LONGEST_WAIT_S = 60.0
_LONGEST_ASKED_S = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    state: DeliveryState
    wait_s: float = 0.0  # if it goes on waiting
    detail: str | None = None


def decide_verdict(reply: Reply, *, failed_before: int, most_retries: int, jitter: float) -> Verdict:
    """`jitter` is a random part of a second, so that receivers that come back are not met by all at once. The second
    try follows the first at once; then it is 2 s, 4 s and so on, or what the receiver asked for."""
    if reply.is_success:
        return Verdict(state=DeliveryState.DELIVERED)
    what = reply.error or f"answered {reply.status}"
    if reply.hopeless or (reply.status is not None and reply.status not in _MAY_PASS):
        return Verdict(state=DeliveryState.FAILED, detail=what)
    failed = failed_before + 1
    if failed > most_retries:
        return Verdict(state=DeliveryState.FAILED, detail=f"{what}; given up after {failed} tries")
    if reply.retry_after_s is not None and reply.status in _SAYS_WHEN:
        wait_s = min(reply.retry_after_s, _LONGEST_ASKED_S)
    else:
        wait_s = min(_LONGEST_WAIT_S, 2.0 ** (failed - 1) + jitter) if failed > 1 else 0.0
    return Verdict(state=DeliveryState.WAITING, wait_s=wait_s, detail=what)
