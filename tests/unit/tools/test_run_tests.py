"""What fails beside others is tried alone once; what fails then has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "run_tests.py"
CROWDED = """
import os, pytest
@pytest.mark.parametrize("number", range(4))
def test_alone(number):
    open(f"tried-{number}", "a").write("x")
    assert number not in FAILING or (HEALS and os.path.getsize(f"tried-{number}") > 1)
"""


@pytest.mark.parametrize(
    ("failing", "heals", "code", "tries"),
    [
        ((), True, 0, "xxxx"),
        ((1,), True, 0, "xxxxx"),
        ((1,), False, 1, "xxxxx"),
        ((0, 1, 2, 3), True, 1, "xxxx"),  # too many for an accident
    ],
)
def test_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[int, ...], heals: bool, code: int, tries: str
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # loading them takes longer than all the rest
    (tmp_path / "test_crowd.py").write_text(f"FAILING, HEALS = {failing}, {heals}\n{CROWDED}")
    command = [sys.executable, str(SCRIPT), "-q", "test_crowd.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "".join(path.read_text() for path in tmp_path.glob("tried-*")) == tries
    assert ("PASSED ALONE" in ended.stdout) == (heals and len(failing) == 1)
