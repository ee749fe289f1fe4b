"""The processes of one world size: started once, given one case after the other, ended when one of them fails.

Loading torch takes longer than most cases, so it is loaded once, and cases share processes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

from windlass.agent.ports import free_port
from windlass.job.parity.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    losses: Sequence[float] = ()
    footprint: dict[str, int] = field(default_factory=dict)  # of the process that has most of each
    wall_s: float = 0.0
    error: str | None = None  # the first failing rank's traceback


_LONGEST_SAID = 2000


class Failed(Exception):
    """A rank raised or died; the text is what it said."""


def run_cases(cases: Sequence[Case], world_size: int, steps: int, *, timeout_s: float = 120.0) -> Iterator[Outcome]:
    """One outcome per case, in order. A case that fails costs its processes; the next one gets new ones."""
    left = list(cases)
    while left:
        with contextlib.closing(_Workers(world_size)) as workers:
            while left:
                case = left.pop(0)
                began = time.monotonic()
                try:
                    losses, footprint = workers.train(case, steps, timeout_s)
                except Failed as failure:
                    yield Outcome(case=case, error=str(failure), wall_s=time.monotonic() - began)
                    break
                yield Outcome(case=case, losses=losses, footprint=footprint, wall_s=time.monotonic() - began)


class _Workers:
    def __init__(self, world_size: int) -> None:
        # Not fork: the parent may have threads of torch's. The one that forks has loaded it, and nothing more.
        context = get_context("forkserver")
        context.set_forkserver_preload(["windlass.job.parity.training"])
        port = free_port()
        self._pipes: list[connection.Connection] = []
        self._files = contextlib.ExitStack()
        self._said: list[Any] = []
        self._processes = []
        for rank in range(world_size):
            mine, theirs = context.Pipe()
            environ = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            # What a library prints before it kills its process is the only word about it.
            said = self._files.enter_context(tempfile.NamedTemporaryFile(prefix="windlass-parity-"))  # noqa: SIM115
            process = context.Process(target=_serve, args=(theirs, environ, said.name), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._said.append(said)
            self._processes.append(process)

    def train(self, case: Case, steps: int, timeout_s: float) -> tuple[list[float], dict[str, int]]:
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send((case, steps))
        answers = self._answers(timeout_s)
        losses: list[float] = answers[0][0]
        names = answers[0][1]
        return losses, {name: max(footprint[name] for _, footprint in answers) for name in names}

    def _answers(self, timeout_s: float) -> list[tuple[list[float], dict[str, int]]]:
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            ready = connection.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = [rank for rank in range(len(self._pipes)) if rank not in answers]
                raise Failed(f"no answer from ranks {silent} within {timeout_s:g} s")
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                answers[rank] = self._answer(pipe, rank)
        return [answers[rank] for rank in range(len(self._pipes))]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._files.close()

    def _answer(self, pipe: Any, rank: int) -> Any:
        try:
            kind, value = pipe.recv()
        except (EOFError, ConnectionResetError):
            last = self._said[rank].read().decode(errors="replace").strip()[-_LONGEST_SAID:]
            raise Failed(f"rank {rank} died" + (f", its last words:\n{last}" if last else " without a word")) from None
        if kind == "error":
            raise Failed(f"rank {rank}:\n{value}")
        return value


def _serve(pipe: connection.Connection, environ: dict[str, str], said: str) -> None:
    """In the worker: train what the parent asks for until it goes away."""
    os.environ.update(environ)
    with open(said, "ab") as words:
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
    import torch

    from windlass.job.parity.training import train

    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            case, steps = pipe.recv()
            try:
                losses, footprint = train(case, steps)
            except Exception:
                pipe.send(("error", traceback.format_exc()))
                pipe.recv()  # stays, with its connections open, so that the others fail by nothing but the cause
            else:
                pipe.send(("done", (losses, footprint.as_dict())))
