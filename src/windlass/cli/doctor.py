"""`doctor`: is everything there that Windlass needs, and what to do where it is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from windlass import __version__
from windlass.cli import options
from windlass.cli.connection import connection, open_client
from windlass.cli.terminal import paint_for, say, say_json
from windlass.core.errors import NotFound, WindlassError
from windlass.core.quantities import format_duration, format_size

if TYPE_CHECKING:
    from windlass.client import Client

_NAMES = 14
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_PROBE = """
import sys
print(sys.executable, sys.version.split()[0])
import torch
print(torch.__version__, torch.cuda.device_count())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """As `wire.checks.CheckView`, which is too slow to import for a machine without a server."""

    code: str  # stays the same from version to version
    name: str
    status: str  # ok, warn or fail
    found: str
    advice: str = ""


def doctor(ctx: typer.Context, json: options.Json = False) -> None:
    """Check the installation, the server with its database, blobs and engines, and this machine; say what to do."""
    home = connection(ctx).home
    checks: list[Check] = []
    paint = paint_for(sys.stdout)
    steps: list[Callable[[], Iterator[Check]]] = [
        _check_versions,
        lambda: _check_home(home),
        lambda: _check_server(ctx),
        _check_machine,
        _check_torch,
    ]
    for step in steps:
        for check in step():
            checks.append(check)
            if not json:
                mark = paint(check.status.ljust(4), _STYLES[check.status])
                say(f"{mark}  {check.name.ljust(_NAMES)} {check.found}")
                if check.advice:
                    say(f"      {' ' * _NAMES} {paint(check.advice, 'dim')}")
    if json:
        say_json([asdict(check) for check in checks])
    elif all(check.status == "ok" for check in checks):
        say(paint("everything is in order", "green"))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _check_versions() -> Iterator[Check]:
    import sqlite3

    python = sys.version.split()[0]
    fine = sys.version_info >= (3, 11)
    yield Check(
        code="local.python",
        name="python",
        status="ok" if fine else "fail",
        found=f"{python} at {sys.executable}",
        advice="" if fine else "Windlass needs Python 3.11 or newer",
    )
    yield Check(code="local.windlass", name="windlass", status="ok", found=__version__)
    # 3.35 brought RETURNING.
    fine = sqlite3.sqlite_version_info >= (3, 35)
    yield Check(
        code="local.sqlite",
        name="sqlite",
        status="ok" if fine else "fail",
        found=sqlite3.sqlite_version,
        advice="" if fine else "SQLite 3.35 or newer is needed; a newer Python brings one",
    )


def _check_home(home: Path) -> Iterator[Check]:
    import shutil
    import tempfile

    folder = next(path for path in (home, *home.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
        new = "" if folder == home else " (not there yet)"
        yield Check(code="local.home", name="home", status="ok", found=f"{home}{new}")
    except OSError as error:
        yield Check(
            code="local.home",
            name="home",
            status="fail",
            found=f"{home}: {error.strerror}",
            advice="set WINDLASS_HOME to a folder of yours",
        )
    free = shutil.disk_usage(folder).free
    status = "fail" if free < 200e6 else "warn" if free < 5e9 else "ok"
    advice = "" if status == "ok" else "logs, code and checkpoints go there: make room, or move WINDLASS_HOME"
    yield Check(code="local.disk", name="disk", status=status, found=f"{format_size(free)} free", advice=advice)


def _check_server(ctx: typer.Context) -> Iterator[Check]:
    with open_client(ctx) as client:
        yield from _check_answers(client)


def _check_answers(client: Client) -> Iterator[Check]:
    import time

    started = time.time()
    try:
        date = client.transport.server_date()
        health = client.health()
        url = client.url
    except WindlassError as error:
        yield Check(code="server.reach", name="server", status="warn", found=error.message, advice=error.hint or "")
        return
    same = health.version == __version__
    yield Check(
        code="server.reach",
        name="server",
        status="ok" if same else "warn",
        found=f"{health.version} at {url}",
        advice="" if same else f"this is {__version__}: `windlass down`, then `windlass up`, to have the same",
    )
    active = health.controller != "absent"
    yield Check(
        code="server.controller",
        name="controller",
        status="ok" if active else "fail",
        found=health.controller,
        advice="" if active else "nothing moves runs forward: see the server's log",
    )
    yield _clock(date, started, time.time())
    yield from _check_surroundings(client)


def _check_surroundings(client: Client) -> Iterator[Check]:
    """What only the server can look at."""
    try:
        for found in client.doctor():
            yield Check(**found.model_dump())
    except NotFound:
        yield Check(
            code="server.doctor", name="server", status="warn", found="too old to check its database and engines"
        )
    except WindlassError as error:
        yield Check(code="database.reach", name="database", status="fail", found=error.message, advice=error.hint or "")


def _clock(date: str | None, before: float, after: float) -> Check:
    from email.utils import parsedate_to_datetime

    if not date:
        return Check(code="server.clock", name="clock", status="warn", found="the server does not tell its time")
    there = parsedate_to_datetime(date).timestamp()  # whole seconds
    skew_s = max(0.0, before - 1.0 - there, there - after - 1.0)
    fine = skew_s < 5
    found = "in step with the server's" if skew_s < 1 else f"{format_duration(skew_s)} off the server's"
    advice = "" if fine else "durations and ages will look wrong: synchronise the clocks (NTP)"
    return Check(code="server.clock", name="clock", status="ok" if fine else "warn", found=found, advice=advice)


def _check_machine() -> Iterator[Check]:
    import resource
    import shutil

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    fine = limit >= 1024 or limit == resource.RLIM_INFINITY
    yield Check(
        code="local.files",
        name="open files",
        status="ok" if fine else "warn",
        found="unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}",
        advice="" if fine else "raise it with `ulimit -n 4096`",
    )
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError as error:
        yield Check(
            code="local.shm",
            name="/dev/shm",
            status="warn",
            found=error.strerror or "absent",
            advice="PyTorch data loaders need it",
        )
        return
    fine = size >= 1e9
    advice = "" if fine else "data loaders with workers may die of a bus error; in Docker: --shm-size=2g"
    yield Check(
        code="local.shm", name="/dev/shm", status="ok" if fine else "warn", found=format_size(size), advice=advice
    )


def _check_torch() -> Iterator[Check]:
    import shutil
    import subprocess

    from windlass.client.provenance import search_path

    path = search_path(os.environ)  # what a run would get
    python = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if python is None:
        yield Check(
            code="path.python",
            name="PATH python",
            status="warn",
            found="no python on PATH",
            advice="activate an environment",
        )
        return
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check(
            code="path.python",
            name="PATH python",
            status="warn",
            found=f"{python}: {error}",
            advice="does it start at all?",
        )
        return
    lines = done.stdout.splitlines()
    yield Check(
        code="path.python",
        name="PATH python",
        status="ok" if lines else "warn",
        found=lines[0] if lines else f"{python} fails",
    )
    if len(lines) < 2:
        problem = (done.stderr.strip().splitlines() or ["torch is not importable"])[-1]
        advice = "only needed for PyTorch training: `pip install torch` into that environment"
        yield Check(code="path.torch", name="torch", status="warn", found=problem, advice=advice)
        return
    version, gpus = lines[1].split()
    yield Check(code="path.torch", name="torch", status="ok", found=version)
    yield _gpus(int(gpus))


def _gpus(seen_by_torch: int) -> Check:
    devices = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    if devices and not seen_by_torch:
        advice = "torch is a CPU build or the driver does not fit: install the CUDA build of torch"
        return Check(
            code="path.gpus",
            name="gpus",
            status="warn",
            found=f"{len(devices)} here, none seen by torch",
            advice=advice,
        )
    return Check(code="path.gpus", name="gpus", status="ok", found=str(seen_by_torch) if seen_by_torch else "none")
