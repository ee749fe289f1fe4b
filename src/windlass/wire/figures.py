"""Values of metrics in JSON, which has no words for NaN and infinities: they are the texts "NaN", "Infinity" and
"-Infinity", which Python, JavaScript and pydantic all read back as what they are.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import PlainSerializer


def spelled(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


Figure = Annotated[float, PlainSerializer(spelled, return_type=float | str, when_used="json")]
