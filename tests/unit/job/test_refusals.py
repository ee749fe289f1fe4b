"""What a recipe refuses is one line; other errors keep their traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.plan import InvalidPlan
from windlass.job.refusals import refusal


def test_one_line_with_what_to_do() -> None:
    assert refusal(InvalidInput("no\n file", hint="give one")) == "error: no file; give one"
    assert refusal(InvalidPlan("no")) == "error: no"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("InvalidInput('no file', hint='give one')", ["error: no file; give one"]),
        ("ValueError('x')", ["Traceback (most recent call last):", "ValueError: x"]),
    ],
)
def test_the_process_fails_with_it(error: str, said: list[str]) -> None:
    script = f"""
from windlass.core.errors import InvalidInput
from windlass.job.refusals import run_recipe
def main(): raise {error}
run_recipe(main)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert (lines if len(said) == 1 else [lines[0], lines[-1]]) == said
