from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.test_environ import plan as base_plan
from windlass.engines.local.sockets import socket_dir
from windlass.engines.local.source import Need, decide_need, read_entry
from windlass.engines.local.warmpool import decide_warm_environment
from windlass.engines.outcomes import exit_of, merge_usage


def plan(env: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    path = str(Path(sys.executable).parent)
    settings = {"argv": ["python", "train.py"], "workdir": "/", "code": None, "workers_per_node": 1, **changes}
    return base_plan(env={"PATH": path, "HOME": "/root", **(env or {})}, **settings)


def name_of(content: dict[str, Any]) -> str:
    environment = decide_warm_environment(content, {})
    assert environment is not None
    return environment.name


def test_what_is_read_at_import_makes_an_environment() -> None:
    same = name_of(plan())
    assert name_of(plan({"LR": "0.1", "WINDLASS_PARAMS": "{}"})) == same
    assert name_of(plan(argv=["python3", "-m", "other"])) == same
    for variable in ("OMP_NUM_THREADS", "PYTHONPATH", "LD_PRELOAD", "TORCH_LOGS", "LC_ALL", "VIRTUAL_ENV", "HOME"):
        assert name_of(plan({variable: "something"})) != same


def test_ranks_of_one_node_and_their_thread_limit_are_an_environment_of_their_own() -> None:
    assert name_of(plan(workers_per_node=2)) == name_of(plan({"OMP_NUM_THREADS": "1"}))
    assert name_of(plan(workers_per_node=2)) != name_of(plan())


@pytest.mark.parametrize("argv", [["true"], ["torchrun", "a.py"], ["python", "-c", ""], ["no-such-command"]])
def test_commands_without_a_warm_environment(argv: list[str]) -> None:
    assert decide_warm_environment(plan(argv=argv), {}) is None


def test_a_secret_that_is_read_at_import_needs_a_fresh_interpreter() -> None:
    assert decide_warm_environment(plan(), {"TOKEN": "x"}) is not None
    assert decide_warm_environment(plan(), {"PYTHONPATH": "x"}) is None


def test_wrapper_scripts_are_not_looked_behind(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    assert decide_warm_environment(plan({"PATH": str(tmp_path)}), {}) is None


@pytest.mark.parametrize(
    ("source", "need"),
    [
        (b"import torch", Need.CERTAIN),
        (b"import os, torch.nn as nn", Need.CERTAIN),
        (b"def f():\n    from numpy import array", Need.CERTAIN),
        (b"from transformers import Trainer", Need.CERTAIN),
        (b"from model import GPT", Need.POSSIBLE),
        (b"from .torch import x", Need.NONE),
        (b"import os, json, argparse", Need.NONE),
        (b"x = = 1", Need.NONE),
        (b"\0", Need.NONE),
        (None, Need.POSSIBLE),
    ],
)
def test_what_a_script_needs(source: bytes | None, need: Need) -> None:
    assert decide_need(source, ("numpy", "torch")) is need


def test_the_entry_is_read_from_the_folder_or_the_snapshot(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    (blobs / "ab").mkdir(parents=True)
    digest = "ab" * 32
    (blobs / "ab" / digest).write_bytes(b"from the snapshot")
    manifest = tmp_path / "manifest"
    manifest.write_text(f'{{"files": [{{"path": "train.py", "sha256": "{digest}"}}]}}')
    content = plan(workdir=str(tmp_path / "work"), code={"manifest": str(manifest), "blobs": str(blobs)})
    assert read_entry(content) == b"from the snapshot"
    assert read_entry({**content, "argv": ["python", "-u", "-m", "train"]}) == b"from the snapshot"
    assert read_entry({**content, "argv": ["python", "other.py"]}) is None
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_bytes(b"from the folder")
    assert read_entry(content) == b"from the folder"


def test_sockets_of_deep_homes_have_short_paths(tmp_path: Path) -> None:
    short, deep = Path("/h"), tmp_path / ("x" * 100)
    assert socket_dir(short) == short
    found = socket_dir(deep)
    try:
        assert len(os.fsencode(found / "warm" / "0123456789abcdef.sock")) < 108
        assert found.stat().st_mode & 0o777 == 0o700
        assert socket_dir(deep) == found
        assert socket_dir(tmp_path / ("y" * 100)) != found
    finally:
        found.rmdir()
        socket_dir(tmp_path / ("y" * 100)).rmdir()


def outcome(reason: str, *, ended_at: float = 10.0, rank: int | None = None, failed_at: float = 0.0) -> dict[str, Any]:
    ranks = [] if rank is None else [{"rank": rank, "ended_at": failed_at}]
    return {
        "reason": reason,
        "exit_code": None,
        "signal": None,
        "rank": rank,
        "message": reason,
        "fingerprint": None,
        "ended_at": ended_at,
        "ranks": ranks,
    }


def test_the_first_failure_explains_the_attempt() -> None:
    late = outcome("exit_code", ended_at=5.0, rank=0, failed_at=4.0)
    early = outcome("oom", ended_at=9.0, rank=1, failed_at=3.0)
    assert exit_of([late, early, outcome("cancelled", ended_at=1.0)]).reason == "oom"
    assert exit_of([late, outcome("lost", ended_at=20.0)]).reason == "lost"
    assert exit_of([outcome("completed"), outcome("cancelled")]).reason == "cancelled"
    assert exit_of([outcome("completed"), outcome("completed")]).reason == "completed"


def test_usage_of_nodes_adds_up() -> None:
    sample = {"at": 1.0, "cpu_percent": 50.0, "rss_bytes": 10, "peak_rss_bytes": 20, "cpu_seconds": 1.5}
    first = {**sample, "gpus": [{"index": 0}], "ranks": [{"rank": 0}], "nodes": [{"node": 0}]}
    second = {**sample, "at": 2.0, "gpus": [], "ranks": [{"rank": 1}]}  # of an agent that knows no nodes
    assert merge_usage([first, second]) == {
        "at": 2.0,
        "cpu_percent": 100.0,
        "rss_bytes": 20,
        "peak_rss_bytes": 40,
        "cpu_seconds": 3.0,
        "gpus": [{"index": 0}],
        "ranks": [{"rank": 0}, {"rank": 1}],
        "nodes": [{"node": 0}],
    }
    assert merge_usage([]) is None
    odd = merge_usage([first, {**second, "gpus": None, "ranks": 3, "nodes": 0.5}])  # programs can write there
    assert odd is not None
    assert (odd["gpus"], odd["ranks"], odd["nodes"]) == ([{"index": 0}], [{"rank": 0}], [{"node": 0}])
