"""How far a rank says it is in what it prints: `step 12/100`, `Epoch 3 of 10`, `12/100 [00:05<00:37` of a bar."""

from __future__ import annotations

import re
from typing import Any, Iterable

from .ranks import Rank

_TAIL_BYTES = 4096
_WORDS = rb"(?:step|steps|iter|iters|iteration|batch|update|round|epoch)"
_SAID = re.compile(
    rb"(?i)\b(" + _WORDS + rb")s?\s{0,3}[:=#\[(]?\s{0,6}(\d{1,15})\s{0,3}(?:/|of)\s{0,3}(\d{1,15})(?![\d.])"
    rb"|(?<![\d./])(\d{1,15})/(\d{1,15}) \[\d+:\d\d"
)


def tell(ranks: Iterable[Rank], now: float) -> dict[str, Any]:
    """Of the first rank, for the sample; nothing where it says nothing, or is not here."""
    logs = [rank.log for rank in ranks if rank.rank == 0]
    said = find_progress(*(stream.tail for log in logs for stream in (log.out, log.err)))
    return {} if said is None else {"printed": {"step": said[0], "total": said[1], "at": now}}


def find_progress(*texts: bytes) -> tuple[int, int] | None:
    """Step and total of the newest place that says both; steps before epochs, since one has many of the other."""
    found: dict[bool, tuple[int, int]] = {}
    for text in texts:
        for match in _SAID.finditer(text[-_TAIL_BYTES:]):
            word, step, total, bar_step, bar_total = match.groups()
            said = (int(step or bar_step), int(total or bar_total))
            if said[1] > 0 and said[0] <= said[1]:
                found[word is not None and word.lower().startswith(b"epoch")] = said
    return found.get(False, found.get(True))
