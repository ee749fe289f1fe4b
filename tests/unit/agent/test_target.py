from __future__ import annotations

from pathlib import Path

import pytest

from windlass.agent.target import Target, canonical, sees_the_difference, warm_target

PYTHON = "/env/bin/python3"


def target(*argv: str, program: str = PYTHON, interpreter: str | None = PYTHON) -> Target | None:
    return warm_target(argv, program=program, interpreter=interpreter)


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (("python", "train.py", "--lr", "1"), Target("script", "train.py", ("--lr", "1"), False)),
        (("python3.11", "-u", "a/train.py"), Target("script", "a/train.py", (), True)),
        (("/env/bin/python3", "-m", "pkg.train", "-x"), Target("module", "pkg.train", ("-x",), False)),
        (("python", "-u", "-m", "pkg"), Target("module", "pkg", (), True)),
    ],
)
def test_plain_python_commands_can_run_warm(argv: tuple[str, ...], wanted: Target) -> None:
    assert target(*argv) == wanted


@pytest.mark.parametrize(
    "argv",
    [
        ("python",),
        ("python", "-"),
        ("python", "-c", "print()"),
        ("python", "-O", "train.py"),
        ("python", "-m"),
        ("python", "folder"),
        ("torchrun", "train.py"),
        ("bash", "train.py"),
        ("pypy3", "train.py"),
    ],
)
def test_everything_else_is_executed(argv: tuple[str, ...]) -> None:
    assert target(*argv) is None


def test_another_interpreter_is_executed() -> None:
    assert target("python", "train.py", program="/other/bin/python3") is None
    assert target("python", "train.py", interpreter=None) is None


def test_names_of_one_interpreter_are_one_but_environments_are_not(tmp_path: Path) -> None:
    base, env = tmp_path / "base", tmp_path / "env"
    base.mkdir()
    env.mkdir()
    (base / "python3.11").write_text("")
    (base / "python3").symlink_to("python3.11")
    (env / "python").symlink_to(base / "python3")
    (env / "python3").symlink_to("python")
    assert canonical(str(base / "python3")) == str(base / "python3.11")
    assert canonical(str(env / "python3")) == canonical(str(env / "python")) == str(env / "python")


def test_scripts_that_would_notice(tmp_path: Path) -> None:
    script = Target("script", "train.py", (), False)

    def notices(*loaded: str) -> bool:
        return sees_the_difference(script, cwd=str(tmp_path), loaded=loaded)

    (tmp_path / "train.py").write_text("import torch\n")
    assert not notices("torch", "torch.nn")
    (tmp_path / "torch").mkdir()
    assert not notices("torch", "torch.nn")  # a folder without __init__.py comes after the real package
    (tmp_path / "torch" / "__init__.py").write_text("")
    assert notices("torch.nn")
    assert not notices("numpy")
    (tmp_path / "numpy.py").write_text("")
    assert notices("numpy")
    (tmp_path / "train.py").write_text("import os\nos.environ.setdefault('MKL_NUM_THREADS', '1')\n")
    assert notices()


def test_modules_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text('os.environ["TORCH_LOGS"] = "x"\n')
    assert sees_the_difference(Target("module", "pkg.train", (), False), cwd=str(tmp_path), loaded=())
    assert not sees_the_difference(Target("module", "pkg.other", (), False), cwd=str(tmp_path), loaded=())
