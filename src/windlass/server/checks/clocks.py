"""How far another clock is from ours. Pure."""

from __future__ import annotations

from windlass.core.quantities import format_duration
from windlass.wire.checks import CheckView

_FINE_S = 5.0


def compare(code: str, name: str, *, there: float, before: float, after: float, exact_s: float) -> CheckView:
    """`there` was read between `before` and `after` of ours, and is exact to `exact_s`."""
    skew_s = max(0.0, before - exact_s - there, there - after - exact_s)
    fine = skew_s < _FINE_S
    found = "in step with the server's" if skew_s < 1 else f"{format_duration(skew_s)} off the server's"
    advice = "" if fine else "synchronise the clocks (NTP): durations look wrong, and signed requests are refused"
    return CheckView(code=code, name=name, status="ok" if fine else "warn", found=found, advice=advice)
