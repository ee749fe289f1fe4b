"""Rotary positions: `Rotary` turns pairs of features by an angle that grows with the position."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, context: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.base = base
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(context, head_width // 2), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the tables. Also for one made on the device `meta`, once it has memory."""
        half, device = self.cos.shape[1], self.cos.device
        speeds = self.base ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = torch.arange(self.cos.shape[0], device=device, dtype=torch.float32)[:, None] * speeds
        self.cos.copy_(angles.cos())
        self.sin.copy_(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        cos, sin = self.cos[:length], self.sin[:length]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
