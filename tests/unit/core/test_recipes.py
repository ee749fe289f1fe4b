"""Recipes as the server and the command know them: by their files, without running them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.plan import InvalidPlan
from windlass.core.recipes import check_fit, check_params, check_recipe, load_recipe, load_recipes
from windlass.core.wanted import parse_wanted

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
        ("gpt", {"heads": 3}, "width=64 is not divided by heads=3; numbers that do: 1, 2, 4, 8, 16, 32, 64"),
        ("gpt", {"size": "124m", "kv_heads": 5}, "heads=12 is not divided by kv_heads=5; numbers that do: 1, 2, 3"),
        ("gpt", {"style": "llama", "width": 12}, "width=12 and heads=4 make heads of width 3"),
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


LORA = {"model": "m", "data": "d"}


@pytest.mark.parametrize(
    ("name", "params", "plan", "processes", "words"),
    [
        ("gpt", {}, "tensor=3", 3, "tensor=3 does not divide the model's 4 heads; options: 1, 2, 4"),
        (
            "gpt",
            {"kv_heads": 2},
            "tensor=4",
            4,
            "tensor=4 does not divide the model's 2 key/value heads; options: 1, 2",
        ),
        ("gpt", {"context": 33}, "tensor=2,sequence", 2, "sequence parallelism over tensor=2 does not divide the"),
        ("gpt", {}, "pipeline=4", 4, "pipeline=4 makes 4 stages, and the model has 2 layers; at most 2 stages fit"),
        ("gpt", {"tied": "yes"}, "pipeline=2", 2, "pipeline=2 puts the first and the last layer on different"),
        ("gpt", {}, None, 3, "a batch of 16 is not divided by 3 (data×shard=3, accumulate=1); 15 or 18 would be"),
        ("gpt", {"batch": 8}, "shard=2,accumulate=8", 2, "a batch of 8 is not divided by 16"),
        ("gpt", {}, "auto,tensor=3", 3, "tensor=3 does not divide the model's 4 heads"),
        ("gpt", {}, "auto,pipeline=4", 4, "pipeline=4 makes 4 stages"),
        ("gpt", {}, "tensor=3", 2, "plan tensor=3 needs a multiple of 3 processes"),
        ("classifier", {}, None, 3, "a batch of 64 is not divided by 3"),
        ("lora", LORA, "shard=3", 3, "a batch of 8 is not divided by 3"),
    ],
)
def test_what_params_tell_of_model_and_batch_is_held_against_the_plan(
    name: str, params: dict[str, Any], plan: str | None, processes: int, words: str
) -> None:
    with pytest.raises(InvalidPlan) as refused:
        check_fit(name, params, parse_wanted(plan), processes)
    assert refused.value.message.startswith(words)


@pytest.mark.parametrize(
    ("name", "params", "plan", "processes"),
    [
        ("gpt", {}, None, 4),
        ("gpt", {}, "pipeline=2", 2),  # which unties the head
        ("gpt", {"layers": "4"}, "pipeline=4,accumulate=4", 4),
        ("gpt", {"size": "124m", "data": "/not/here.txt"}, "tensor=6", 12),
        ("gpt", {}, "auto,clip=1,sequence", 3),  # the planner says what is wrong with it
        ("classifier", {"batch": 63}, None, 3),
        ("lora", LORA, "shard=4", 8),
    ],
)
def test_what_may_fit_passes(name: str, params: dict[str, Any], plan: str | None, processes: int) -> None:
    check_fit(name, params, parse_wanted(plan), processes)


def test_no_torch_is_loaded() -> None:
    script = (
        "from windlass.core.recipes import *; check_params('gpt', {}); check_fit('gpt', {}, Wanted(), 2)\n"
        "import sys; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
