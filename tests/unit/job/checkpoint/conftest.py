"""Of what one test was warned the next one is to be warned too."""

from __future__ import annotations

import pytest

from windlass.job.alerts import AlertGate
from windlass.job.session import session


@pytest.fixture(autouse=True)
def _new_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session(), "_gate", AlertGate())
