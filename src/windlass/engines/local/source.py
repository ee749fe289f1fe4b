"""Reading an entry script before it runs: what does it want with the modules a warm launcher has loaded? Decides only
where a script is started, never what it does."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from windlass.agent.command import python_script
from windlass.core.syntax import parse_source

# Libraries that import torch themselves.
_ON_TORCH = frozenset(("torchvision", "torchaudio", "lightning", "pytorch_lightning", "transformers", "accelerate"))


class Need(StrEnum):
    NONE = "none"  # it imports the standard library only: a bare interpreter is quicker, above all to end
    POSSIBLE = "possible"  # something it imports may in turn import them
    CERTAIN = "certain"


def decide_need(source: bytes | None, modules: Collection[str]) -> Need:
    """How much the script needs `modules`; `source` is None where it cannot be read in advance."""
    if source is None:
        return Need.POSSIBLE
    if (tree := parse_source(source)) is None:
        return Need.NONE
    names = {name.partition(".")[0] for node in ast.walk(tree) for name in _imported(node)}
    wanted = set(modules) | (_ON_TORCH if "torch" in modules else set())
    if names & wanted:
        return Need.CERTAIN
    return Need.POSSIBLE if names - sys.stdlib_module_names else Need.NONE


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []


def read_entry(plan: Mapping[str, Any]) -> bytes | None:
    """The source of the script that the plan runs, from the working folder or else from the snapshot."""
    script = _script_path(plan["argv"])
    if script is None:
        return None
    path = Path(plan["workdir"], script)
    if path.is_file():
        return path.read_bytes()
    if plan["code"] is None:
        return None
    manifest = Path(plan["code"]["manifest"])
    if not manifest.is_file():
        return None
    for entry in json.loads(manifest.read_bytes())["files"]:
        if entry["path"] == script and entry.get("sha256"):
            blob = Path(plan["code"]["blobs"], entry["sha256"][:2], entry["sha256"])
            return blob.read_bytes() if blob.is_file() else None
    return None


def _script_path(argv: list[str]) -> str | None:
    script = python_script(argv)
    if script is not None:
        return script.removeprefix("./")
    rest = [word for word in argv[1:3] if word != "-u"]
    if rest[:1] == ["-m"] and len(argv) > argv.index("-m") + 1:
        return argv[argv.index("-m") + 1].replace(".", "/") + ".py"
    return None
