"""Settings of a script from its params."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.settings import Positive, Share
from windlass.job.settings import settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    steps: int = 10
    lr: float = 0.1
    data: str | None = None
    layers: tuple[str, ...] = ()
    tied: bool = False
    share: Share | None = 0.5
    rate: Positive = 1.0
    style: Literal["plain", "fancy"] = "plain"


def test_values_get_the_types_of_their_fields() -> None:
    given = {"steps": "1e3", "lr": "3e-4", "data": 7, "layers": "a, b", "tied": "yes"}
    assert settings_of(Settings, given) == Settings(steps=1000, lr=3e-4, data="7", layers=("a", "b"), tied=True)
    assert settings_of(Settings, {"lr": 1, "layers": ["x"], "data": None}) == Settings(lr=1.0, layers=("x",))
    assert settings_of(Settings, {"steps": 2**60 + 1}).steps == 2**60 + 1


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("steps", 1.5, "a whole number"),
        ("steps", True, "a whole number"),
        ("lr", "fast", "a number"),
        ("tied", "perhaps", "true or false"),
        ("layers", 3, "a list of words"),
        ("lr", "inf", "a number"),
        ("share", 1.1, "a number from 0 to 1"),
        ("rate", 0, "a number above 0"),
    ],
)
def test_values_of_other_types_are_refused(name: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidInput, match=f"param '{name}' is {value!r}, but must be {rule}"):
        settings_of(Settings, {name: value})


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown param 'step'; did you mean 'steps'"):
        settings_of(Settings, {"step": 1})


def test_a_choice_is_one_of_its_options() -> None:
    assert settings_of(Settings, {"style": "fancy", "share": None}) == Settings(style="fancy", share=None)
    with pytest.raises(InvalidInput, match="unknown style 'fanzy'; did you mean 'fancy'\\? known: fancy, plain"):
        settings_of(Settings, {"style": "fanzy"})


@dataclass(frozen=True, kw_only=True)
class Needy:
    model: str
    data: str
    steps: int = 1


def test_what_has_no_default_must_be_given() -> None:
    with pytest.raises(InvalidInput, match="missing params: model, data"):
        settings_of(Needy, {"steps": 2})
