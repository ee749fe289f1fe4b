from __future__ import annotations

import signal

import pytest

from windlass.agent.blame import Candidate
from windlass.agent.failure import (
    Failure,
    describe_failure,
    describe_unfinished,
    last_python_error,
    normalised,
)
from windlass.agent.verdict import Verdict

TRACEBACK = """some output
Traceback (most recent call last):
  File "/work/train.py", line 12, in <module>
    main()
    ~~~~^^
  File "/work/train.py", line 8, in main
    fit(lr=0.1)
  File "/venv/lib/python3.11/site-packages/lib/fit.py", line 99, in fit
    raise ValueError(f"bad lr {lr} at {id(self):#x}")
ValueError: bad lr 0.1 at 0x7f12
"""


def failed(stderr: str, *, code: int | None = 1, number: int | None = None, oom: bool = False) -> Failure:
    return describe_failure(rank=3, exit_code=code, signal_number=number, stderr_tail=stderr.encode(), kernel_oom=oom)


def test_the_error_and_the_innermost_line_of_ones_own() -> None:
    found = failed(TRACEBACK)
    assert found.reason == "exit_code"
    assert found.message == "ValueError: bad lr 0.1 at 0x7f12 (train.py:8)"


OURS = "/opt/windlass/src/windlass/job"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["/work/train.py", f"{OURS}/parallel/parallelize.py", f"{OURS}/parallel/copies.py"], "train.py"),
        (["/work/train.py", f"{OURS}/trainer.py", "/work/model.py", "/v/site-packages/torch/nn.py"], "model.py"),
        (["/work/train.py", f"{OURS}/recipes/gpt.py", f"{OURS}/losses.py"], "train.py"),
        (["<frozen runpy>", f"{OURS}/recipes/gpt.py", f"{OURS}/parallel/parallelize.py"], "gpt.py"),
        (["<frozen runpy>", "/v/site-packages/windlass/job/recipes/gpt.py", "/v/site-packages/torch/nn.py"], "gpt.py"),
        (["<frozen runpy>", f"{OURS}/parity/__main__.py", f"{OURS}/parity/measure.py"], "measure.py"),
        (["/home/windlass/job/train.py", "/v/site-packages/torch/nn.py"], "train.py"),
        (["/run/work/windlass/job/recipes/gpt.py", "/run/work/windlass/job/parallel/copies.py"], "gpt.py"),
    ],
)
def test_the_line_that_is_named_is_no_librarys_and_none_of_ours(files: list[str], named: str) -> None:
    """The line of a recipe, where the run is of one; the innermost of all, where there is nothing else."""
    frames = "".join(f'  File "{file}", line 7, in f\n    f()\n' for file in files)
    found = failed(f"Traceback (most recent call last):\n{frames}RuntimeError: sizes differ\n")
    assert found.message == f"RuntimeError: sizes differ ({named}:7)"


def test_equal_failures_have_equal_fingerprints() -> None:
    first = failed(TRACEBACK)
    again = failed(TRACEBACK.replace("0x7f12", "0x7fff").replace("lr 0.1", "lr 0.25").replace("/work/", "/other/"))
    other_line = failed(TRACEBACK.replace("line 8", "line 9"))
    other_type = failed(TRACEBACK.replace("ValueError", "KeyError"))
    assert first.fingerprint == again.fingerprint
    assert len({first.fingerprint, other_line.fingerprint, other_type.fingerprint}) == 3


def test_the_last_of_several_errors_counts() -> None:
    text = TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n"
    text += TRACEBACK.replace("ValueError: bad lr", "RuntimeError: worse")
    error = last_python_error(text)
    assert error is not None
    assert error.type == "RuntimeError"


def test_prefixes_of_ranks_and_relays_of_torchrun_are_seen_through() -> None:
    prefixed = "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines())
    relay = TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", "torch.errors.ChildFailedError:")
    assert failed(prefixed + relay).message == "ValueError: bad lr 0.1 at 0x7f12 (train.py:8)"
    assert failed(relay).message.startswith("torch.errors.ChildFailedError")


PEER = TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", "RuntimeError: Read error: Connection reset by peer.")


def summary(*codes: tuple[int, int]) -> str:
    """As torchrun writes it: rank and exit code of each, the cause last."""
    failures = [
        f"[{rank}]:\n  time      : 2026-11-19_21:11:50\n  host      : localhost\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 11675) \n"
        f"  error_file: <N/A>\n  traceback : Signal {-code} received by PID 11675"
        for rank, code in codes
    ]
    relay = TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", "torch.errors.ChildFailedError: ")
    relay = relay.removeprefix("some output\n")
    line = "=" * 60
    others = "\n".join(failures[:-1]) or "  <NO_OTHER_FAILURES>"
    cause = f"Root Cause (first observed failure):\n{failures[-1]}\n{line}\n"
    return f"{relay}{line}\na.py FAILED\nFailures:\n{others}\n{'-' * 60}\n{cause}"


@pytest.mark.parametrize("codes", [[(1, -9)], [(0, 1), (1, -9)], [(1, -9), (0, 1)], [(2, -15), (1, -9), (0, 1)]])
def test_a_worker_that_was_killed_under_torchrun_explains_what_its_peers_say(codes: list[tuple[int, int]]) -> None:
    for said in ("", PEER):
        found = failed(said + summary(*codes))
        assert (found.reason, found.signal_number, found.about_peers) == ("signal", 9, False)
        assert found.message == "rank 1 was killed by SIGKILL"
        verdict = Verdict.on(Candidate(rank=0, failure=found, ended_at=1.0, exit_code=1))
        assert (verdict.exit_code, verdict.signal_number) == (None, 9)
    assert failed(summary(*codes), oom=True).reason == "oom"


def test_a_worker_that_crashed_under_torchrun_did_so_itself() -> None:
    text = "api.py:1002] failed (exitcode: -11) local_rank: 1 (pid: 11676)\n" + summary((0, 1), (1, -11))
    found = failed(text)
    assert (found.reason, found.signal_number) == ("signal", 11)
    assert found.message.startswith("rank 1 was killed by SIGSEGV: api.py:1002] failed (exitcode: -11)")
    assert found.fingerprint == failed(text.replace("1167", "9")).fingerprint


@pytest.mark.parametrize(
    ("said", "codes", "error"),
    [(TRACEBACK, [(0, 1), (1, -9)], "ValueError"), (PEER, [(1, 1), (2, -15), (0, 1)], "RuntimeError")],
)
def test_trouble_of_ones_own_counts_before_another_workers_signal(
    said: str, codes: list[tuple[int, int]], error: str
) -> None:
    found = failed(said + summary(*codes))
    assert (found.reason, found.signal_number) == ("exit_code", None)
    assert found.message.startswith(error)


def test_an_error_without_message() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    assert 0\nAssertionError\n'
    assert failed(text).message == "AssertionError (a.py:1)"


@pytest.mark.parametrize(
    "last",
    [
        "MemoryError",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "torch.cuda.OutOfMemoryError: gone",
        "RuntimeError: CUDA out of memory.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried",
    ],
)
def test_running_out_of_memory_in_python(last: str) -> None:
    assert failed(TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", last)).reason == "oom"


def test_a_handled_error_is_not_the_reason_for_another_exit_code() -> None:
    found = failed(TRACEBACK + "giving up\n", code=3)
    assert found.message == "rank 3 exited with code 3: giving up"


def test_exit_codes_with_and_without_last_words() -> None:
    assert failed("", code=2).message == "rank 3 exited with code 2"
    same = failed("cannot open port 1234\n", code=2), failed("cannot open port 9999\n\n", code=2)
    assert same[0].fingerprint == same[1].fingerprint
    assert same[0].fingerprint != failed("", code=2).fingerprint


def test_last_words_are_told_without_the_prefix_of_their_rank() -> None:
    assert failed("[rank3]: error: no such file\n").message == "rank 3 exited with code 1: error: no such file"
    assert failed("[rank3]: error: no\n").fingerprint == failed("[rank0]: error: no\n\n").fingerprint


def test_signals() -> None:
    crash = failed("Fatal error\n", code=None, number=signal.SIGSEGV)
    assert (crash.reason, crash.message) == ("signal", "rank 3 was killed by SIGSEGV: Fatal error")
    assert crash.fingerprint is not None
    killed = failed("last words\n", code=None, number=signal.SIGKILL)
    assert killed == Failure("signal", "rank 3 was killed by SIGKILL", None)
    assert failed("", code=None, number=signal.SIGKILL, oom=True).reason == "oom"
    assert failed("", code=None, number=signal.SIGSEGV, oom=True).reason == "signal"


def test_broken_tracebacks_are_no_tracebacks() -> None:
    assert last_python_error("Traceback (most recent call last):\n") is None
    assert last_python_error("Traceback (most recent call last):\n  File broken\n%%% what\n") is None
    assert last_python_error("") is None


def test_what_varies_is_left_out() -> None:
    assert normalised("pid 12 at 0xdeadbeef in /tmp/x9/y: deadbeef01") == "pid <n> at <address> in <path>: <hex>"


@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242",
        "RuntimeError: [pair.cc:547] Read error [127.0.0.1]:1: Connection reset by peer",
        "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//1",
        "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: the task is gone",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "windlass.job.failures.RanksDisagree: rank 1 ended after 10 steps while rank 0 was in step 11; all ranks need",
        "EOFError",
    ],
)
def test_words_of_a_rank_that_misses_a_peer(last: str) -> None:
    assert failed(TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", last)).about_peers


@pytest.mark.parametrize(
    "last",
    [
        "ValueError: bad lr",
        "RuntimeError: [pair.cc:446] op.preamble.length <= op.nbytes. 12 vs 8",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "windlass.core.plan.InvalidPlan: plan tensor=3 needs a multiple of 3 processes",
    ],
)
def test_words_of_a_rank_with_trouble_of_its_own(last: str) -> None:
    assert not failed(TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", last)).about_peers


def test_a_rank_that_says_itself_that_another_one_failed_before_has_no_trouble_of_its_own() -> None:
    """In the words of `windlass.job.failures`."""
    ends_too = "windlass: rank 0 failed: NameError: name 'nothing' is not defined; rank 3 ends too\n"
    assert failed("epoch 1\n" + ends_too).about_peers
    assert failed(TRACEBACK + "retried\n" + ends_too).about_peers
    assert failed("windlass: rank 0 failed: %s; rank 3 ends too\n" % ("long " * 100)).about_peers
    consequence = failed(TRACEBACK + "windlass: rank 0 failed: KeyError: 'x'; the error of rank 3 is a consequence\n")
    assert consequence.about_peers
    assert consequence.message == "ValueError: bad lr 0.1 at 0x7f12 (train.py:8)"
    assert not failed(ends_too + TRACEBACK).about_peers


def test_a_watchdogs_abort_is_about_peers_and_a_crash_is_not() -> None:
    said = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\nterminate called\n"
    assert failed(said, code=None, number=signal.SIGABRT).about_peers
    assert not failed("double free\n", code=None, number=signal.SIGABRT).about_peers


def test_the_traceback_itself_with_what_it_was_chained_to() -> None:
    chained = TRACEBACK + "\nThe above exception was the direct cause of the following exception:\n\n"
    chained += TRACEBACK.partition("\n")[2].replace("ValueError: bad lr 0.1 at 0x7f12", "RuntimeError: two\nlines")
    text = failed("noise\n" + chained + "\nafterwards\n").traceback
    assert text is not None
    assert text.startswith("Traceback")
    assert text.endswith("RuntimeError: two\nlines")
    assert text.count("Traceback") == 2
    assert "ValueError: bad lr" in text
    assert failed("no traceback\n").traceback is None


def test_the_error_of_a_worker_process_is_its_own() -> None:
    frames = "".join(f'  File "/venv/lib/python3.11/site-packages/torch/fetch.py", line {n}, in f\n' for n in range(12))
    text = f"""Traceback (most recent call last):
  File "/work/train.py", line 30, in <module>
    for batch in loader:
  File "/venv/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
    raise exception
FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.
Original Traceback (most recent call last):
{frames}  File "/work/data.py", line 9, in __getitem__
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/17.npy'
"""
    found = failed(text)
    assert found.message == "FileNotFoundError: [Errno 2] No such file or directory: '/data/17.npy' (data.py:9)"
    assert found.traceback is not None
    assert found.traceback.endswith("'/data/17.npy'")
    assert found.traceback.startswith("Original Traceback")


def test_a_traceback_of_a_thousand_frames_is_shortened() -> None:
    frame = '  File "a.py", line 1, in f\n    f()\n'
    text = failed("Traceback (most recent call last):\n" + 100 * frame + "RecursionError: too deep\n").traceback
    assert text is not None
    assert len(text.splitlines()) == 60
    assert text.endswith("RecursionError: too deep")


def test_a_rank_that_hangs_in_its_own_end_has_failed_all_the_same() -> None:
    found = describe_unfinished(rank=2, stderr_tail=TRACEBACK.encode())
    assert found is not None
    assert found.message == "ValueError: bad lr 0.1 at 0x7f12 (train.py:8); rank 2 did not end by itself"
    assert describe_unfinished(rank=2, stderr_tail=(TRACEBACK + "went on\n\nwith other things\n").encode()) is None
    assert describe_unfinished(rank=2, stderr_tail=b"all is well\n") is None


def test_workers_of_a_launcher_that_speak_at_once_are_told_apart() -> None:
    own = [f"[rank1]: {line}" for line in TRACEBACK.splitlines()]
    missed = TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", "RuntimeError: Connection closed by peer")
    other = [f"[rank0]: {line}" for line in missed.splitlines()]
    mixed = "\n".join(line for pair in zip(own, other, strict=True) for line in pair) + "\n"
    relay = TRACEBACK.replace("ValueError: bad lr 0.1 at 0x7f12", "torch.errors.ChildFailedError:")
    found = failed(mixed + relay)
    assert found.message == "ValueError: bad lr 0.1 at 0x7f12 (train.py:8)"
    assert not found.about_peers
    assert found.traceback == TRACEBACK.partition("\n")[2].rstrip()
    # Without a launcher it is one process, and what it said last is why it ended.
    assert failed(TRACEBACK + missed).about_peers
