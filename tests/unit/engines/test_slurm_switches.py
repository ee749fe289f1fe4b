"""Slurm's tree of switches, from what it says of them to where each node stands."""

from __future__ import annotations

import pytest

from windlass.engines.slurm.switches import expand_names, parse_switches


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1,4]", ["n1", "n4"]),
        ("n[008-010,12],gpu1", ["n008", "n009", "n010", "n12", "gpu1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("rack[1-2]-x", ["rack1-x", "rack2-x"]),
        ("", []),
        ("(null)", []),
        ("n[odd]", []),
    ],
)
def test_names_are_written_short(text: str, names: list[str]) -> None:
    assert list(expand_names(text)) == names


def test_a_node_stands_below_the_switches_that_list_it() -> None:
    listing = b"""\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1,4]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=m1
SwitchName=row1 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
SwitchName=core Level=2 LinkSpeed=1 Nodes=m1,n[1-4] Switches=leaf3,row1
"""
    assert parse_switches(listing) == {
        "n1": ("core", "row1", "leaf1"),
        "n2": ("core", "row1", "leaf2"),
        "n3": ("core", "row1", "leaf2"),
        "n4": ("core", "row1", "leaf1"),
        "m1": ("core", "leaf3"),
    }


def test_one_level_and_none() -> None:
    assert parse_switches(b"SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n") == {"n1": ("s0",), "n2": ("s0",)}
    assert parse_switches(b"") == {}
    assert parse_switches(b"No topology information available\n") == {}
    assert parse_switches(b"BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n") == {}


def test_of_two_switches_of_one_level_the_first_counts() -> None:
    listing = b"SwitchName=a Level=0 Nodes=n[1-2]\nSwitchName=b Level=0 Nodes=n[2-3]\n"
    assert parse_switches(listing) == {"n1": ("a",), "n2": ("a",), "n3": ("b",)}
