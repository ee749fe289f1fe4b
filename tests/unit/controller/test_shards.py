from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.controller.shards import decide_shards, slots_of
from windlass.core.ids import SLOTS, slot_of


@given(st.integers(1, SLOTS))
def test_shards_cover_every_slot_once(count: int) -> None:
    held = [slots_of({shard}, count) for shard in range(count)]
    assert sum(map(len, held)) == SLOTS
    assert frozenset().union(*held) == frozenset(range(SLOTS))


@given(st.text(max_size=20))
def test_a_run_has_one_slot_for_ever(run_id: str) -> None:
    assert slot_of(run_id) == slot_of(run_id)
    assert 0 <= slot_of(run_id) < SLOTS


def test_known_slots_do_not_change() -> None:
    """They are in databases: another hash would leave live attempts with nobody."""
    assert [slot_of(run_id) for run_id in ("r-bcdfghjkmn", "r-2222222222", "r-zzzzzzzzzz")] == [27, 27, 26]


@given(
    st.integers(1, 12),
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
    st.lists(st.sampled_from("abcdef"), max_size=12),
)
def test_controllers_come_to_equal_parts_whatever_they_begin_with(
    count: int, members: list[str], begin: list[str]
) -> None:
    holders: dict[int, str | None] = dict.fromkeys(range(count))
    holders |= zip(range(count), begin, strict=False)
    members = sorted(members)
    for _ in range(2 * len(members) + 1):
        for me in members:
            mine = {shard for shard, holder in holders.items() if holder == me}
            free = {shard for shard, holder in holders.items() if holder not in members}
            change = decide_shards(count, mine=mine, free=free, me=me, members=members)
            assert change.take <= free
            assert change.release <= mine
            holders |= dict.fromkeys(change.release) | dict.fromkeys(change.take, me)
    parts = [sum(holder == me for holder in holders.values()) for me in members]
    assert sum(parts) == count
    assert max(parts) - min(parts) <= 1


def test_nothing_moves_once_the_parts_are_equal() -> None:
    change = decide_shards(4, mine={1, 3}, free=set(), me="b", members=["a", "b"])
    assert not change.take
    assert not change.release
