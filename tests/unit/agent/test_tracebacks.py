"""What is shown of a traceback that is too long: the header, the program's own frames, and where it was raised."""

from __future__ import annotations

import pytest

from windlass.agent.failure import last_traceback
from windlass.agent.tracebacks import abridged

HEADER = "Traceback (most recent call last):"
ERROR = "RuntimeError: sizes differ"


def frame(file: str, line: int = 7) -> list[str]:
    return [f'  File "{file}", line {line}, in f', "    f()", "    ~^^"]


OWN = frame("/work/train.py")
LIBRARY = frame("/venv/lib/python3.11/site-packages/torch/nn.py")
LONG = [HEADER, *OWN, *(LIBRARY * 20), *frame("/work/model.py"), *(LIBRARY * 20), ERROR]


def test_one_that_is_short_stays_as_it_is() -> None:
    lines = [HEADER, *OWN, *LIBRARY, ERROR]
    assert abridged(lines, len(lines)) == lines
    assert abridged([], 5) == []


def test_frames_of_libraries_go_but_for_the_one_that_raised_it() -> None:
    shown = [HEADER, *OWN, "  ...", *frame("/work/model.py"), "  ...", *LIBRARY, ERROR]
    assert abridged(LONG, 60) == shown
    assert last_traceback("noise\n" + "\n".join(LONG) + "\n") == "\n".join(shown)


def test_one_that_was_made_shorter_already_can_be_again() -> None:
    assert abridged([HEADER, *OWN, "  ...", *(LIBRARY * 9), ERROR], 12) == [HEADER, *OWN, "  ...", *LIBRARY, ERROR]
    assert abridged([HEADER, *OWN, "  ...", *(OWN * 9), ERROR], 15).count("  ...") == 1


def test_each_of_a_chain_keeps_its_own() -> None:
    during = ["", "During handling of the above exception, another exception occurred:", ""]
    first = [HEADER, *OWN, *(LIBRARY * 9), "KeyError: 'a'"]
    shown = abridged([*first, *during, *LONG], 30)
    assert shown[: len(OWN) + 2] == [HEADER, *OWN, "  ..."]
    assert shown[8:14] == ["KeyError: 'a'", *during, HEADER, OWN[0]]
    assert shown[-1] == ERROR


@pytest.mark.parametrize("most", [8, 24, 60])
def test_of_too_many_frames_of_its_own_the_middle_goes(most: int) -> None:
    lines = [HEADER, *[line for at in range(100) for line in frame("/work/train.py", at)], ERROR, "told: in two lines"]
    shown = abridged(lines, most)
    assert len(shown) <= most
    assert shown[: most // 3] == lines[: most // 3]
    after = shown[most // 3 :]
    assert (after[0], after[-1]) == ("  ...", "told: in two lines")
    assert after[1].startswith('  File "')


def test_where_all_are_of_libraries_the_beginning_and_the_end_stay() -> None:
    shown = abridged([HEADER, *(LIBRARY * 30), ERROR], 24)
    assert (shown[0], shown[-1]) == (HEADER, ERROR)
    assert 20 <= len(shown) <= 24


def test_indented_lines_of_a_message_are_no_source() -> None:
    lines = [
        HEADER,
        *OWN,
        *(LIBRARY * 9),
        "RuntimeError: Error(s) in loading",
        "\tMissing key(s): a",
        "\tUnexpected: b",
    ]
    assert abridged(lines, 12) == [*lines[:4], "  ...", *LIBRARY, *lines[-3:]]
