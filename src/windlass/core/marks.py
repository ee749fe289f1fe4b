"""Marks of what was taken from elsewhere: a short fingerprint of every fact, as it was there. Who comes again sees
which facts have changed there since; all others stay as they are here, where somebody may have changed them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

MARK_TAG = "windlass.import.mark"
HERE_TAG = "windlass.import.here"  # for a moment, on the server that is copied to: by it an importer knows it again
_LONGEST = 4_900  # tags of experiments hold 5,000 characters; facts beyond that are taken for changed


def fact(*words: str | int | None) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:10]


def mark_of(facts: Iterable[str]) -> str:
    return " ".join(sorted(set(facts)))[:_LONGEST]


def read_mark(tags: Mapping[str, str]) -> frozenset[str]:
    return frozenset(tags.get(MARK_TAG, "").split())


def tag_facts(tags: Mapping[str, str]) -> set[str]:
    return {fact("tag", key, value) for key, value in unmarked(tags).items()}


def changed_tags(there: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Those that are new or have changed there since `here` was marked. Without a mark, what is here stays."""
    known = read_mark(here)
    return {
        key: value
        for key, value in unmarked(there).items()
        if here.get(key) != value and fact("tag", key, value) not in known and (known or key not in here)
    }


def unmarked(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in tags.items() if key not in (MARK_TAG, HERE_TAG)}
