"""What the training software does, where that changes memory or time. The defaults are what `windlass.job` does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    fused_attention: bool = True  # scores are never written out (flash attention)
    fused_elementwise: bool | None = None  # everything between products in few kernels; None: where the plan compiles
    # Of the products, those that `selective` recomputing does again: none here, every second one in torchtitan.
    selective_products: float = 0.0
    low_precision_gradients: bool = False  # reduced in 16 bits, not in 32
    scattered_messages: bool = False  # stages send each value once, not once from every process of `tensor`
    hidden_sums: float = 0.0  # share of the sums within `tensor` that goes on beside products
    flops: float = 1.0  # what the GPUs of a published run could do, of what the table says


WINDLASS = Software()
