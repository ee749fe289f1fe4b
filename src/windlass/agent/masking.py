"""Keeping secret values out of what is written down."""

from __future__ import annotations

import re
from typing import Iterable

_SHORTEST = 4  # anything shorter would turn ordinary text into stars
_SHORTEST_LINE = 8  # of a secret with several lines, which a log shows one at a time


class Mask:
    def __init__(self, secrets: Iterable[str]) -> None:
        values: set[bytes] = set()
        for secret in secrets:
            lines = secret.splitlines()
            if len(lines) <= 1:
                values.update(line.encode("utf-8", "surrogateescape") for line in lines if len(line) >= _SHORTEST)
            else:
                values.update(line.encode("utf-8", "surrogateescape") for line in lines if len(line) >= _SHORTEST_LINE)
        self._values = sorted(values, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values))) if self._values else None

    def apply(self, data: bytes) -> bytes:
        return data if self._pattern is None else self._pattern.sub(b"***", data)

    def held_back(self, data: bytes) -> int:
        """How many bytes at the end of `data` may be the beginning of a secret."""
        longest = 0
        for value in self._values:
            for length in range(min(len(value) - 1, len(data)), longest, -1):
                if data.endswith(value[:length]):
                    longest = length
                    break
        return longest
