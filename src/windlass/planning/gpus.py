"""The table of GPUs: peak speed, memory and bandwidths by makers' data sheets; docs/planning.md names the sources.

Speeds are dense (without sparsity) and for products that add up in 32 bits, as training does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from windlass.core.errors import InvalidInput
from windlass.core.names import unknown
from windlass.core.plan import Precision

GIB = 2**30
CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    memory_bytes: int  # as torch reports it, which is less than the label says
    memory_bandwidth: float  # bytes a second
    fp32: float  # TFLOP/s, without TF32: that is what torch does unless told otherwise
    fp16: float
    bf16: float | None = None
    fp8: float | None = None
    within_node: float  # bytes a second and direction to the others in the node
    between_nodes: float  # ... to other nodes, for each GPU
    per_node: int = 8
    # The share of the peak that large products reach for hours: power and clocks set it, so it goes by architecture.
    # Ampere's and Hopper's are held against published runs (docs/planning.md), the others are guesses from them.
    sustained: float

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    def has(self, precision: Precision) -> bool:
        return self.teraflops(precision) is not None

    def teraflops(self, precision: Precision) -> float | None:
        return {
            Precision.FP32: self.fp32,
            Precision.FP16: self.fp16,
            Precision.BF16: self.bf16,
            Precision.FP8: self.fp8,
        }[precision]


_VOLTA, _TURING, _AMPERE, _ADA, _HOPPER, _BLACKWELL, _CDNA3 = 0.65, 0.5, 0.72, 0.65, 0.7, 0.65, 0.55
_HDR, _NDR = 25e9, 50e9  # InfiniBand at 200 and 400 Gb/s, a card for each GPU
_PCIE3, _PCIE4 = 12e9, 24e9  # x16, as measured rather than as labelled


def _gpu(name: str, gib: float, terabytes: float, speeds: tuple[float | None, ...], links: tuple[float, float, int],
         sustained: float) -> Gpu:  # fmt: skip
    fp32, fp16, bf16, fp8 = speeds
    assert fp32
    assert fp16
    within, between, per_node = links
    return Gpu(
        name=name,
        memory_bytes=int(gib * GIB),
        memory_bandwidth=terabytes * 1e12,
        fp32=fp32,
        fp16=fp16,
        bf16=bf16,
        fp8=fp8,
        within_node=within,
        between_nodes=between,
        per_node=per_node,
        sustained=sustained,
    )


_TABLE = (
    #    name         GiB   TB/s   fp32   fp16   bf16   fp8        in node, between, per node
    _gpu("a100-40g", 39.4, 1.555, (19.5, 312, 312, None), (300e9, _HDR, 8), _AMPERE),
    _gpu("a100-80g", 79.2, 2.039, (19.5, 312, 312, None), (300e9, _HDR, 8), _AMPERE),
    _gpu("h100", 79.1, 3.35, (67, 989, 989, 1979), (450e9, _NDR, 8), _HOPPER),
    _gpu("h200", 139.8, 4.8, (67, 989, 989, 1979), (450e9, _NDR, 8), _HOPPER),
    _gpu("b200", 178.0, 7.7, (75, 2250, 2250, 4500), (900e9, _NDR, 8), _BLACKWELL),
    _gpu("mi300x", 191.9, 5.3, (163, 1307, 1307, 2614), (310e9, _NDR, 8), _CDNA3),
    _gpu("v100-16g", 15.7, 0.9, (15.7, 125, None, None), (150e9, 3.1e9, 8), _VOLTA),
    _gpu("v100-32g", 31.7, 0.9, (15.7, 125, None, None), (150e9, 3.1e9, 8), _VOLTA),
    _gpu("l40s", 44.4, 0.864, (91.6, 362, 362, 733), (_PCIE4, 6.2e9, 8), _ADA),
    _gpu("l4", 22.0, 0.3, (30.3, 121, 121, 242), (_PCIE3, 1.5e9, 8), _ADA),
    _gpu("a10g", 22.0, 0.6, (31.2, 70, 70, None), (_PCIE4, 1.5e9, 8), _AMPERE),
    _gpu("rtx4090", 23.5, 1.008, (82.6, 165, 165, 330), (_PCIE3, 1.2e9, 8), _ADA),
    _gpu("t4", 14.6, 0.3, (8.1, 65, None, None), (_PCIE3, 1.5e9, 4), _TURING),
)
GPUS: Mapping[str, Gpu] = {gpu.name: gpu for gpu in _TABLE}

# One process on some cores. Only the memory counts: on CPUs plans are tried out, not raced.
_CPU = _gpu(CPU, 4.0, 0.02, (0.1, 0.1, 0.1, None), (5e9, 1e9, 1024), 0.5)
# A GPU that the table lacks, for choosing among plans: proportions as of an A100.
_OTHER = replace(GPUS["a100-40g"], name="other", within_node=_PCIE4)
_SIZES = {"a100": ("a100-40g", "a100-80g"), "v100": ("v100-16g", "v100-32g")}


@functools.cache
def find_gpu(text: str, *, memory_bytes: int | None = None) -> Gpu:
    """By a name of the table or torch's (`NVIDIA A100-SXM4-80GB`); `memory_bytes` corrects the table's.

    A name that is not in the table is refused, unless its memory is known: then plans can be told apart.
    """
    gpu = _by_name(text, memory_bytes)
    if gpu is None and memory_bytes is None:
        raise InvalidInput(unknown("GPU type", text, [*GPUS, CPU]))
    gpu = gpu or _OTHER
    return gpu if memory_bytes is None else replace(gpu, memory_bytes=memory_bytes)


def _by_name(text: str, memory_bytes: int | None) -> Gpu | None:
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if words in GPUS:
        return GPUS[words]
    if words == CPU:
        return _CPU
    for name, sizes in _SIZES.items():
        if name in words.split("-"):
            return _by_size(words, sizes, memory_bytes)
    joined = words.replace("rtx-", "rtx")
    names = [name for name in GPUS if name in joined.split("-")]
    return GPUS[max(names, key=len)] if names else None


def _by_size(words: str, sizes: tuple[str, ...], memory_bytes: int | None) -> Gpu:
    """Which of the sizes that a GPU is sold in: the one named, else the one that is nearest, else the largest."""
    if memory_bytes is not None:
        return min((GPUS[size] for size in sizes), key=lambda gpu: abs(gpu.memory_bytes - memory_bytes))
    named = [size for size in sizes if re.search(rf"\b{size.rpartition('-')[2]}b?\b", words)]
    return GPUS[named[0] if named else sizes[-1]]
