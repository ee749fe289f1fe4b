"""Recipes as the server and the command know them: by their files, without running them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.recipes import check_params, check_recipe, load_recipe, load_recipes

RECIPE = '''"""Count to something.

    windlass run --recipe one -p steps=3     # quickly
"""
from __future__ import annotations
import torch_is_not_here
from dataclasses import dataclass
from windlass.core.settings import Count

@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: str
    steps: Count | None = None  # how far
    names: tuple[str, ...] = ("a", "b")
'''


def test_recipes_are_the_modules_of_their_folder_and_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('"""The first.\n\nAnd more."""\nraise SystemExit("imported")\n')
    (tmp_path / "two.py").write_text("raise SystemExit\n")
    (tmp_path / "__init__.py").write_text("")
    assert {name: recipe.summary for name, recipe in load_recipes(tmp_path).items()} == {"one": "The first.", "two": ""}
    assert load_recipe("two", tmp_path).params == {}


def test_a_recipe_is_checked_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every spec that a server reads asks for it, on any thread."""
    monkeypatch.setattr("windlass.core.recipes.parse_source", None)
    assert check_recipe("gpt") == "gpt"


def test_an_unknown_recipe_is_told_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"unknown recipe 'gtp'.* known: "):
        check_recipe("gtp")


def test_settings_are_read_without_what_the_recipe_imports(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(RECIPE)
    recipe = load_recipe("one", tmp_path)
    told = {name: (field.rule, field.is_required, about) for name, (field, about) in recipe.params.items()}
    assert told == {
        "data": ("text", True, ""),
        "steps": ("a whole number from 1", False, "how far"),
        "names": ("a list of words", False, ""),
    }
    assert recipe.examples == ["windlass run --recipe one -p steps=3"]


@pytest.mark.parametrize("name", ["gpt", "classifier", "lora"])
def test_what_comes_with_windlass_says_what_it_takes(name: str) -> None:
    recipe = load_recipe(name)
    assert {"steps" if name != "classifier" else "epochs", "batch", "lr", "seed", "data"} <= set(recipe.params)
    assert recipe.examples[0].startswith(f"windlass run --recipe {name}")


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("gpt", {"stepz": 6}, "unknown param 'stepz'; did you mean 'steps'?"),
        ("gpt", {"steps": "abc"}, "param 'steps' is 'abc', but must be a whole number from 1"),
        ("gpt", {"steps": -3}, "param 'steps' is -3, but must be a whole number from 1"),
        ("gpt", {"steps": 0}, "param 'steps' is 0, but must be"),
        ("gpt", {"size": "huge"}, "unknown size 'huge'; known: 124m, 1300m"),
        ("gpt", {"lr": "nan"}, "param 'lr' is 'nan', but must be a number above 0"),
        ("lora", {"model": "m", "data": "d", "rank": 0}, "param 'rank' is 0, but must be a whole number from 1"),
        ("lora", {"data": "d"}, "missing param: model"),
        ("classifier", {"held_out": 2}, "param 'held_out' is 2, but must be a number from 0 to 1"),
    ],
)
def test_params_are_checked(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_params(name, params)
    assert refused.value.message.startswith(words)
    assert refused.value.hint == f"`windlass recipes {name}` lists its params"


def test_params_that_are_right_pass() -> None:
    check_params("gpt", {"size": "124m", "steps": "1e3", "lr": "3e-4", "clip": None, "tied": "no", "layers": 3})
    check_params("lora", {"model": "m", "data": "d", "targets": "a, b"})


def test_no_torch_is_loaded() -> None:
    script = "from windlass.core.recipes import *; check_params('gpt', {}); import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
