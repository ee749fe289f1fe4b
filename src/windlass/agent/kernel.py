"""What only the Linux kernel can do for us: tying a child's life to its parent's, adopting orphans, finding processes.

Also the mark: every process of a node of an attempt shows WINDLASS_NODE_ID=<attempt>/<node>@<folder> in its
/proc/<pid>/environ, so that strays are found whoever their parent is by then.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Iterator, NamedTuple

MARK = "WINDLASS_NODE_ID"
_MARK_ROOM = 63
# A warm launcher is started with this, so that its forks can write their mark over it.
MARK_PLACEHOLDER = "." * _MARK_ROOM

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@functools.lru_cache(maxsize=None)
def _libc() -> Any:
    import ctypes  # long to load: those who only look at processes do without

    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: object) -> None:
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, "prctl(%d): %s" % (option, os.strerror(number)))


def die_with_parent(signal_number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Descendants whose parents die become our children, instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_process_name(name: str) -> None:
    _prctl(_PR_SET_NAME, name.encode()[:15])


def give_way(niceness: int) -> None:
    """Let others go first on the processors, this much."""
    os.nice(niceness)
    if os.getsid(0) != os.getpid():
        return  # the session is not ours to slow down
    try:
        # Where the kernel divides processors by session first, niceness counts within a session only.
        with open("/proc/self/autogroup", "w") as file:
            file.write("%d" % os.nice(0))
    except OSError:
        pass  # a kernel that does not, or will not just now


def find_mark_address() -> int | None:
    """Where the placeholder lies in this process's initial environment block; None if it was started without."""
    if os.environ.get(MARK) != MARK_PLACEHOLDER:
        return None
    import ctypes

    getenv = _libc().getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(MARK.encode())
    return int(address) if address else None


def write_mark(address: int, node_id: str) -> None:
    """A fork keeps the environment block its ancestor was executed with, so it is overwritten in place."""
    value = node_id.encode()
    if len(value) <= _MARK_ROOM:
        import ctypes

        ctypes.memmove(address, value.ljust(_MARK_ROOM, b"\0"), _MARK_ROOM)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def network_id() -> str:
    """Of the network that this process sees; pods of one machine have different ones."""
    try:
        return "%s %s" % (boot_id(), os.readlink("/proc/self/ns/net"))
    except OSError:
        return boot_id()


class Stat(NamedTuple):
    pid: int
    state: str
    ppid: int
    session: int
    cpu_s: float  # its own and that of the children it has waited for
    threads: int
    start: int  # ticks since boot: with the pid, the identity of a process
    rss_bytes: int


def stat(pid: int) -> Stat | None:
    try:
        with open("/proc/%d/stat" % pid, "rb", buffering=0) as file:
            text = file.read(1024)
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # a name may hold spaces and parentheses
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        ppid=int(fields[1]),
        session=int(fields[3]),
        cpu_s=sum(map(int, fields[11:15])) / _TICKS_PER_S,
        threads=int(fields[17]),
        start=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def is_alive(pid: int, start: int) -> bool:
    """Whether the very process is there: pids are used again, and a zombie does nothing any more."""
    found = stat(pid)
    return found is not None and found.start == start and found.state not in "ZX"


def children(pid: int, *, main_thread_only: bool = False) -> list[int]:
    """Children started by the process; with `main_thread_only`, those that its first thread started."""
    found: list[int] = []
    try:
        threads = [str(pid)] if main_thread_only else os.listdir("/proc/%d/task" % pid)
    except (FileNotFoundError, ProcessLookupError):
        return found
    for thread in threads:
        try:
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb", buffering=0) as file:
                while True:
                    part = file.read(65536)
                    if not part:
                        break
                    found.extend(map(int, part.split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def descendants(pid: int, *, main_thread_only: bool = False) -> list[int]:
    found: list[int] = []
    queue = children(pid, main_thread_only=main_thread_only)
    while queue:
        child = queue.pop()
        found.append(child)
        queue.extend(children(child, main_thread_only=main_thread_only))
    return found


def command_line(pid: int) -> str:
    """As `ps` shows it; empty for one that is gone."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler of its own for this signal: the default for most is to die of them."""
    try:
        with open("/proc/%d/status" % pid) as file:
            caught = next((line for line in file if line.startswith("SigCgt:")), "SigCgt: 0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def waits(pid: int) -> Iterator[str]:
    """For each thread, its name, its state and what it waits for inside the kernel; the stack there too where we may
    see it."""
    try:
        threads = sorted(map(int, os.listdir("/proc/%d/task" % pid)))
    except (FileNotFoundError, ProcessLookupError):
        return
    for thread in threads:
        said = []
        for name in ("comm", "wchan", "syscall", "stack"):
            try:
                with open("/proc/%d/task/%d/%s" % (pid, thread, name)) as file:
                    said.append("%s %s" % (name, " < ".join(file.read(4096).split("\n")).strip(" <")))
            except OSError:
                continue  # gone, or not for us to see
        found = stat(thread)
        yield "thread %d, state %s: %s" % (thread, found.state if found else "gone", "; ".join(said))


def pss_bytes(pid: int) -> int:
    """Resident memory with shared pages divided among their users. Slower to ask for than resident size."""
    try:
        with open("/proc/%d/smaps_rollup" % pid) as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return 0


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def has_mark(pid: int, node_id: str) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            content = b"\0" + file.read() + b"\0"
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return ("\0%s=%s\0" % (MARK, node_id)).encode() in content


def oom_kills() -> int:
    """How many processes the kernel has killed for memory, on this machine and in this control group."""
    count = 0
    for path, name in (("/proc/vmstat", "oom_kill"), (_memory_events(), "oom_kill")):
        try:
            with open(path) as file:
                for line in file:
                    key, _, value = line.partition(" ")
                    if key == name:
                        count += int(value)
        except OSError:
            continue  # not every kernel or container shows it
    return count


def _memory_events() -> str:
    try:
        with open("/proc/self/cgroup") as file:
            for line in file:
                if line.startswith("0::"):
                    return "/sys/fs/cgroup%s/memory.events" % line[3:].strip().rstrip("/")
    except OSError:
        pass  # no control groups here: the path below does not exist either
    return "/sys/fs/cgroup/memory.events"
