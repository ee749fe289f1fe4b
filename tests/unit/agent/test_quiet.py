"""A process does not end before threads of gloo have let go of what they hold."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from windlass.agent import kernel, quiet

NAME = "pt_gloo_runloop"


@contextmanager
def a_thread(work: Callable[[], None], *, name: str = NAME) -> Iterator[None]:
    """That has begun to work, and then waits for nothing in particular, as those of gloo do."""
    begun, over = threading.Event(), threading.Event()

    def live() -> None:
        kernel.set_process_name(name)  # of this thread
        begun.set()
        work()
        over.wait()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        begun.wait()
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def has_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", sys)


def test_waits_for_a_thread_that_works_and_then_wants_the_interpreter(has_torch: None) -> None:
    done, content = [], bytes(1 << 20)

    def work() -> None:
        for _ in range(30):
            hashlib.sha256(content)  # without the interpreter
        done.append(True)

    with a_thread(work):
        quiet.settle(60)
        assert done == [True]


def test_does_not_wait_for_ever(has_torch: None) -> None:
    stop, content = threading.Event(), bytes(1 << 20)

    def work() -> None:
        while not stop.is_set():
            hashlib.sha256(content)

    with a_thread(work):
        quiet.settle(0.05)
        stop.set()


def test_waits_for_no_other_thread(has_torch: None) -> None:
    stop, content = threading.Event(), bytes(1 << 20)

    def work() -> None:
        while not stop.is_set():
            hashlib.sha256(content)

    with a_thread(work, name="other"):
        quiet.settle(1e9)
        stop.set()


def test_takes_no_look_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    monkeypatch.setattr(quiet, "_look", lambda: pytest.fail("looked"))
    quiet.settle()


@pytest.mark.torch
def test_finds_the_threads_that_torch_makes(tmp_path: object) -> None:
    script = (
        "import sys, torch, torch.distributed as dist\n"
        "from windlass.agent import quiet\n"
        "dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(4))\n"
        "print(len(quiet._look()))\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-c", script, f"{tmp_path}/rendezvous"]
    assert int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) > 0
