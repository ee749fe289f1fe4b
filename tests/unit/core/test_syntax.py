"""Sources are parsed one at a time, and what cannot be parsed is None."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import windlass
from windlass.core.syntax import parse_source


def test_what_is_no_python_is_none() -> None:
    tree = parse_source(b"import torch\n")
    assert tree is not None
    assert isinstance(tree.body[0], ast.Import)
    for source in (b"def", b"\0", b"(" * 5000, b"-" * 100_000 + b"1"):
        assert parse_source(source) is None


def test_one_source_is_parsed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, together = threading.Semaphore(1), []
    began = threading.Event()

    def parse(source: bytes) -> ast.Module:
        together.append(not parsing.acquire(blocking=False))
        began.wait(0.05)  # nobody sets it: time for another thread to come in, if it may
        parsing.release()
        return ast.Module(body=[], type_ignores=[])

    monkeypatch.setattr(ast, "parse", parse)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(parse_source, [b""] * 4))
    assert together == [False] * 4


def test_nobody_else_parses() -> None:
    folder = Path(windlass.__file__).parent
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if "ast.parse(" in path.read_text()]
    assert found == ["core/syntax.py"]
