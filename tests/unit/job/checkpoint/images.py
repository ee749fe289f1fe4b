"""A saver process with an arena of its own, and no torch: what the crash tests drive."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.job.checkpoint.disk import VARIABLE
from windlass.job.checkpoint.retention import Keep
from windlass.job.checkpoint.saver import Order
from windlass.testing.nursery import Nursery

ROOT = Path(__file__).resolve().parents[4]
SIZE = 2 * 8192
START = "from windlass.job.checkpoint.saver import main; main(0)"
_NURSERY = Nursery("windlass.job.checkpoint.saver")


def image(step: int) -> bytes:
    return bytes([step % 251]) * SIZE


def order(
    folder: Path,
    step: int,
    *,
    save_id: str = "aaaa",
    rank: int = 0,
    world_size: int = 1,
    encode: dict[str, Any] | None = None,
) -> Order:
    files = [[f"__{rank}_0.distcp", 0, SIZE // 2], [f"__{rank}_1.distcp", SIZE // 2, SIZE // 2]]
    return Order(
        folder=str(folder),
        save_id=save_id,
        rank=rank,
        world_size=world_size,
        step=step,
        files=files,
        run_id="r1",
        attempt=1,
        reason="interval",
        plan="",
        metrics={},
        keep=asdict(Keep(last=1)),
        encode=encode or {},
    )


def save(one: Order, *, fault: str | None = None) -> dict[str, Any] | None:
    """By a new saver process; None: it died on the way."""
    ours, theirs = socket.socketpair()
    environ = {**os.environ, **({VARIABLE: fault} if fault else {})}
    with theirs:
        process = _NURSERY.start(START, environ=environ, output=2, inputs=theirs.fileno())
    arena = os.memfd_create("arena")
    try:
        os.write(arena, image(one.step))
        socket.send_fds(ours, [b'{"what": "arena", "metadata_bytes": 4}\nmeta'], [arena])
        ours.sendall(json.dumps({"what": "save", "order": asdict(one)}).encode() + b"\n")
        answer = ours.recv(1 << 16)
        return json.loads(answer) if answer else None
    finally:
        os.close(arena)
        ours.close()
        process.wait(60)
