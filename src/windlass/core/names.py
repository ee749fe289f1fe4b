"""The nearest right name for a wrong one, said the same way everywhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_SHOWN = 20


def nearest(wrong: str, known: Iterable[str]) -> str | None:
    matches = difflib.get_close_matches(wrong.lower(), [name for name in known if name], n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown(kind: str, wrong: str, known: Iterable[str]) -> str:
    """`unknown engine 'slrum'; did you mean 'slurm'? known: local, ray, slurm`."""
    options = sorted(known)
    guess = nearest(wrong, options)
    suggestion = f"; did you mean '{guess}'?" if guess else ";"
    return f"unknown {kind} '{wrong}'{suggestion} known: {listed(options)}"


def missing(what: str, wrong: str, known: Iterable[str]) -> str:
    """`there is no project 'visoin'; did you mean 'vision'?`, else those that there are."""
    options = sorted(known)
    if guess := nearest(wrong, options):
        return f"{what} '{wrong}'; did you mean '{guess}'?"
    return f"{what} '{wrong}'" + (f"; there are {listed(options)}" if options else "")


def listed(options: list[str]) -> str:
    """As many as anybody reads."""
    more = len(options) - _MOST_SHOWN
    shown = ", ".join(options[:_MOST_SHOWN])
    return f"{shown} and {more:,} more" if more > 1 else ", ".join(options)


def metric_place(name: str) -> tuple[bool, str]:
    """For sorting, where only some metrics are shown: losses first."""
    return name.rsplit("/", 1)[-1] != "loss", name
