"""Why a rank failed, told from how it ended and from the end of its error output. Pure.

The fingerprint is equal for failures that are the same failure: it leaves out what differs from one attempt to the
next (addresses, numbers, temporary paths) and keeps the error, its text and the frames.
"""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Iterator, NamedTuple

from .digest import sha256_of
from .patterns import find_trouble
from .torchrun import RELAYED, killed_worker
from .tracebacks import abridged, own_places

# Patterns are compiled when they are needed: ranks start without waiting for it, and few of them fail.
_RANK_PREFIX = r"^(\[(default|rank|node)?\d+\]:\s?)+"
# The second begins what torch makes the message of an error that another process (of a DataLoader) has sent: that one's
# own traceback, which tells more than the place where it was heard of.
_HEADERS = ("Traceback (most recent call last):", "Original Traceback (most recent call last):")
_FRAME = r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+)(, in (?P<function>.+))?$'
_ERROR = r"^(?P<type>[A-Za-z_][\w.]*)(:( (?P<message>.*))?)?$"
_VARYING = (
    (r"0x[0-9a-fA-F]+", "<address>"),
    (r"(/tmp|/var/tmp|/dev/shm)(/[^\s'\",:)]+)+", "<path>"),
    (r"\b[0-9a-f]{8,}\b", "<hex>"),
    (r"\d+", "<n>"),
)
# Another program's or the scheduler's doing says nothing about the script.
_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
_MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")
_MEMORY_TEXT = r"CUDA out of memory|HIP out of memory|DefaultCPUAllocator: can't allocate memory"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_MOST_TRACEBACK_LINES = 60
_MOST_MESSAGE_LINES = 10
# What a rank says when one of its peers is gone or never came. True of it, but seldom why the run failed: another
# rank's own words are to be preferred where there are any.
_ABOUT_PEERS = (
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|Connection aborted|Socket closed",
    r"Timed out waiting \d+ms for \w+ operation|application timeout caused pair closure",  # gloo
    r"failed to pass monitoredBarrier",
    r"ncclRemoteError|ncclSystemError|remote process exited|NCCL communicator was aborted",
    r"[Ww]atchdog (caught collective operation timeout|thread terminated)|collective operation timeout",
    r"failed to recv, got 0 bytes|Failed to recv|wait timeout after \d+ms|client socket has timed out",  # torch's store
    r"\b(DEADLINE_EXCEEDED|UNAVAILABLE)\b|coordination service|Collective ops is aborted",  # JAX, TensorFlow
    r"[Bb]arrier timed out",
    r"rank \d+ ended after \d+ steps while rank \d+ was in step",  # `windlass.job.failures`
)
_PEER_IS_GONE = "|".join(_ABOUT_PEERS)
# What `windlass.job.failures` says last of a rank that another one's failure has ended, or that failed after it.
_FAILED_AFTER = r"windlass: rank \d+ failed: .*; (rank \d+ ends too|the error of rank \d+ is a consequence)"
_PEER_ERRORS = frozenset(
    ("ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError", "EOFError",
     "DistNetworkError", "DistStoreError", "RendezvousTimeoutError", "RendezvousConnectionError")
)  # fmt: skip


class Frame(NamedTuple):
    file: str
    line: int
    function: str


class PythonError(NamedTuple):
    type: str
    message: str
    frames: tuple[Frame, ...]

    def describe(self) -> str:
        text = "%s: %s" % (self.type, self.message) if self.message else self.type
        if not self.frames:
            return text
        frame = self.frames[own_places([frame.file for frame in self.frames])[-1]]
        return "%s (%s:%d)" % (text, os.path.basename(frame.file), frame.line)

    def fingerprint(self) -> str:
        frames = [[os.path.basename(frame.file), frame.function, frame.line] for frame in self.frames]
        return _digest([self.type, normalised(self.message), frames])

    def is_about_peers(self) -> bool:
        return self.type.rpartition(".")[2] in _PEER_ERRORS or bool(re.search(_PEER_IS_GONE, self.message))

    def is_out_of_memory(self) -> bool:
        return self.type.rpartition(".")[2] in _MEMORY_ERRORS or bool(re.search(_MEMORY_TEXT, self.message))


class Failure(NamedTuple):
    reason: str
    message: str
    fingerprint: str | None
    about_peers: bool = False  # it tells that another process is gone, so perhaps of a consequence only
    traceback: str | None = None
    trouble: str | None = None  # of which kind it is, as `windlass.agent.patterns` tells it
    signal_number: int | None = None  # that ended a worker of the rank, which is a launcher


def describe_failure(
    *, rank: int, exit_code: int | None, signal_number: int | None, stderr_tail: bytes, kernel_oom: bool
) -> Failure:
    text = stderr_tail.decode("utf-8", "replace")
    if signal_number is not None:
        return _describe_signal(rank, signal_number, text, kernel_oom)
    error = last_python_error(text) if exit_code == 1 else None
    if error is not None and (error.type.endswith(RELAYED) or error.is_about_peers()):
        worker = killed_worker(text)  # no other has had trouble of its own
        if worker is not None:
            before = text[: text.rfind(_HEADERS[0])]  # its summary
            failure = _describe_signal(worker.rank, worker.signal_number, before, kernel_oom)
            return failure._replace(signal_number=worker.signal_number)
    follows = _follows(text)
    if error is not None:
        failure = _describe_error(error, text, error.describe())
        return failure._replace(about_peers=True) if follows else failure
    last = _last_line(text)
    message = "rank %d exited with code %d" % (rank, exit_code or 0)
    return Failure(
        "exit_code",
        "%s: %s" % (message, last) if last else message,
        _digest(["exit", exit_code, normalised(last)]),
        follows or bool(re.search(_PEER_IS_GONE, last)),
        trouble=find_trouble(text, None),
    )


def describe_unfinished(*, rank: int, stderr_tail: bytes) -> Failure | None:
    """The failure of a rank that lives but whose last words are a traceback: it may hang in its own end, waiting for
    peers or threads. None for one that has said anything since."""
    text = stderr_tail.decode("utf-8", "replace").rstrip()
    error = last_python_error(text)
    traceback = last_traceback(text)
    if error is None or traceback is None or not text.endswith(traceback.splitlines()[-1]):
        return None
    return _describe_error(error, text, "%s; rank %d did not end by itself" % (error.describe(), rank))


def _follows(text: str) -> bool:
    """Whether the rank has no trouble of its own, as it says itself: another one failed before."""
    lines = text.rstrip().rsplit("\n", 1)
    return bool(re.fullmatch(_FAILED_AFTER, lines[-1].strip()))


def _describe_error(error: PythonError, text: str, message: str) -> Failure:
    trouble = find_trouble(text, "%s: %s" % (error.type, error.message))
    reason = "oom" if error.is_out_of_memory() else "exit_code"
    fingerprint, about_peers = error.fingerprint(), error.is_about_peers()
    return Failure(reason, message, fingerprint, about_peers, last_traceback(text), trouble)


def _describe_signal(rank: int, number: int, text: str, kernel_oom: bool) -> Failure:
    if kernel_oom and number == signal.SIGKILL:
        return Failure("oom", "rank %d was killed by the kernel because memory ran out" % rank, None)
    message = "rank %d was killed by %s" % (rank, signal_name(number))
    if number in _OUTSIDE:
        return Failure("signal", message, None)
    last = _last_line(text)
    return Failure(
        "signal",
        "%s: %s" % (message, last) if last else message,
        _digest(["signal", number, normalised(last)]),
        bool(re.search(_PEER_IS_GONE, text)),  # a watchdog says much before it aborts
        trouble=find_trouble(text, None),
    )


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def last_python_error(text: str) -> PythonError | None:
    """The last traceback in `text` that is not a mere relay of another process's."""
    found = _last_told(text)
    return found.error if found else None


def last_traceback(text: str) -> str | None:
    """The text of that traceback, with those that it was chained to."""
    found = _last_told(text)
    if found is None:
        return None
    lines, end = found.lines, found.header + 1
    while end < len(lines) and (not lines[end] or lines[end][0].isspace()):
        end += 1
    end += 1  # the error; its message may have several lines
    for _ in range(_MOST_MESSAGE_LINES):
        if end >= len(lines) or not lines[end].strip() or lines[end] in _HEADERS:
            break
        end += 1
    shown = abridged(lines[_chain_start(lines, found.header) : end], _MOST_TRACEBACK_LINES)
    return "\n".join(line[:1000] for line in shown)


class _Told(NamedTuple):
    """A traceback, among the lines of whoever told it."""

    lines: list[str]
    header: int
    error: PythonError
    at: int  # its place in the whole text


def _last_told(text: str) -> _Told | None:
    """Where a launcher relays the end of a worker, all of its workers speak in one stream: then the one to be heard is
    who had trouble of its own, not who missed it and spoke last."""
    told = [found for voice in _voices(text) for found in _tracebacks(voice)]
    own = [found for found in told if not found.error.type.endswith(RELAYED)]
    if len(own) < len(told):
        own = [found for found in own if not found.error.is_about_peers()] or own
    return max(own or told, key=lambda found: found.at, default=None)


def _voices(text: str) -> list[list[tuple[int, str]]]:
    """The numbered lines of each process that has a prefix of its own, without it; lines of several may be mixed."""
    voices: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.split("\n")):
        prefix = re.match(_RANK_PREFIX, line)
        voices.setdefault(prefix[0].rstrip() if prefix else "", []).append(
            (number, line[prefix.end() if prefix else 0 :].rstrip("\r"))
        )
    return list(voices.values())


def _tracebacks(voice: list[tuple[int, str]]) -> Iterator[_Told]:
    lines = [line for _, line in voice]
    for header, line in enumerate(lines):
        error = _parse(lines[header + 1 :]) if line in _HEADERS else None
        if error is not None:
            yield _Told(lines, header, error, voice[header][0])


def _chain_start(lines: list[str], header: int) -> int:
    """Where the first traceback of the chain that ends with the one at `header` begins."""
    before = header - 1
    while before >= 0 and not lines[before].strip():
        before -= 1
    if before < 0 or lines[before] not in _CHAINED:
        return header
    earlier = [n for n in range(before) if lines[n] in _HEADERS]
    return _chain_start(lines, earlier[-1]) if earlier else header


def _parse(lines: list[str]) -> PythonError | None:
    frames: list[Frame] = []
    for line in lines:
        frame = re.match(_FRAME, line)
        if frame:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
            continue
        if not line or line[0].isspace():
            continue  # source text and carets below a frame
        error = re.match(_ERROR, line)
        return PythonError(error["type"], (error["message"] or "").strip(), tuple(frames)) if error else None
    return None


def normalised(text: str) -> str:
    for pattern, word in _VARYING:
        text = re.sub(pattern, word, text)
    return text


def _last_line(text: str) -> str:
    for line in reversed(text.splitlines()):
        if said := re.sub(_RANK_PREFIX, "", line).strip():
            return said[-500:]
    return ""


def _digest(value: object) -> str:
    return sha256_of(json.dumps(value))
