"""An uploader process over a folder and a store, as tests start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.job.checkpoint.retention import Keep
from windlass.job.checkpoint.stores.settings import UploaderSettings

START = "import sys; from windlass.job.checkpoint.stores.uploader import main; main(sys.argv[1])"


def settings(folder: Path, address: str, *, keep: int = 2, **more: Any) -> UploaderSettings:
    return UploaderSettings(folder=str(folder), address=address, keep=asdict(Keep(last=keep)), **more)


def start(wanted: UploaderSettings, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, wanted.as_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environ or {})},
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]]]:
    """Let it send what is due; how it ended, and what it said."""
    output, _ = process.communicate(timeout=120)
    return process.returncode, [json.loads(line) for line in output.splitlines()]


def upload(wanted: UploaderSettings, environ: Mapping[str, str] | None = None) -> tuple[int, list[dict[str, Any]]]:
    return finish(start(wanted, environ))
