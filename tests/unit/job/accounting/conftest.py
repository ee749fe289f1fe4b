"""Shared by the tests of what steps cost."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have compiled in this process."""
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
