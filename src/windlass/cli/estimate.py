"""When a run will start, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.quantities import format_roughly

if TYPE_CHECKING:
    from windlass.wire.runs import StartEstimate


def describe_start(start: StartEstimate, now: float) -> str:
    """`starts in about 25 min (10 to 70 min)`."""
    if start.likely is None:
        if start.earliest is None:
            return "nobody can tell when it starts"
        return f"starts in {_from_now(start.earliest, now)} at the earliest, likely much later"
    spread = _spread(start, now)
    about = _from_now(start.likely, now)
    if start.likely - now < 5 and not spread:
        return "starts in a few seconds"
    return f"starts in about {about}" + (f" ({spread})" if spread else "")


def start_in_short(start: StartEstimate | None, now: float, *, spread: bool = True) -> str:
    """`25 min (10 to 70)`, for a table."""
    if start is None:
        return ""
    if start.likely is None:
        return f"over {_from_now(start.earliest, now)}" if start.earliest is not None else "?"
    about, around = _from_now(start.likely, now), _spread(start, now)
    if not around or not spread:
        return about
    unit = " " + about.partition(" ")[2]
    is_alike = around.endswith(unit) and len(around.split()) == 4  # `10 to 70 min`
    return f"{about} ({around.removesuffix(unit) if is_alike else around})"


def _spread(start: StartEstimate, now: float) -> str:
    """`10 to 70 min`; empty where it says nothing."""
    assert start.likely is not None
    least = _from_now(start.earliest if start.earliest is not None else start.likely, now)
    if start.latest is None:
        return f"{least} or much later"
    most = _from_now(start.latest, now)
    if least == most:
        return ""
    unit = most.partition(" ")[2]
    return f"{least.removesuffix(' ' + unit)} to {most}"


def _from_now(at: float, now: float) -> str:
    return format_roughly(max(0.0, at - now))
