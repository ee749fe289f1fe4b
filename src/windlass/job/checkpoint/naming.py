"""What the name of a file says of the step that it was saved at. Pure."""

from __future__ import annotations

import os
import re

_MOST_STEPS = 10**12
_WHOLE = r"[=_.: -]?(\d+)(?!\d|\.\d)"
_STEP = re.compile(rf"steps?{_WHOLE}", re.IGNORECASE)
_EPOCH = re.compile(rf"(?:epoch|(?<![a-z])ep)s?{_WHOLE}", re.IGNORECASE)
# Numbers that are of something else: what was measured, with a point or without, and which model it is, and how large.
_NO_STEP = re.compile(
    r"""
    (?: [a-z]*(?:loss|accuracy|score|error|metric)
      | (?<![a-z])(?:acc|val|valid|lr|auc|err|f1|top[15]|mae|mse|rmse|ppl|bleu|wer|cer|iou|map|psnr|ssim|dice)
    ) (?:[=_.:@ -]*(?:0_\d+|\d+(?:\.\d+)?(?:e[+-]?\d+)?))?
    | \d+(?:\.\d+)+(?:e[+-]?\d+)? | \d+e[+-]\d+
    | (?<![a-z])(?:v|ver(?:sion)?[=_.-]?)\d+
    | (?:\d+x)?\d+[bm](?![a-z\d])
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NUMBER = re.compile(r"\d+")


def step_in(name: str) -> int | None:
    """What follows `step`, else what follows `epoch`; else the last number that can be a step."""
    if (named := _STEP.search(name) or _EPOCH.search(name)) is not None:
        number = int(named[1])
    elif numbers := _NUMBER.findall(_NO_STEP.sub(" ", _stem(name))):
        number = int(numbers[-1])
    else:
        return None
    return number if number < _MOST_STEPS else None


def is_named(name: str) -> bool:
    """It says `step` or `epoch`. Any other number may be something else, and need not rise."""
    return _STEP.search(name) is not None or is_epoch(name)


def is_epoch(name: str) -> bool:
    """Its number is that of an epoch, which is no step of `job.log`."""
    return _STEP.search(name) is None and _EPOCH.search(name) is not None


def numbers_in(name: str) -> tuple[str, ...]:
    """All of them: names that tell no step are of different checkpoints if these differ."""
    return tuple(_NUMBER.findall(_stem(name)))


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]
