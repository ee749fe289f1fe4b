"""What is JSON does not depend on who reads and writes it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from windlass.api.mlflow.jsontext import json_text, read_json
from windlass.experiments.types import RunStatus


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": [1, 2.5, 1e308, -0.0, true, null, "\\u00e4"], "a": 2}',
        b"123456789012345678901234567890",
        b"1e999",
        b'["\\ud800", "\\u0000"]',  # half of a character
        '{"a": "ä"}'.encode("utf-16"),
        b"[" * 500 + b"]" * 500,
        b"-Infinity",
        '{"a": "\ud800"}',
        '{"a": "ä"}',
    ],
)
def test_what_is_json_is_read_as_the_standard_library_does(raw: bytes | str) -> None:
    assert read_json(raw) == json.loads(raw)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1,]", b"nul", b"01", b'"\x01"', b"\xff", b'{"a": 1} 2'])
def test_what_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(raw)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2**70, True, None, 'ä"\n\u2028'], "b": {"c": (1, 2)}, "s": RunStatus.FAILED},
        [0.1, 5e-324, 1.7976931348623157e308, 1e16, -0.0, 1.0, math.inf, -math.inf],
        "half of a character: \ud800",
        {},
    ],
)
def test_what_is_written_says_the_same_as_the_standard_library(value: Any) -> None:
    said = json.loads(json_text(value).decode("utf-8", "surrogatepass"))
    assert said == json.loads(json.dumps(value))


def test_numbers_are_written_to_the_last_digit() -> None:
    values = [(-1) ** n * (n + 0.1) ** (n % 61) / 3 for n in range(1, 2_000)]
    assert json.loads(json_text(values)) == values
    assert read_json(json.dumps(values).encode()) == values


def test_values_that_json_has_no_form_for_are_refused() -> None:
    with pytest.raises(TypeError):
        json_text({"a": object()})
