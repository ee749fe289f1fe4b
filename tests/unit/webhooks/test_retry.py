"""Done, again in a while, or given up."""

from __future__ import annotations

import pytest

from windlass.webhooks.retry import Verdict, decide_verdict
from windlass.webhooks.types import DeliveryState, Reply


def verdict(reply: Reply, failed_before: int = 0) -> Verdict:
    return decide_verdict(reply, failed_before=failed_before, most_retries=3, jitter=0.25)


@pytest.mark.parametrize("status", [200, 202, 204])
def test_an_answer_that_is_well(status: int) -> None:
    assert verdict(Reply(status=status)) == Verdict(state=DeliveryState.DELIVERED)


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410, 501])
def test_an_answer_that_will_not_change(status: int) -> None:
    assert verdict(Reply(status=status)) == Verdict(state=DeliveryState.FAILED, detail=f"answered {status}")


@pytest.mark.parametrize("reply", [Reply(status=500), Reply(status=429), Reply(error="refused")])
def test_what_may_pass_is_tried_again_with_longer_and_longer_pauses(reply: Reply) -> None:
    found = [verdict(reply, failed) for failed in range(4)]
    assert [one.state for one in found] == [DeliveryState.WAITING] * 3 + [DeliveryState.FAILED]
    assert [one.wait_s for one in found[:3]] == [0.0, 2.25, 4.25]
    assert found[3].detail is not None
    assert found[3].detail.endswith("given up after 4 tries")


def test_the_receiver_may_say_when() -> None:
    assert verdict(Reply(status=429, retry_after_s=7.0)).wait_s == 7.0
    assert verdict(Reply(status=503, retry_after_s=7.0)).wait_s == 7.0
    assert verdict(Reply(status=500, retry_after_s=7.0)).wait_s == 0.0
    assert verdict(Reply(status=429, retry_after_s=1e9)).wait_s == 6 * 3600


def test_what_is_forbidden_is_not_tried_again() -> None:
    assert verdict(Reply(error="blocked", hopeless=True)).state is DeliveryState.FAILED
