"""Recording what a run ran on and with, without making it wait: from a cache, or by a probe at low priority."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Mapping

from . import kernel, layout
from .command import is_python, shebang
from .digest import sha256_of
from .files import read_if_whole, write_json
from .probe import folder_times

_PROBE = os.path.join(os.path.dirname(__file__), "probe.py")
_PROBE_NICENESS = 10


def record(plan: Mapping[str, Any], program: str, env: Mapping[str, str]) -> int | None:
    """Write environment.json, or start a process that will and return its pid."""
    node_dir = plan["node_dir"]
    facts = _host_facts(plan)
    interpreter = _interpreter_of(program)
    path = os.path.join(node_dir, layout.ENVIRONMENT)
    if interpreter is None:
        write_json(path, facts)
        return None
    cache = _cache_path(plan, interpreter, env)
    known = _known(cache)
    if known is not None:
        write_json(path, dict(facts, **known))
        return None
    os.makedirs(os.path.dirname(cache), exist_ok=True)
    return _start_probe([interpreter, _probe_in(node_dir), json.dumps(facts), path, cache], env)


def _known(cache: str) -> dict[str, Any] | None:
    """What the cache has, if that is still so. One that cannot be read or understood is made anew."""
    found = read_if_whole(cache) or {}
    folders, environment = found.get("folders"), found.get("environment")
    if not isinstance(folders, dict) or not isinstance(environment, dict):
        return None
    return environment if folder_times(list(folders)) == folders else None


def _probe_in(node_dir: str) -> str:
    """Its path; taken out of the archive first, if that is where this package is."""
    if os.path.isfile(_PROBE):
        return os.path.abspath(_PROBE)
    loader: Any = globals()["__loader__"]
    path = os.path.join(node_dir, "probe.py")
    with open(path, "wb") as file:
        file.write(loader.get_data(_PROBE))
    return path


def _host_facts(plan: Mapping[str, Any]) -> dict[str, Any]:
    import platform  # ranks do not wait for this any more

    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": None,
        "python_version": None,
        "packages": {},
        "gpus": plan["gpus"],
        "cpu_count": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def _interpreter_of(program: str) -> str | None:
    """The Python that a program is or, by its first line, asks for (torchrun and other console scripts)."""
    if is_python(program):
        return program
    line = shebang(program)
    return line[0] if line and is_python(line[0]) else None


def _cache_path(plan: Mapping[str, Any], interpreter: str, env: Mapping[str, str]) -> str:
    key = json.dumps([interpreter, os.stat(interpreter).st_mtime_ns, env.get("PYTHONPATH", ""), env.get("HOME", "")])
    return os.path.join(plan["cache_dir"], sha256_of(key)[:32] + ".json")


def _start_probe(argv: list[str], env: Mapping[str, str]) -> int:
    """In its own session and without the attempt's mark: it may finish after the ranks, and is not of them."""
    kept = {name: env[name] for name in ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG") if name in env}
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        kernel.give_way(_PROBE_NICENESS)
        os.execve(argv[0], argv, kept)
    finally:
        os._exit(127)
