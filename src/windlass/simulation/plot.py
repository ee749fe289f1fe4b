"""A comparison of policies as a picture: how many jobs have ended after how long, for each. SVG, or that in a page."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from windlass.core.errors import InvalidInput

_WIDTH, _HEIGHT = 860, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 200, 50, 50
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # told apart by everybody
_MARKS = ((1, "1 s"), (60, "1 min"), (3600, "1 h"), (86400, "1 d"), (864000, "10 d"), (8640000, "100 d"))
_POINTS = 200


def check_plot(path: Path) -> None:
    kind = path.suffix.lower()
    if kind not in (".svg", ".html"):
        raise InvalidInput(f"--plot {path}: a plot ends with .svg or .html, not with {kind or 'nothing'}")
    if not path.absolute().parent.is_dir():
        raise InvalidInput(f"--plot {path}: there is no folder {path.absolute().parent}")


def write_plot(path: Path, title: str, times: Mapping[str, Sequence[float]]) -> None:
    """`times` by policy: of every job, the seconds from its submission to its end."""
    check_plot(path)
    picture = render_plot(title, times)
    if path.suffix.lower() == ".html":
        picture = f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title>\n{picture}'
    try:
        path.write_text(picture)
    except OSError as error:
        raise InvalidInput(f"--plot {path}: cannot be written: {error.strerror}") from error


def render_plot(title: str, times: Mapping[str, Sequence[float]]) -> str:
    longest = max((max(values) for values in times.values()), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / math.log10(max(10.0, longest))
    bottom = _HEIGHT - _BOTTOM

    def x(seconds: float) -> float:
        return _LEFT + scale * math.log10(max(1.0, seconds))

    def y(part: float) -> float:
        return bottom - part * (bottom - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{html.escape(title)}</text>',
    ]
    for seconds, label in _MARKS:
        if seconds <= longest:
            parts.append(f'<path d="M{x(seconds):.1f} {_TOP}V{bottom}" stroke="#ddd"/>')
            parts.append(f'<text x="{x(seconds):.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<path d="M{_LEFT} {y(part):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(part) + 4:.1f}" text-anchor="end">{part:.0%}</text>')
    for number, (name, values) in enumerate(times.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path d="{_line(values, x, y)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        at = _TOP + 20 * number + 10
        parts.append(f'<path d="M{_WIDTH - _RIGHT + 16} {at}h22" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 44}" y="{at + 4}">{html.escape(name)}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "from submission to end; part of all jobs</text>"
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(values: Sequence[float], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    ordered = sorted(values)
    points = []
    for step in range(_POINTS + 1):
        part = step / _POINTS
        seconds = ordered[min(len(ordered) - 1, int(part * len(ordered)))]
        points.append(f"{x(seconds):.1f} {y(part):.1f}")
    return "M" + "L".join(points)
