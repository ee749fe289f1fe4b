"""Large numbers as people write them: `7B`, `350M`, `1.5T`."""

from __future__ import annotations

import re

from windlass.core.errors import InvalidInput

_COUNT = re.compile(r"^\s*(\d[\d_,]*(?:\.\d+)?(?:e\d+)?)\s*([kmbgt]?)\s*$", re.IGNORECASE)
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def parse_count(text: str, *, what: str) -> int:
    match = _COUNT.match(text)
    count = round(float(re.sub("[_,]", "", match[1])) * _SCALES[match[2].lower()]) if match else 0
    if count < 1:
        raise InvalidInput(f"{what} {text!r} is not a number from 1; write for example 350M, 7B or 1.5T")
    return count


def format_count(count: float) -> str:
    for letter in "TBMk":
        scale = _SCALES[letter.lower()]
        if count >= scale:
            return f"{count / scale:.3g}{letter}" if count < 1000 * scale else f"{count / scale:,.0f}{letter}"
    return f"{count:.0f}"
