"""A program that wants a GPU and finds none: whether that is what ended a rank, and what would help. Pure.

A run that asked for none sees none, whatever its node has (`windlass.agent.environ`). What then looks like broken
hardware is nobody's fault, and comes again on every node.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

from . import patterns
from .verdict import Verdict

# Read where a run has no GPUs. One that has some and says so has other trouble.
_FINDS_NONE = (
    # PyTorch
    r"No (CUDA|HIP) GPUs are available|Found no NVIDIA driver on your system",
    r"Cannot access accelerator device when none is available",
    r"ProcessGroup\w+ is only supported with GPUs, no GPUs found",
    r"on a CUDA device but torch\.cuda\.is_available\(\) is False",
    # CUDA and ROCm, whoever calls them
    r"no CUDA-capable device is detected|no ROCm-capable device is detected|hipErrorNoDevice",
    r"(CUDA|HIP) error: invalid device ordinal|CUDA driver initialization failed, you might not have a CUDA gpu",
    # JAX
    r"No visible GPU devices|no supported devices found for platform (CUDA|ROCM)",
    r"Unknown backend:? '?(gpu|cuda|rocm)'? requested",
    # TensorFlow
    r"assigned to \S*device:GPU:\d+ but available devices are|Could not satisfy device specification '\S*device:GPU:",
    r"device:GPU:\d+ unknown device",
    # XGBoost, Lightning
    r"No visible GPU is found for XGBoost|No supported gpu backend found",
)
_CPU_BUILD = r"Torch not compiled with CUDA enabled|module 'torch\._C' has no attribute '_cuda_\w+'"


def explain(verdict: Verdict, plan: Mapping[str, Any]) -> Verdict:
    """With the reason and the remedy, if that is what happened."""
    if verdict.reason not in ("exit_code", "signal") or verdict.about_peers:
        return verdict
    hint = _hint(verdict.message, plan)
    return verdict._replace(message="%s; %s" % (verdict.message, hint), trouble=patterns.NO_GPU) if hint else verdict


def _hint(message: str, plan: Mapping[str, Any]) -> str:
    asked, is_cpu_build = _asked(plan), bool(re.search(_CPU_BUILD, message))
    if not is_cpu_build and (asked or not re.search("|".join(_FINDS_NONE), message)):
        return ""
    if not asked and _is_bare(plan):
        name = plan["node_name"]
        return "the run asked for no GPUs, and node '%s' has none: train on CPUs, or on a node that has some" % name
    if is_cpu_build:
        build = "the PyTorch that it found is built without CUDA: install one that is built with it"
        return build if asked else "%s, and ask for GPUs (--gpus 1)" % build
    return "the run asked for no GPUs, so it sees none: add --gpus 1 (`resources: {gpus: 1}` in a spec)"


def _asked(plan: Mapping[str, Any]) -> bool:
    """Whether the run wants GPUs on this node. What its cluster gave it may be less, or named otherwise."""
    told = plan.get("device_env", {}).get("CUDA_VISIBLE_DEVICES")
    return bool(plan["gpu_indices"] or plan.get("gpu_count") or told)


def _is_bare(plan: Mapping[str, Any]) -> bool:
    """Whether the node is known to have none: a cluster may hide those that were not asked for."""
    return not plan["node_gpus"] and "device_env" not in plan
