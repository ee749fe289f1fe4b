"""Sizes and durations as people write them: `64GB`, `512Mi`, `90s`, `1h30m`; and back, for reading."""

from __future__ import annotations

import re

_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*$", re.IGNORECASE)
_DURATION = re.compile(r"^(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?$")
_DURATION_UNITS_S = (86_400.0, 3_600.0, 60.0, 1.0)
_LONGEST_S = 10 * 365 * 86_400.0


def parse_size(text: str | int) -> int:
    """Bytes of `64GB` (decimal), `64GiB` or `64Gi` (binary), or a plain number. Whatever else comes is refused too."""
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ValueError(f"{text} is not a size: sizes are not negative")
        return text
    match = _SIZE.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example 512MB, 64GB or 64GiB")
    number, unit, binary = match.groups()
    scale = (_BINARY if binary else _DECIMAL)[unit.lower()] if unit else 1
    return int(float(number) * scale)


def parse_duration(text: str | float) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, `2d`, or a plain number of seconds. Whatever else comes is refused too."""
    seconds: float
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = text
    else:
        compact = text.replace(" ", "").lower() if isinstance(text, str) else ""
        match = _DURATION.match(compact)
        if not compact or match is None:
            raise ValueError(f"{text!r} is not a duration; write for example 90s, 10m, 1h30m or 2d")
        seconds = sum(float(part) * unit for part, unit in zip(match.groups(), _DURATION_UNITS_S, strict=True) if part)
    if not 0 <= seconds <= _LONGEST_S:
        raise ValueError(f"{text!r} is out of range: durations go from 0 to 10 years")
    return float(seconds)


def format_size(size_bytes: float) -> str:
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def exact_size(size_bytes: int) -> str:
    """As `parse_size` reads it back: `1MiB`, `1500`."""
    for unit, scale in reversed(_BINARY.items()):
        if size_bytes and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit.upper()}iB"
    return str(size_bytes)


def format_count(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest_s:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def format_roughly(seconds: float) -> str:
    """As people say it: `20 s`, `40 min`, `3 h`, `2 days`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 36 * 3600:
        return f"{_one_digit(seconds / 3600)} h"
    return f"{_one_digit(seconds / 86_400)} days"


def _one_digit(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")
