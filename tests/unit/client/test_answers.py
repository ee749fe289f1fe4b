"""Answers of servers, also of younger ones."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from windlass.client.answers import read
from windlass.wire.spec import RunSpec


def test_what_a_younger_server_adds_is_left_out_at_any_depth() -> None:
    spec = read(RunSpec, {"command": "true", "younger": 1, "resources": {"gpus": 1, "younger": {"a": 1}}})
    assert spec.resources.gpus == 1
    assert "younger" not in spec.model_dump()


def test_what_is_wrong_is_wrong_still() -> None:
    with pytest.raises(ValidationError):
        read(RunSpec, {"command": "true", "resources": {"gpus": "many"}})
