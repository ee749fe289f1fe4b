"""One process of a run with its device and its process group: `init`, and how one rank's failure reaches the others.

Works alone, under Windlass and under any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

import torch
import torch.distributed as dist

from windlass.job.session import session

_FAILED = "windlass/failed"  # in the store: the first rank to fail, and with what
_SEEN = "windlass/failed/seen"  # how many others have read it
_GRACE_S = 3.0  # for the others to read it, when the store is about to end with this process
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


_process: Process | None = None


def init(*, timeout_s: float = 1800.0) -> Process:
    """Choose this process's device, join the others if there are any, seed what is random. A second call is free.

    The group is left when the process ends. When one process raises, the others end within seconds, saying which one
    and why, instead of waiting for it until `timeout_s` is over.
    """
    global _process
    if _process is not None:
        return _process
    mine = session()
    device = _device(mine.local_rank)
    if mine.world_size > 1:
        _join(device, timeout_s)
    if mine.seed is not None:
        seed_everything(mine.seed)
    _process = Process(rank=mine.rank, world_size=mine.world_size, local_rank=mine.local_rank, device=device)
    return _process


def seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each process its own GPU only, or all of the node's.
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _join(device: torch.device, timeout_s: float) -> None:
    if not dist.is_initialized():
        cuda = device.type == "cuda"
        dist.init_process_group(
            # Both, so that what lives in the host's memory can be exchanged too.
            backend="cpu:gloo,cuda:nccl" if cuda else "gloo",
            init_method="env://",
            timeout=timedelta(seconds=timeout_s),
            device_id=device if cuda else None,
        )
        atexit.register(_leave)
    _Failures(rank=dist.get_rank(), world_size=dist.get_world_size()).watch()


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class _Failures:
    """The first failure of any rank, told to all through the store that the ranks met in.

    The rank that raises writes it down before its connections close, so whatever the others see comes later and is
    known to be a consequence.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        # A connection of its own: the training's is locked while it waits.
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=60),
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def watch(self) -> None:
        previous = sys.excepthook

        def tell(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
            self._ended.set()
            first = self._record(kind, error)
            previous(kind, error, where)
            if first is not None:
                print(f"windlass: {first} This rank's error is a consequence.", file=sys.stderr)
            self._end()

        sys.excepthook = tell
        atexit.register(self._ended.set)
        threading.Thread(target=self._poll, name="windlass-failures", daemon=True).start()

    def _record(self, kind: type[BaseException], error: BaseException) -> str | None:
        """The other rank's failure that came before this one, if any."""
        reason = "".join(traceback.format_exception_only(kind, error)).strip()[:_LONGEST_REASON]
        mine = f"rank {self._rank} failed: {reason}"
        try:
            with self._lock:
                first = self._store.compare_set(_FAILED, "", mine).decode()
        except (RuntimeError, ConnectionError):
            return None  # the store is gone with the rank that held it
        return None if first == mine else first

    def _end(self) -> None:
        """Leave without the farewells of a group in which somebody may wait for this rank for ever."""
        if self._rank == 0:
            self._await_readers()
        session().flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _await_readers(self) -> None:
        deadline = time.monotonic() + _GRACE_S
        try:
            while time.monotonic() < deadline:
                with self._lock:
                    if self._store.add(_SEEN, 0) >= self._world_size - 1:
                        return
                time.sleep(0.05)
        except (RuntimeError, ConnectionError):
            return

    def _poll(self) -> None:
        pause_s = max(0.5, self._world_size / 400)  # so many questions a second are nothing to one store
        while not self._ended.wait(pause_s):
            try:
                with self._lock:
                    failed = self._store.get(_FAILED).decode() if self._store.check([_FAILED]) else None
                    if failed is not None:
                        self._store.add(_SEEN, 1)
            except (RuntimeError, ConnectionError):
                return  # whether rank 0 has finished or died cannot be known from here
            if failed is not None and not self._ended.is_set():
                print(f"windlass: {failed} Rank {self._rank} ends too.", file=sys.stderr)
                self._end()
