"""GPUs and TPUs. A node has one or the other, in the same slots, and a run asks for one or the other; the name of the
type tells which. Types of TPUs are `tpu:v5e`, which no GPU is called, and `tpu:` is one of any type.
"""

from __future__ import annotations

import re

ANY_TPU = "tpu:"
_FORM = re.compile(r"-(podslice|slice|device)$")
# As Google's labels say it, beside what everybody says.
_USUAL_NAMES = {"v5-lite": "v5e", "v5litepod": "v5e", "v5lite": "v5e", "7x": "v7x"}


def tpu(name: str | None = None) -> str:
    """The type of that name: `v5e`, `TPU-V5E` and `tpu-v5-lite-podslice` are one."""
    short = _FORM.sub("", (name or "").lower().removeprefix("tpu").lstrip("-:"))
    return ANY_TPU + _USUAL_NAMES.get(short, short)


def is_tpu(type: str | None) -> bool:
    return type is not None and type.startswith(ANY_TPU)


def serves(offered: str | None, wanted: str | None) -> bool:
    """Whether accelerators of one type are what was asked for. Who names no type asks for GPUs."""
    if wanted is None:
        return not is_tpu(offered)
    return offered == wanted or (wanted == ANY_TPU and is_tpu(offered))


def resource_of(type: str) -> str:
    """As quotas and limits name it: `gpu:h100`, `tpu:v5e`."""
    return type if is_tpu(type) else f"gpu:{type}"


def title_of(type: str | None) -> str:
    """For people: `h100`, `GPU`, `TPU v5e`, `TPU`."""
    if type is not None and is_tpu(type):
        return f"TPU {type.removeprefix(ANY_TPU)}".rstrip()
    return type or "GPU"
