"""Gangs over two nodes on every engine: roles that only serve, whose failure explains the end, and alerts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.sites import Installation
from windlass.client import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKS = "import os\nprint(os.environ['WINDLASS_ROLE'], os.environ['WINDLASS_ROLE_RANK'])\n"
SERVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told to stop", flush=True), sys.exit(3)))
print("serving", flush=True)
time.sleep(600)
"""
# The first rank ends at once because its peer is gone, as it believes; the peer fails only then.
FAILS = """
import os, time
if os.environ["RANK"] == "0":
    raise RuntimeError("[pair.cc:534] Connection closed by peer [10.0.0.2]:4242")
time.sleep(1)
raise ValueError("bad batch")
"""
ALERTS = """
from windlass import job
job.alert("nan", "the loss is no number", step=job.rank)
"""


def submit(client: Any, folder: Path, scripts: dict[str, str], **keys: Any) -> Run:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (code / name).write_text(text)
    return client.submit(  # type: ignore[no-any-return]
        code=code,
        resources={"nodes": 2, "cpus": 1},
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        **keys,
    )


def test_gangs_end_alike(installation: Installation, tmp_path: Path) -> None:
    with installation.client() as client:
        roles = {"worker": 2, "ps": {"count": 2, "command": "python serves.py"}}
        serving = submit(client, tmp_path, {"works.py": WORKS, "serves.py": SERVES}, script="works.py", roles=roles)
        failing = submit(client, tmp_path, {"fails.py": FAILS}, script="fails.py")
        alarmed = submit(client, tmp_path, {"alerts.py": ALERTS}, script="alerts.py")

        serving.wait(timeout=200)
        said = sorted((line.rank, line.text) for line in serving.logs())
        assert serving.state == "succeeded", (serving.view.exit, said)
        assert [text for rank, text in said if rank < 2] == ["worker 0", "worker 1"]

        failing.wait(timeout=100)
        assert failing.view.exit is not None
        assert (failing.view.exit.rank, failing.state) == (1, "failed"), failing.view.exit
        assert failing.view.exit.message == "ValueError: bad batch (fails.py:6)"
        assert failing.view.exit.traceback is not None

        alarmed.wait(timeout=100)
        alerts = sorted(event.message for event in alarmed.events() if event.kind == "alert")
        assert alerts == [f"nan at step {rank}: the loss is no number" for rank in (0, 1)]
