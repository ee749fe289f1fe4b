"""Where a run comes from: host, user, search path and the state of the git repository. Never fails and never takes
long: a record without a commit is better than a submission that hangs on a network drive.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from windlass import __version__

GIT_TIMEOUT_S = 2.0
MOST_DIFF_BYTES = 1_000_000
# What interpreters and their libraries look at, beyond PATH.
_KEPT_ENV = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class GitState(NamedTuple):
    """As the wire's of that name; the server checks it."""

    commit: str | None
    branch: str | None
    remote: str | None
    dirty: bool
    diff: str | None


class Origin(NamedTuple):
    """As the wire's of that name; the server checks it."""

    host: str
    user: str | None
    cwd: str
    client: str
    search_path: str | None
    env: Mapping[str, str]
    git: GitState | None

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "git": self.git and self.git._asdict()}


def gather_origin(code: Path, environ: Mapping[str, str] = os.environ) -> Origin:
    return Origin(
        host=socket.gethostname(),
        user=_user(),
        cwd=os.getcwd(),
        client=f"windlass {__version__}",
        search_path=search_path(environ),
        env={name: environ[name] for name in _KEPT_ENV if environ.get(name)},
        git=git_state(code),
    )


def asker() -> dict[str, str | None]:
    """Who asks for a copy of a run, as the wire's of that name."""
    return {"user": _user(), "host": socket.gethostname()}


def search_path(environ: Mapping[str, str]) -> str | None:
    """PATH, as it would be with this interpreter's virtual environment activated: `.venv/bin/windlass run train.py`
    means that environment's python. Not so where another one is active, or where the command is a link into an
    environment that holds nothing else (pipx, uv tool).
    """
    path = environ.get("PATH")
    own = os.path.dirname(sys.executable)
    linked = os.path.basename(sys.argv[0]) == "windlass" and os.path.dirname(os.path.abspath(sys.argv[0])) != own
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    if sys.prefix == sys.base_prefix or linked or active or own in (path or "").split(os.pathsep):
        return path
    return f"{own}{os.pathsep}{path}" if path else own


def _user() -> str | None:
    """As `getpass` finds it, which is long to load for what else it can do."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        if os.environ.get(name):
            return os.environ[name]
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError):  # a uid without a name, as in many containers
        return None


def git_state(folder: Path, *, timeout_s: float = GIT_TIMEOUT_S) -> GitState | None:
    """None without git, outside a repository, or if git takes too long."""
    if not _may_be_repository(folder, os.environ):
        return None
    deadline = time.monotonic() + timeout_s
    status = _git(folder, deadline, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if status is None:
        return None
    facts = dict(re.findall(r"^# branch\.(\w+) (.*)$", status, re.MULTILINE))
    commit = facts.get("oid")
    branch = facts.get("head")
    dirty = any(line and not line.startswith("#") for line in status.splitlines())
    remote = _git(folder, deadline, "config", "--get", "remote.origin.url")
    diff = _git(folder, deadline, "diff", "HEAD") if dirty and commit != "(initial)" else None
    return GitState(
        commit=None if commit == "(initial)" else commit,
        branch=None if branch == "(detached)" else branch,
        remote=_without_password(remote.strip()) if remote else None,
        dirty=dirty,
        diff=_shortened(diff) if diff else None,
    )


def _may_be_repository(folder: Path, environ: Mapping[str, str]) -> bool:
    """Asked before git is: most of the time that a submission takes would be git's, to say no."""
    above = folder.absolute()
    return "GIT_DIR" in environ or any((place / ".git").exists() for place in (above, *above.parents))


def _git(folder: Path, deadline: float, *arguments: str) -> str | None:
    import subprocess  # here, since many have no repository

    left_s = deadline - time.monotonic()
    if left_s <= 0:
        return None
    # No lock: looking at a repository must not get in the way of somebody working in it.
    environ = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotepath=off", "-c", "core.fsmonitor=false", *arguments],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=left_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _without_password(url: str) -> str:
    return re.sub(r"(?<=://)[^/@]+@", "", url)


def _shortened(diff: str) -> str:
    diff = diff.replace("\x00", "\ufffd")
    if len(diff.encode()) <= MOST_DIFF_BYTES:
        return diff
    kept = diff.encode()[:MOST_DIFF_BYTES].decode(errors="ignore")
    return kept[: kept.rfind("\n") + 1] + f"# cut off here: the diff has {len(diff):,} characters\n"
