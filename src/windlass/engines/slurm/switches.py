"""Where nodes stand in Slurm's tree of switches (`topology/tree`): `parse_switches`, pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_WORD = re.compile(r"(\w+)=(\S*)")
_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")
_BRACKETS = re.compile(r"^([^\[\]]*)\[([^\[\]]*)\](.*)$")


def parse_switches(listing: bytes) -> dict[str, tuple[str, ...]]:
    """The switches above each node, from the widest to the nearest, from `scontrol show topology`; empty where Slurm
    has no tree. Each line names all nodes below a switch, whatever its level. Of several switches of one level that a
    node is connected to, the first counts."""
    by_level: dict[int, dict[str, str]] = {}
    for line in listing.decode(errors="replace").splitlines():
        facts: Mapping[str, str] = dict(_WORD.findall(line))
        if "SwitchName" not in facts or not facts.get("Level", "").isdigit():
            continue
        above = by_level.setdefault(int(facts["Level"]), {})
        for node in expand_names(facts.get("Nodes", "")):
            above.setdefault(node, facts["SwitchName"])
    nodes = {node for above in by_level.values() for node in above}
    levels = [by_level[level] for level in sorted(by_level, reverse=True)]
    return {node: tuple(above[node] for above in levels if node in above) for node in nodes}


def expand_names(text: str) -> Iterator[str]:
    """Slurm's short way to write names: `n[1,08-10],gpu1` is n1, n08, n09, n10 and gpu1. What cannot be read so is a
    name as it is."""
    for word in _split(text):
        yield from _expand(word)


def _split(text: str) -> Iterator[str]:
    """At the commas that are not within brackets."""
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        if word != "(null)":
            yield word


def _expand(word: str) -> Iterator[str]:
    found = _BRACKETS.match(word)
    if found is None:
        yield word
        return
    before, numbers, after = found.groups()
    for part in numbers.split(","):
        bounds = _RANGE.match(part)
        if bounds is None:
            continue
        first, last = bounds[1], bounds[2] or bounds[1]
        for number in range(int(first), int(last) + 1):
            for rest in _expand(after):
                yield f"{before}{number:0{len(first)}d}{rest}"
