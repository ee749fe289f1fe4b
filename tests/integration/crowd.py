"""A crowd of submissions: single GPUs to gangs of many nodes, of several projects and priorities, that end in all the
ways there are. Drawn from a generator of random numbers, so that each test has its own and can have it again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MEAN_S = 2.06 * 3600.0  # of a run; some end before their time, so that it comes to two hours
_SPREAD = 0.85  # of the logarithm of its length
_PROJECTS = {"vision": 3, "speech": 2, "robots": 1}
_PRIORITIES = {"low": 15, "normal": 75, "high": 10}
_GPUS = {1: 40, 2: 20, 4: 20, 8: 20}
_GANGS = {2: 5, 4: 3, 8: 2}  # nodes, with all of their GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    due_s: float  # after the first
    spec: dict[str, Any]


def submissions(draw: random.Random, count: int, *, per_hour: float) -> Iterator[Submission]:
    due_s = 0.0
    for _ in range(count):
        due_s += draw.expovariate(per_hour / 3600)
        yield Submission(due_s=due_s, spec=spec(draw, length_s(draw)))


def length_s(draw: random.Random) -> float:
    return _clipped(draw.lognormvariate(math.log(MEAN_S) - _SPREAD**2 / 2, _SPREAD))


def left_s(draw: random.Random) -> float:
    """Of one that is found running: the longer a run, the likelier to be found, anywhere between its ends. Drawn like
    the others, those of the beginning would be gone sooner than new ones replace them."""
    return draw.random() * _clipped(draw.lognormvariate(math.log(MEAN_S) + _SPREAD**2 / 2, _SPREAD))


def _clipped(drawn_s: float) -> float:
    return min(max(drawn_s, 60.0), 6 * MEAN_S)


def spec(draw: random.Random, length_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "command": f"train {length_s:.3f}",
        "code": None,
        "project": _pick(draw, _PROJECTS),
        "priority": _pick(draw, _PRIORITIES),
        "resources": _resources(draw),
    }
    kind = draw.random()
    if kind < 0.02:
        found["command"] = "exit 3"
    elif kind < 0.04:
        found["timeout"] = length_s / 2
    elif kind < 0.06:
        found["preemptible"] = False
    return found


def urgent() -> dict[str, Any]:
    """A large gang of high priority that is soon over."""
    resources = {"nodes": 8, "gpus": 8, "cpus": 8, "memory": "8GB"}
    return {"command": "train 600", "code": None, "project": "vision", "priority": "high", "resources": resources}


def _resources(draw: random.Random) -> dict[str, Any]:
    kind = draw.random()
    if kind < 0.05:
        return {"cpus": 4, "memory": "8GB"}
    if kind < 0.22:
        return {"nodes": _pick(draw, _GANGS), "gpus": 8, "cpus": 8, "memory": "8GB"}
    return {"gpus": _pick(draw, _GPUS), "cpus": 1, "memory": "8GB"}


def _pick(draw: random.Random, weights: dict[Any, int]) -> Any:
    return draw.choices(list(weights), list(weights.values()))[0]
