"""What `import` tells where no bar can be drawn."""

from __future__ import annotations

from windlass.cli.importlines import Lines


def test_a_line_now_and_then() -> None:
    told: list[str] = []
    now = [0.0]
    lines = Lines(told.append, lambda: now[0])
    lines.found(3)
    lines.logged(1_000)
    assert told == []
    now[0] = 11.0
    lines.ended("r")
    now[0] = 12.0
    lines.logged(500)
    assert told == ["copied 1 of 3 runs so far, 1,000 points, 0 B of files"]
    now[0] = 22.0
    lines.sent(2_048)
    assert told[1:] == ["copied 1 of 3 runs so far, 1,500 points, 2.0 KB of files"]
