"""docs/recovery.md shows the table that the code goes by."""

from __future__ import annotations

from pathlib import Path

from windlass.agent import hang, patterns
from windlass.agent.remedy import TABLE, Remedy
from windlass.engines.remote.silence import MISSED
from windlass.scheduling.aside import LONGEST_S

DOCUMENT = Path(__file__).parents[3] / "docs" / "recovery.md"


def render_row(kind: str, remedy: Remedy) -> str:
    aside = "at once" if remedy.elsewhere else "if twice in a row" if remedy.elsewhere_next else ""
    aside += ", for a minute" if remedy.aside_s == 60 else ""
    return f"| `{kind}` | {remedy.means} | {remedy.again} | {'yes' if remedy.in_place else ''} | {aside} |"


def test_the_table_of_remedies_is_that_of_the_code() -> None:
    lines = DOCUMENT.read_text().splitlines()
    begin = lines.index("|---|---|---|---|---|") + 1
    shown = lines[begin : lines.index("", begin)]
    assert shown == [render_row(kind, remedy) for kind, remedy in TABLE.items()]


def test_every_kind_of_trouble_has_a_remedy() -> None:
    assert {pattern.trouble for pattern in patterns.TABLE} <= TABLE.keys()


def test_the_numbers_of_the_text_are_those_of_the_code() -> None:
    assert (hang.MULTIPLE, hang.PAUSES, hang.FLOOR_S, hang.FIRST_S) == (20, 4, 600, 1800)
    assert (LONGEST_S, MISSED) == (86_400, 3)
    assert {remedy.aside_s for remedy in TABLE.values()} == {60, 1800}
