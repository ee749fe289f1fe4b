from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.frameworks import Framework, detect_framework, script_of
from windlass.core.recipes import check_recipe, load_recipes


@pytest.mark.parametrize(
    ("argv", "source", "framework"),
    [
        (("torchrun", "x.py"), None, Framework.PYTORCH),
        (("/opt/bin/accelerate", "launch", "x.py"), b"import torch", Framework.ACCELERATE),
        (("/bin/sh", "-c", "cd a && torchrun x.py"), None, Framework.PYTORCH),
        (("python", "-m", "torch.distributed.run", "x.py"), None, Framework.PYTORCH),
        (("python", "x.py"), b"import torch.nn as nn", Framework.PYTORCH),
        (("python", "x.py"), b"def f():\n    from jax import numpy", Framework.JAX),
        (("python", "x.py"), b"import torch\nimport lightning as L", Framework.LIGHTNING),
        (("python", "x.py"), b"import torch, transformers", Framework.TRANSFORMERS),
        (("python", "x.py"), b"import tensorflow as tf", Framework.TENSORFLOW),
        (("python", "x.py"), b"import xgboost", Framework.XGBOOST),
        (("python", "x.py"), b"from .torch import x", None),
        (("python", "x.py"), b"import os", None),
        (("python", "x.py"), b"not python at all (", None),
        (("python", "x.py"), b"\0", None),
        (("echo",), None, None),
    ],
)
def test_the_framework_is_told_from_launcher_or_imports(
    argv: tuple[str, ...], source: bytes | None, framework: Framework | None
) -> None:
    assert detect_framework(argv, source) is framework


def test_the_script_of_a_command() -> None:
    assert script_of(("python", "-u", "a/b.py", "--x")) == "a/b.py"
    assert script_of(("/bin/sh", "-c", "cd x; torchrun t.py")) == "t.py"
    assert script_of(("echo", "hi")) is None


def test_recipes_are_the_modules_of_their_folder_and_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('"""The first.\n\nAnd more."""\nraise SystemExit("imported")\n')
    (tmp_path / "two.py").write_text("raise SystemExit\n")
    (tmp_path / "__init__.py").write_text("")
    assert load_recipes(tmp_path) == {"one": "The first.", "two": ""}


def test_a_recipe_is_checked_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every spec that a server reads asks for it, on any thread."""
    monkeypatch.setattr("windlass.core.recipes.parse_source", None)
    assert check_recipe("gpt") == "gpt"


def test_an_unknown_recipe_is_told_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"unknown recipe 'gtp'.* known: "):
        check_recipe("gtp")
