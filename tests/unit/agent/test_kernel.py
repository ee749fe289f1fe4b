"""What the kernel is told about a process, read back from where the kernel says it."""

import subprocess
import sys

import pytest

_PROGRAM = """
import os
from pathlib import Path

from windlass.agent.kernel import give_way


def of_session():
    '''Nothing where the kernel divides no processors by session, or not for this one: init's, for example.'''
    group = Path("/proc/self/autogroup")
    return (group.read_text().split() if group.exists() else [])[-1:]


before = of_session()
give_way(7)
print(os.nice(0), *(before or "-"), *(of_session() or "-"))
"""


@pytest.mark.parametrize("own_session", [True, False])
def test_who_gives_way_does_so_for_its_own_session_only(own_session: bool) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM], start_new_session=own_session, capture_output=True, text=True, check=True
    )

    niceness, before, after = told.stdout.split()
    assert int(niceness) >= 7
    assert after == (niceness if own_session and before != "-" else before)
