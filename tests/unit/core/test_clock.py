from __future__ import annotations

from windlass.core.clock import is_due


def test_what_comes_round_is_due_at_its_time() -> None:
    at = 1_700_000_000.3 + 0.9
    assert not is_due(at, 1_700_000_000.3, every_s=0.9)
    assert not is_due(at, at - 0.001, every_s=0.9)
    assert is_due(at, at, every_s=0.9)
    assert is_due(0.0, at, every_s=0.9)


def test_it_is_due_too_where_the_clock_was_set_back() -> None:
    now = 1_700_000_000.0
    assert is_due(now + 0.9, now - 3600.0, every_s=0.9)
    assert not is_due(now + 0.9, now - 0.0, every_s=0.9)
