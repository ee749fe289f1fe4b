from __future__ import annotations

from typing import Any

import pytest

from windlass.agent import patterns
from windlass.agent.failure import describe_failure
from windlass.agent.nogpu import explain
from windlass.agent.recovery import Past, Policy, decide_in_place
from windlass.agent.verdict import Verdict
from windlass.core.exits import Exit, ExitReason
from windlass.runs.retry import Ended, GiveUp, RetryPolicy, decide_blame, decide_retry

ASK = "; the run asked for no GPUs, so it sees none: add --gpus 1 (`resources: {gpus: 1}` in a spec)"
BARE = "; the run asked for no GPUs, and node 'a' has none: train on CPUs, or on a node that has some"
BUILD = "; the PyTorch that it found is built without CUDA: install one that is built with it"
NONE = "RuntimeError: No CUDA GPUs are available"


def plan(**changes: Any) -> dict[str, Any]:
    return {"node_name": "a", "node_gpus": 8, "gpu_indices": [], **changes}


def died(error: str) -> Verdict:
    """Of that error, in line 37 of its script."""
    tail = f'Traceback (most recent call last):\n  File "/w/train.py", line 37, in <module>\n    fit()\n{error}\n'
    failure = describe_failure(rank=0, exit_code=1, signal_number=None, stderr_tail=tail.encode(), kernel_oom=False)
    return Verdict(failure.reason, failure.message, 1, rank=0, trouble=failure.trouble)


def exit_of(verdict: Verdict) -> Exit:
    return Exit(
        reason=ExitReason(verdict.reason), message=verdict.message, exit_code=1, trouble=verdict.trouble, node="a"
    )


@pytest.mark.parametrize(
    "error",
    [
        NONE,
        "RuntimeError: No HIP GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed",
        "RuntimeError: Cannot access accelerator device when none is available.",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If",
        "torch.AcceleratorError: CUDA error: no CUDA-capable device is detected",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorNoDevice: no CUDA-capable device is detected",
        "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices. (you may",
        "RuntimeError: Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present.",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Cannot assign a device for operation m: node m "
        "was explicitly assigned to /device:GPU:0 but available devices are [ /job:localhost/device:CPU:0 ].",
    ],
)
def test_a_run_that_asked_for_no_gpus_is_told_so(error: str) -> None:
    found = explain(died(error), plan())
    assert (found.message, found.trouble) == (f"{error} (train.py:37){ASK}", patterns.NO_GPU)


def test_a_machine_without_any_is_named() -> None:
    found = explain(died(NONE), plan(node_gpus=0))
    assert found.message.endswith(BARE)
    # A cluster may have hidden them.
    assert explain(died(NONE), plan(node_gpus=0, device_env={"CUDA_VISIBLE_DEVICES": ""})).message.endswith(ASK)


@pytest.mark.parametrize(
    "gpus",
    [
        {"gpu_indices": [0]},
        {"device_env": {"CUDA_VISIBLE_DEVICES": "GPU-8f2a"}},
        {"gpu_indices": [0, 1]},
        {"gpu_count": 2, "device_env": {"CUDA_VISIBLE_DEVICES": ""}},  # its cluster gave it none
    ],
)
def test_a_run_that_wants_gpus_has_other_trouble(gpus: dict[str, Any]) -> None:
    assert explain(died(NONE), plan(**gpus)) == died(NONE)
    broken = died("RuntimeError: CUDA error: no CUDA-capable device is detected")
    assert explain(broken, plan(**gpus)).trouble == patterns.DEVICE_BROKEN


@pytest.mark.parametrize(
    "error",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
    ],
)
def test_a_pytorch_without_cuda_is_named_whatever_was_asked_for(error: str) -> None:
    with_gpus, without = explain(died(error), plan(gpu_indices=[0])), explain(died(error), plan())
    assert with_gpus.message.endswith(f"(train.py:37){BUILD}")
    assert without.message.endswith(f"{BUILD}, and ask for GPUs (--gpus 1)")
    assert with_gpus.trouble == without.trouble == patterns.NO_GPU
    assert explain(died(error), plan(node_gpus=0)).message.endswith(BARE)


@pytest.mark.parametrize(
    "verdict",
    [
        died("ValueError: bad batch"),
        died("RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        Verdict("exit_code", NONE, 1, about_peers=True),
        Verdict("preempted", NONE),
    ],
)
def test_other_ends_stay_as_they_are(verdict: Verdict) -> None:
    assert explain(verdict, plan()) == verdict


def test_nothing_is_tried_again_and_no_node_blamed() -> None:
    looks_broken = died("RuntimeError: CUDA error: no CUDA-capable device is detected")
    assert decide_blame([exit_of(looks_broken)]) is not None
    found = explain(looks_broken, plan())
    assert decide_blame([exit_of(found)]) is None
    policy = RetryPolicy(max=3, errors_too=True)
    assert decide_retry([Ended(exit=exit_of(found))], policy, jitter=0) == GiveUp(why="no gpu is final")
    assert decide_in_place(found, Policy(3, True), Past(step=9)) is not None
