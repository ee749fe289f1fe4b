"""What a rank's last words say about the kind of its trouble: a table of patterns. Pure.

Only the end of the error output is looked at, once, when a rank has failed. Names of kinds are those of
`windlass.agent.remedy`, which says what is done about each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DEVICE_BROKEN = "device_broken"
DEVICE_ERROR = "device_error"
DRIVER = "driver"
NETWORK = "network"
DISK_FULL = "disk_full"
DISK_BROKEN = "disk_broken"
NAN = "nan"
EXPLODED = "exploded"
NO_GPU = "no_gpu"  # found by `windlass.agent.nogpu`: it depends on what the run asked for
_MOST_BYTES = 16 * 1024


class Pattern(NamedTuple):
    trouble: str
    text: str  # compiled when a rank has failed, not before one starts
    # Also in what was said before the error: nobody says it in passing. The others count only in the error itself,
    # which may have been raised long after a program has warned of something and gone on.
    anywhere: bool = False


def _words(*alternatives: str) -> str:
    return "|".join(alternatives)


# The first that fits. What a machine does wrong comes before what is only a consequence of it.
TABLE: tuple[Pattern, ...] = (
    Pattern(
        DEVICE_BROKEN,
        _words(
            r"[Uu]ncorrectable ECC error",
            r"GPU has fallen off the bus|GPU is lost|Unable to determine the device handle for GPU",
            # Memory, bus, NVLink and the GPU's own processors; other numbers are mostly a program's doing.
            r"NVRM: Xid .*?: (48|62|63|64|74|79|92|94|95|119|120|140|143),",
            r"hardware stack error|[Uu]ncorrectable NVLink error|row remapping (failure|is pending)",
        ),
        anywhere=True,
    ),
    Pattern(
        DEVICE_BROKEN,
        _words(
            r"CUDA-capable device\(s\) is/are busy or unavailable|no CUDA-capable device is detected",
            r"CUDA error: (unknown error|initialization error|invalid device ordinal)",
            r"HIP error: (unknown error|hipErrorNoDevice)",
        ),
    ),
    Pattern(
        DRIVER,
        _words(
            r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
            r"forward compatibility was attempted on non supported HW|Driver/library version mismatch",
        ),
    ),
    Pattern(EXPLODED, _words(r"^(\w+\.)*SickStep: .* is usual\b")),
    Pattern(NAN, _words(r"^(\w+\.)*SickStep\b")),
    Pattern(
        DEVICE_ERROR,
        _words(
            r"(CUDA|HIP) error: (an illegal memory access|unspecified launch failure|misaligned address)",
            r"(CUDA|HIP) error: (an illegal instruction|the launch timed out|operation not permitted on an event)",
            r"CU(BLAS|SOLVER|SPARSE|FFT)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)",
            r"CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)",
        ),
    ),
    Pattern(DISK_FULL, _words(r"No space left on device|Disk quota exceeded")),
    Pattern(DISK_BROKEN, _words(r"\bInput/output error|Read-only file system|Structure needs cleaning")),
    Pattern(
        NETWORK,
        _words(
            r"Watchdog caught collective operation timeout|collective operation timeout",
            r"ncclSystemError|NCCL WARN .*(Connection timed out|Call to ibv_\w+ failed|IBV_WC_RETRY_EXC_ERR)",
            r"transport retry counter exceeded|Network is unreachable|No route to host",
        ),
    ),
)


def find_trouble(said: str, error: str | None) -> str | None:
    """`said`: the end of the error output; `error`: the error that ended the rank, if it told one in the usual way.
    Where it did not, as one that was aborted, all that it said counts."""
    said = said[-_MOST_BYTES:]
    for pattern in TABLE:
        where = said if pattern.anywhere or error is None else error
        if re.search(pattern.text, where):
            return pattern.trouble
    return None
