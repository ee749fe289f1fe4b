"""Which GPUs of a node: numbers with a bit for each one that is free."""

from __future__ import annotations

from functools import lru_cache


def without(free: int, count: int) -> int:
    """Beside the load of others a node may offer fewer GPUs than are held: it is their number that counts then."""
    for _ in range(min(max(0, count), free.bit_count())):
        free &= ~(1 << (free.bit_length() - 1))
    return free


@lru_cache(maxsize=65536)
def pick(free: int, count: int) -> tuple[tuple[int, ...], int]:
    """Which GPUs of those that are free, and what is left. Neighbours are linked best: an aligned block of 2, 4 or 8 if
    there is one, the one that breaks the smallest larger block; otherwise the first."""
    width = 1 << (count - 1).bit_length()
    blocks = [
        (_broken(free, start, width), start)
        for start in range(0, free.bit_length(), width)
        if ((free >> start) & ((1 << width) - 1)).bit_count() >= count
    ]
    rest = free
    if blocks:
        _, start = min(blocks)
        rest = free >> start << start
    chosen = []
    for _ in range(count):
        low = rest & -rest
        chosen.append(low.bit_length() - 1)
        rest ^= low
    for index in chosen:
        free ^= 1 << index
    return tuple(chosen), free


def _broken(free: int, start: int, width: int) -> int:
    """How many GPUs are free in the blocks around."""
    around = 0
    for wide in (width, 2 * width, 4 * width):
        begin = start // wide * wide
        around = around * 64 + ((free >> begin) & ((1 << wide) - 1)).bit_count()
    return around
