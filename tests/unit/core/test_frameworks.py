from __future__ import annotations

import pytest

from windlass.core.frameworks import Framework, detect_framework, script_of


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
