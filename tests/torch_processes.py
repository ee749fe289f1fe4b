"""Processes with PyTorch loaded, for tests of what several of them do: loading it would take most of the time."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from windlass.testing.nursery import Child, Nursery

ROOT = Path(__file__).resolve().parents[1]
_NURSERY = Nursery(
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.profiler",
    folder=ROOT,
    environ={"OMP_NUM_THREADS": "1"},  # it counts when PyTorch is loaded
)


class TorchProcess:
    """Its output is one stream of text."""

    def __init__(self, child: Child, stdout: IO[str]) -> None:
        self._child = child
        self.stdout = stdout
        self.kill, self.wait, self.send_signal = child.kill, child.wait, child.send_signal

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def communicate(self, timeout: float = 150.0) -> tuple[str, None]:
        """All of its output. One that takes longer is killed, which its code tells."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        try:
            said = self.stdout.read()
            self.wait()
        finally:
            timer.cancel()
            timer.join()
        self.stdout.close()
        return said, None


def start_process(script: str, *arguments: str, environ: Mapping[str, str], folder: Path | None = None) -> TorchProcess:
    output, theirs = os.pipe()
    try:
        child = _NURSERY.start(script, *arguments, environ=environ, output=theirs, folder=folder)
    finally:
        os.close(theirs)
    return TorchProcess(child, open(output, errors="replace"))
