"""How far a rank says it is in what it prints: `step 12/100`, `Epoch 3 of 10`, `12/100 [00:05<00:37` of a bar."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple

from .ranks import Rank

_TAIL_BYTES = 4096
_WORDS = rb"(?:step|steps|iter|iters|iteration|batch|update|round|epoch)"
_SAID = re.compile(
    rb"(?i)\b(" + _WORDS + rb")s?\s{0,3}[:=#\[(]?\s{0,6}(\d{1,15})\s{0,3}(?:/|of)\s{0,3}(\d{1,15})(?![\d.])"
    rb"|(?<![\d./])(\d{1,15})/(\d{1,15}) \[\d+:\d\d"
)


class Place(NamedTuple):
    step: int
    total: int
    at: float  # when it was first seen

    @property
    def is_end(self) -> bool:
        return self.step >= self.total


class Printed:
    """What the first rank says, over time. A program has several bars, one after the other (data, training) or one
    within the other (evaluations): the newest is followed once it was the newest in two looks in a row."""

    def __init__(self) -> None:
        self._places: Dict[Tuple[str, bool], Place] = {}  # the newest, by stream and whether it counts epochs
        self._told: Optional[Place] = None
        self._next_total = 0

    def look(self, ranks: Iterable[Rank], now: float) -> Dict[str, Any]:
        """For the sample; nothing where it says nothing, or is not here."""
        for rank in ranks:
            if rank.rank == 0:
                self.read({"out": rank.log.out.tail, "err": rank.log.err.tail}, now)
        return {"printed": self._told._asdict()} if self._told is not None else {}

    def read(self, tails: Mapping[str, bytes], now: float) -> Optional[Place]:
        for stream, tail in tails.items():
            for is_epoch, (step, total) in find_places(tail).items():
                known = self._places.get((stream, is_epoch))
                if known is None or (known.step, known.total) != (step, total):
                    self._places[stream, is_epoch] = Place(step, total, now)
        newest = self._newest()
        if newest is None or self._told is None or newest.total in (self._told.total, self._next_total):
            self._told = newest
        self._next_total = newest.total if newest is not None else 0
        return self._told

    def _newest(self) -> Optional[Place]:
        """Steps before epochs, since one has many of the other, unless those have come to an end: that of data was
        one of other things."""
        steps, epochs = (
            max(
                (place for (_, counts_epochs), place in self._places.items() if counts_epochs is is_epoch),
                key=lambda place: (place.at, not place.is_end),
                default=None,
            )
            for is_epoch in (False, True)
        )
        if steps is not None and epochs is not None and steps.is_end and epochs.at > steps.at:
            return epochs
        return steps or epochs


def find_places(text: bytes) -> Dict[bool, Tuple[int, int]]:
    """Step and total of the newest place that says both, by whether it counts epochs."""
    found: Dict[bool, Tuple[int, int]] = {}
    for match in _SAID.finditer(text[-_TAIL_BYTES:]):
        word, step, total, bar_step, bar_total = match.groups()
        said = (int(step or bar_step), int(total or bar_total))
        least = 1 if word is not None else 2  # a bar of one item, a file that is written, is not the run's
        if least <= said[1] and said[0] <= said[1]:
            found[word is not None and word.lower().startswith(b"epoch")] = said
    return found
