"""Resources and times in words, for people who ask about the queue. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from windlass.core.accelerators import title_of
from windlass.core.quantities import format_size
from windlass.scheduling.core.types import Want


def describe_amount(resource: str, amount: float) -> str:
    """`16 GPUs`, `8 h100`, `4 TPU v5e`, `1.0 TB memory`, `20 runs`; resources as quotas and limits name them."""
    if resource == "memory":
        return f"{format_size(amount)} memory"
    if resource == "cpu":
        return f"{amount:g} CPU"
    if ":" in resource:
        return f"{amount:g} {title_of(resource.removeprefix('gpu:'))}"
    word = resource.upper() if resource in ("gpu", "tpu") else "run"
    return f"{amount:g} {word}" if amount == 1 else f"{amount:g} {word}s"


def describe_each(want: Want) -> str:
    """What it wants of one node: `8 h100`, `4 CPU + 10.0 GB`."""
    if want.gpus:
        return f"{want.gpus:g} {title_of(want.gpu_type)}"
    return f"{want.cpus:g} CPU" + (f" + {format_size(want.memory_bytes)}" if want.memory_bytes else "")


def describe_want(want: Want) -> str:
    each = describe_each(want)
    return each if want.most == 1 else f"{_nodes(want)} nodes of {each}"


def describe_wants(wants: Sequence[Want]) -> str:
    """All alternatives: `8 h100 or 8 a100`; of many, the first and the last."""
    said = list(dict.fromkeys(describe_want(want) for want in wants))
    return " or ".join(said) if len(said) < 3 else f"{said[0]} … {said[-1]}"


def _nodes(want: Want) -> str:
    return str(want.nodes) if want.most == want.nodes else f"{want.nodes} to {want.most}"


def count_runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count:,} runs are"


def clock_time(at: float, now: float) -> str:
    """`14:05 UTC`, with its date if that is another."""
    then, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    return f"{then:%H:%M} UTC" if then.date() == today.date() else f"{then:%Y-%m-%d %H:%M} UTC"


def listing(words: list[str], most: int, between: str = ", ") -> str:
    """`a, b and 5 more`."""
    shown = between.join(words[:most])
    return shown if len(words) <= most else f"{shown} and {len(words) - most:,} more"
