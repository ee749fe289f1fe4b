from __future__ import annotations

import pytest

from windlass.agent import patterns
from windlass.agent.failure import describe_failure
from windlass.agent.patterns import find_trouble


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", patterns.DEVICE_BROKEN),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", patterns.DEVICE_ERROR),
        ("RuntimeError: CUDA error: device-side assert triggered", None),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", patterns.DEVICE_ERROR),
        ("RuntimeError: No CUDA GPUs are available", None),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", patterns.DRIVER),
        ("OSError: [Errno 28] No space left on device: '/data/x'", patterns.DISK_FULL),
        ("OSError: [Errno 5] Input/output error", patterns.DISK_BROKEN),
        ("torch.distributed.DistBackendError: NCCL error: ncclSystemError: System call failed", patterns.NETWORK),
        ("windlass.job.accounting.anomaly.SickStep: the loss is nan", patterns.NAN),
        ("windlass.job.accounting.anomaly.SickStep: step 9: the loss is 90, and 2 is usual", patterns.EXPLODED),
        ("ValueError: SickStep is no plan", None),
        ("ValueError: shapes do not match", None),
    ],
)
def test_the_table(error: str, trouble: str | None) -> None:
    assert find_trouble(f"some warning\n{error}\n", error) == trouble


@pytest.mark.parametrize(
    ("xid", "trouble"), [("79, pid=1, GPU has", patterns.DEVICE_BROKEN), ("13, Graphics Exception", None)]
)
def test_of_the_kernels_messages_only_those_about_the_machine_count(xid: str, trouble: str | None) -> None:
    assert find_trouble(f"NVRM: Xid (PCI:0000:3b:00): {xid}\n", None) == trouble


def test_what_was_said_before_the_error_counts_only_if_it_is_grave() -> None:
    said = "warning: cache: No space left on device\nValueError: no\n"
    assert find_trouble(said, "ValueError: no") is None
    assert find_trouble(said, None) == patterns.DISK_FULL
    grave = "CUDA: uncorrectable ECC error encountered\nRuntimeError: NCCL communicator was aborted\n"
    assert find_trouble(grave, "RuntimeError: NCCL communicator was aborted") == patterns.DEVICE_BROKEN


def test_only_the_end_is_searched() -> None:
    assert find_trouble("uncorrectable ECC error\n" + "x" * 20_000, None) is None


def test_a_failure_has_its_kind() -> None:
    frame = b'Traceback (most recent call last):\n  File "t.py", line 3, in f\n'
    tail = frame + b"OSError: [Errno 28] No space left on device\n"
    found = describe_failure(rank=1, exit_code=1, signal_number=None, stderr_tail=tail, kernel_oom=False)
    assert (found.reason, found.trouble) == ("exit_code", patterns.DISK_FULL)
    watchdog = b"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\nterminate called\n"
    aborted = describe_failure(rank=0, exit_code=None, signal_number=6, stderr_tail=watchdog, kernel_oom=False)
    assert (aborted.trouble, aborted.about_peers) == (patterns.NETWORK, True)
    killed = describe_failure(rank=0, exit_code=None, signal_number=9, stderr_tail=tail, kernel_oom=False)
    assert killed.trouble is None
