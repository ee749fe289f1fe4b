"""The order of samples: a permutation every epoch, the same sequence whoever reads it, and a position that is kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from windlass import job
from windlass.core.errors import InvalidInput
from windlass.job.ordering import Order, part_of, permuted


def reader_of(number: int, readers: int, *, size: int = 100, batch: int = 12, **options: Any) -> Order:
    settings: dict[str, Any] = {"seed": 7, "shuffle": True, "epochs": None, **options}
    return Order(size, batch, reader=number, readers=readers, **settings)


def steps_of(readers: int, steps: int, **options: Any) -> list[list[int]]:
    """The samples of the first steps, put together from what each reader draws."""
    parts = [itertools.islice(reader_of(number, readers, **options), steps) for number in range(readers)]
    return [list(itertools.chain(*step)) for step in zip(*parts, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1_000, 4_097])
def test_an_epoch_has_every_sample_once(size: int) -> None:
    orders = {tuple(permuted(index, size, seed=3, epoch=epoch) for index in range(size)) for epoch in range(3)}
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert size < 10 or len(orders) == 3


def test_every_permutation_is_as_likely() -> None:
    seen = [tuple(permuted(index, 4, seed=seed, epoch=0) for index in range(4)) for seed in range(4_800)]
    counts = {order: seen.count(order) for order in set(seen)}
    assert len(counts) == 24
    assert max(counts.values()) < 2 * min(counts.values())  # 200 each, give or take 14


def test_it_is_the_same_for_ever() -> None:
    """Runs that go on with a newer version of us have the same order as before."""
    assert reader_of(0, 1).ids_at(0, 12) == [84, 78, 27, 44, 34, 61, 95, 1, 60, 47, 70, 24]
    assert permuted(10**15, 10**18, seed=2**62, epoch=10**6) == 806_604_272_053_015_715


@pytest.mark.parametrize("readers", [2, 3, 4, 5, 12])
def test_the_sequence_does_not_depend_on_who_reads_it(readers: int) -> None:
    assert steps_of(readers, 30) == steps_of(1, 30)  # three epochs and a half


def test_parts_that_are_not_equal_have_their_weight() -> None:
    parts = [part_of(12, number, 5) for number in range(5)]
    assert parts == [(0, 3), (3, 3), (6, 2), (8, 2), (10, 2)]
    orders = [reader_of(number, 5) for number in range(5)]
    assert sum(order.share for order in orders) == pytest.approx(1.0)
    # What averaging gradients over the five makes of a mean loss of 1 on each sample's own place.
    means = [sum(range(first, first + count)) / count for first, count in parts]
    averaged = sum(order.weight * mean for order, mean in zip(orders, means, strict=True)) / 5
    assert averaged == pytest.approx(sum(range(12)) / 12)


def test_more_readers_than_samples_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"a batch of 12 leaves some of 16 processes .* 16 and more would do"):
        reader_of(0, 16)
    with pytest.raises(InvalidInput, match="epochs is 0, but must be a whole number from 1"):
        reader_of(0, 1, epochs=0)


def test_parts_are_cut_into_microbatches() -> None:
    assert [part_of(48, number, 5, unit=4) for number in range(5)] == [(0, 12), (12, 12), (24, 8), (32, 8), (40, 8)]
    with pytest.raises(InvalidInput, match="a batch of 12 is not divided by accumulate=8; 8 or 16 would be"):
        reader_of(0, 1, unit=8)
    with pytest.raises(InvalidInput, match=r"some of 4 processes without 4 samples.* 16 and more .* 3 processes"):
        reader_of(0, 4, unit=4)


def test_epochs_end_it() -> None:
    order = reader_of(0, 1, epochs=2)
    assert len(order) == 16
    assert len(list(order)) == 16  # 200 samples are 16 batches of 12, and 8 are left out
    with pytest.raises(TypeError, match="has no end"):
        len(reader_of(0, 1))


def test_without_shuffling_samples_come_in_turn() -> None:
    assert steps_of(2, 10, shuffle=False)[8] == [96, 97, 98, 99, 0, 1, 2, 3, 4, 5, 6, 7]


def test_readers_come_and_go() -> None:
    """4, 3, 2 and 4 again, each going on from what the ones before had consumed: no sample twice, none left out."""
    state = None
    consumed: list[list[int]] = []
    for readers, steps in [(4, 5), (3, 7), (2, 3), (4, 20)]:
        orders = [reader_of(number, readers, trace=True) for number in range(readers)]
        for order in orders:
            if state is not None:
                order.load_state_dict(state)
        drawn = [iter(order) for order in orders]
        for _ in range(steps):
            consumed.append([sample for one in drawn for sample in next(one)])
            for order in orders:
                order.advance()
        for one in drawn:
            next(one)  # drawn in advance, and lost
        states = [order.state_dict() for order in orders]
        assert all(one == states[0] for one in states)
        state = states[0]
    undisturbed = reader_of(0, 1, trace=True)
    undisturbed.advance(35)
    assert consumed == steps_of(1, 35)
    assert state == undisturbed.state_dict()


def test_the_trace_tells_a_gap_and_a_repeat() -> None:
    orders = [reader_of(0, 1, trace=True) for _ in range(3)]
    good, gap, repeat = orders
    for order in orders:
        order.advance(3)
    gap.load_state_dict({**gap.state_dict(), "position": 48})
    repeat.load_state_dict({**repeat.state_dict(), "position": 24})
    for order in orders:
        order.advance()
    assert len({order.trace for order in orders}) == 3
    assert good.state_dict()["position"] == 48


def test_a_position_in_another_order_is_refused() -> None:
    order = reader_of(0, 1)
    order.advance(2)
    assert order.position == 24
    with pytest.raises(InvalidInput, match="an order with seed 7, and this one has 8"):
        reader_of(0, 1, seed=8).load_state_dict(order.state_dict())
    larger = reader_of(0, 1, batch=24)
    larger.load_state_dict(order.state_dict())  # the place is counted in samples
    assert next(iter(larger)) == order.ids_at(24, 24)


def test_what_was_only_drawn_is_no_position() -> None:
    order = reader_of(0, 1)
    assert order.state_dict()["position"] == 0
    next(iter(order))
    with pytest.raises(InvalidInput, match=r"read it through `job.loader\(...\)`"):
        order.state_dict()


def test_a_run_says_who_reads_and_which_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Parallel:
        data_rank, data_world = 1, 2
        plan = job.Plan(accumulate=3)

    monkeypatch.setattr(
        "windlass.job.ordering.session", lambda: job.Session({"RANK": "3", "WORLD_SIZE": "4", "WINDLASS_SEED": "9"})
    )
    assert next(iter(job.order(100, 12))) == reader_of(3, 4, seed=9).ids_at(9, 3)
    assert next(iter(job.order(100, 12, parallel=Parallel()))) == reader_of(1, 2, seed=9).ids_at(6, 6)
    assert job.order(100, 12, 1).seed == 1


# ---- through a loader ------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(("prefetch", "workers"), [(0, 0), (3, 0), (2, 2)])
def test_what_the_loop_has_got_counts(prefetch: int, workers: int) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    def batches() -> Any:
        order = reader_of(0, 2)
        return job.loader(DataLoader(_Numbers(), batch_sampler=order, num_workers=workers), prefetch=prefetch)  # type: ignore[arg-type]

    first = batches()
    got = [next(feed).tolist() for feed in [iter(first)] for _ in range(3)]
    second = batches()
    second.load_state_dict(first.state_dict())
    got += [batch.tolist() for batch in itertools.islice(second, 3)]
    assert got == [reader_of(0, 2).ids_at(12 * step, 6) for step in range(6)]
    assert first.state_dict()["position"] == 36


@pytest.mark.torch
def test_an_order_that_cannot_be_seen_is_named() -> None:
    pytest.importorskip("torch")
    order = reader_of(0, 1)
    batches: Any = job.loader(([sample] for ids in order for sample in [ids[0]]), prefetch=2, order=order)
    feed = iter(batches)
    next(feed)
    assert batches.state_dict()["position"] == 12
    with pytest.raises(InvalidInput, match="is being read already"):
        batches.load_state_dict(order.state_dict())
    feed.close()
    batches.load_state_dict(order.state_dict())


@pytest.mark.torch
def test_a_loader_of_a_loader_counts_once() -> None:
    pytest.importorskip("torch")
    order = reader_of(0, 1)
    inner: Any = job.loader(order, prefetch=2)
    outer: Any = job.loader(inner, prefetch=3)
    assert list(itertools.islice(outer, 3)) == [order.ids_at(12 * step, 12) for step in range(3)]
    assert inner.state_dict()["position"] == outer.state_dict()["position"] == 36


@pytest.mark.torch
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_source_with_a_state_of_its_own(prefetch: int) -> None:
    pytest.importorskip("torch")

    class Source:
        at = 0

        def __iter__(self) -> Iterator[int]:
            while self.at < 10:
                self.at += 1
                yield self.at

        def state_dict(self) -> int:
            return self.at

        def load_state_dict(self, state: int) -> None:
            self.at = state

    first: Any = job.loader(Source(), prefetch=prefetch)
    assert first.state_dict() == 0
    assert list(itertools.islice(first, 4)) == [1, 2, 3, 4]
    second: Any = job.loader(Source(), prefetch=prefetch)
    second.load_state_dict(first.state_dict())
    assert list(second) == [5, 6, 7, 8, 9, 10]
    assert not hasattr(job.loader([1, 2]), "state_dict")


class _Numbers:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index
