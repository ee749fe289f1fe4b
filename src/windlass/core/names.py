"""The nearest right name for a wrong one, said the same way everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_TOLD = 100  # a run may have ten thousand metrics


def nearest(wrong: str, known: Iterable[str]) -> str | None:
    matches = difflib.get_close_matches(wrong.lower(), [name for name in known if name], n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown(kind: str, wrong: str, known: Iterable[str]) -> str:
    """`unknown engine 'slrum'; did you mean 'slurm'? known: local, ray, slurm`."""
    options = sorted(known)
    guess = nearest(wrong, options)
    suggestion = f"; did you mean '{guess}'?" if guess else ";"
    more = f" and {len(options) - _MOST_TOLD:,} more" if len(options) > _MOST_TOLD else ""
    return f"unknown {kind} '{wrong}'{suggestion} known: {', '.join(options[:_MOST_TOLD])}{more}"


def metric_place(name: str) -> tuple[bool, str]:
    """For sorting, where only some metrics are shown: losses first."""
    return name.rsplit("/", 1)[-1] != "loss", name
