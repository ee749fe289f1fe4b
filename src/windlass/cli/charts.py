"""Numbers as pictures made of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"
# Bits of a braille character's dots: column by column, from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def resample(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: the mean of each stretch, NaN for a stretch without numbers."""
    if len(values) <= width:
        return list(values)
    found = []
    for index in range(width):
        part = values[index * len(values) // width : (index + 1) * len(values) // width]
        numbers = [value for value in part if math.isfinite(value)]
        found.append(sum(numbers) / len(numbers) if numbers else math.nan)
    return found


def stretch(values: Sequence[float], width: int) -> list[float]:
    """Exactly `width` values along the straight lines between the given ones; beside a NaN, the nearer value."""
    if len(values) == 1:
        return list(values) * width
    found = []
    for index in range(width):
        place = index * (len(values) - 1) / (width - 1)
        left = min(int(place), len(values) - 2)
        part = place - left
        between = values[left] * (1 - part) + values[left + 1] * part
        found.append(between if math.isfinite(between) else values[left + round(part)])
    return found


def sparkline(values: Sequence[float], width: int = 24) -> str:
    points = resample(values, width)
    numbers = [value for value in points if math.isfinite(value)]
    if not numbers:
        return "×" * len(points)
    low, high = min(numbers), max(numbers)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else "×" for value in points)


def bar(fraction: float, width: int) -> str:
    """A bar with a resolution of an eighth of a character, always `width` wide."""
    eighths = round(min(1.0, max(0.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_PARTS[rest] if rest else "")).ljust(width, "░")


def braille(values: Sequence[float], width: int, height: int) -> list[str]:
    """A chart of `height` lines of `width` characters, two by four dots each; neighbouring points are joined."""
    columns = width * 2
    points = stretch(values, columns) if 0 < len(values) < columns else resample(values, columns)
    numbers = [value for value in points if math.isfinite(value)]
    if not numbers:
        return [" " * width for _ in range(height)]
    low, high = min(numbers), max(numbers)
    top = height * 4 - 1
    scale = top / (high - low) if high > low else 0.0
    grid = [[0] * width for _ in range(height)]
    before: int | None = None
    for x, value in enumerate(points):
        if not math.isfinite(value):
            before = None
            continue
        level = top - round((value - low) * scale) if high > low else top // 2
        towards = level if before is None or before == level else before + (1 if level > before else -1)
        for y in range(min(level, towards), max(level, towards) + 1):
            grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        before = level
    return ["".join(chr(0x2800 + dots) if dots else " " for dots in row) for row in grid]


def number(value: float | None) -> str:
    """Four significant digits, as short as that can be."""
    if value is None or math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"
