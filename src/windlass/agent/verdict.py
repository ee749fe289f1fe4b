"""Why an attempt ends on a node: `Verdict`. The first cause stands; what follows from it does not replace it."""

from __future__ import annotations

from typing import NamedTuple

from .blame import Candidate


class Verdict(NamedTuple):
    reason: str
    message: str
    exit_code: int | None = None
    signal_number: int | None = None
    rank: int | None = None
    fingerprint: str | None = None
    about_peers: bool = False
    traceback: str | None = None
    trouble: str | None = None

    @classmethod
    def on(cls, found: Candidate) -> Verdict:
        failure = found.failure
        by_signal = failure.signal_number is not None
        return cls(
            failure.reason,
            failure.message,
            None if by_signal else found.exit_code,
            failure.signal_number if by_signal else found.signal_number,
            found.rank,
            failure.fingerprint,
            failure.about_peers,
            failure.traceback,
            failure.trouble,
        )
