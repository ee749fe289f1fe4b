"""`job.order`: which samples every step trains on, whoever reads them. A pure function of seed, epoch and position, so
that a run goes on with the very next sample on any number of processes.

    order = job.order(len(dataset), global_batch=256)
    batches = job.loader(DataLoader(dataset, batch_sampler=order))
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from windlass.core.errors import InvalidInput
from windlass.core.plan import Plan
from windlass.job.session import session

_ROUNDS = 8
_WORD = (1 << 64) - 1
_SAME = ("dataset_size", "seed", "shuffle")  # what a position is only true for


class Readers(Protocol):
    """Who reads which part of a batch; a `Parallel` says it for its plan."""

    data_rank: int
    data_world: int
    plan: Plan


def order(
    dataset_size: int,
    global_batch: int,
    seed: int | None = None,
    shuffle: bool = True,
    epochs: int | None = None,
    *,
    parallel: Readers | None = None,
    trace: bool = False,
) -> Order:
    """Batches of sample numbers for this process: its part of every step's `global_batch`.

    Each epoch has every sample once, in an order of its own; a batch may end one epoch and begin the next. `epochs`
    None: without end; what fills no whole batch after the last one is left out. `seed` None: the run's. `parallel`: if
    its plan is more than copies, so that several processes read the same, or parts are cut into microbatches. `trace`:
    keep a hash of what was consumed.
    """
    mine = session()
    if seed is None:
        seed = mine.seed or 0
    reader, readers = (mine.rank, mine.world_size) if parallel is None else (parallel.data_rank, parallel.data_world)
    unit = 1 if parallel is None else parallel.plan.accumulate
    return Order(
        dataset_size, global_batch, seed, shuffle, epochs, reader=reader, readers=readers, unit=unit, trace=trace
    )


class Order:
    """A `batch_sampler`. Its position is what was consumed, not what was drawn in advance: `job.loader` says what it
    has handed out; who reads without it calls `advance` for every batch that was trained on."""

    def __init__(
        self,
        dataset_size: int,
        global_batch: int,
        seed: int,
        shuffle: bool,
        epochs: int | None,
        *,
        reader: int,
        readers: int,
        unit: int = 1,
        trace: bool = False,
    ) -> None:
        """`unit`: every reader's part is a multiple of it."""
        for name, count in (("dataset_size", dataset_size), ("global_batch", global_batch), ("epochs", epochs)):
            if count is not None and count < 1:
                raise InvalidInput(f"{name} is {count}, but must be a whole number from 1")
        _check_parts(global_batch, readers, unit)
        self.dataset_size = dataset_size
        self.global_batch = global_batch
        self.seed = seed
        self.shuffle = shuffle
        self.epochs = epochs
        self.trace: str | None = hashlib.sha256().hexdigest() if trace else None
        self._first, self._count = part_of(global_batch, reader, readers, unit)
        self._readers = readers
        self._position = 0  # samples consumed by all processes together
        self._drawn = False

    @property
    def share(self) -> float:
        """This process's part of every batch: `parallel.step(inputs, targets, share=order.share)`."""
        return self._count / self.global_batch

    @property
    def weight(self) -> float:
        """What this process's mean loss is multiplied with where gradients are averaged over processes, as DDP does:
        the result is then the mean over the whole batch, also of parts that are not equal."""
        return self.share * self._readers

    @property
    def position(self) -> int:
        """Samples that were consumed, of all processes together and all epochs."""
        return self._position

    @property
    def epoch(self) -> int:
        """That of the first sample of the batch that was consumed last."""
        return max(0, self._position - self.global_batch) // self.dataset_size

    def ids_at(self, position: int, count: int) -> list[int]:
        """The samples at these places of the whole sequence."""
        return [self._id(place) for place in range(position, position + count)]

    def __iter__(self) -> Iterator[list[int]]:
        """From the position on; what is drawn is not yet consumed."""
        position = self._position
        while self.epochs is None or position + self.global_batch <= self.epochs * self.dataset_size:
            self._drawn = True
            yield self.ids_at(position + self._first, self._count)
            position += self.global_batch

    def __len__(self) -> int:
        """Steps in all, those that are done included."""
        if self.epochs is None:
            raise TypeError("an order without `epochs` has no end")
        return self.steps_in(self.epochs)

    def steps_in(self, epochs: int) -> int:
        """Whole batches in so many epochs, from the first one on."""
        return epochs * self.dataset_size // self.global_batch

    def advance(self, steps: int = 1) -> None:
        """So many more batches were trained on."""
        for _ in range(steps):
            if self.trace is not None:
                ids = ",".join(map(str, self.ids_at(self._position, self.global_batch)))
                self.trace = hashlib.sha256(f"{self.trace}:{ids}".encode()).hexdigest()
            self._position += self.global_batch

    def state_dict(self) -> dict[str, Any]:
        """The same on all processes."""
        if self._drawn and not self._position:
            raise InvalidInput(
                "batches were drawn from the order and none was said to be consumed; read it through "
                "`job.loader(...)` and give that to `job.checkpoints(loader=...)`, or call `advance()` after each"
            )
        known = {name: getattr(self, name) for name in _SAME}
        return {"position": self._position, "trace": self.trace, **known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in _SAME:
            if state[name] != getattr(self, name):
                raise InvalidInput(
                    f"the position is one in an order with {name} {state[name]}, and this one has {getattr(self, name)}"
                )
        self._position = state["position"]
        self._drawn = False
        if self.trace is not None and state["trace"] is not None:
            self.trace = state["trace"]

    def _id(self, place: int) -> int:
        epoch, index = divmod(place, self.dataset_size)
        return permuted(index, self.dataset_size, self.seed, epoch) if self.shuffle else index


def part_of(batch: int, reader: int, readers: int, unit: int = 1) -> tuple[int, int]:
    """Where a reader's part of a batch begins, and how large it is; the first ones read a unit more where it does not
    come out even."""
    each, over = divmod(batch // unit, readers)
    return (reader * each + min(reader, over)) * unit, (each + (reader < over)) * unit


def _check_parts(batch: int, readers: int, unit: int) -> None:
    if batch % unit:
        below, above = batch // unit * unit, (batch // unit + 1) * unit
        fitting = f"{below} or {above}" if below else str(above)
        raise InvalidInput(f"a batch of {batch} is not divided by accumulate={unit}; {fitting} would be")
    if batch < readers * unit:
        each = "a sample" if unit == 1 else f"{unit} samples, one for each microbatch"
        raise InvalidInput(
            f"a batch of {batch} leaves some of {readers} processes without {each}; "
            f"{readers * unit} and more would do, or {batch // unit} processes and fewer"
        )


def permuted(index: int, size: int, seed: int, epoch: int) -> int:
    """Where `index` of range(size) goes in a random order of it, without having the others in memory.

    A Feistel network over a grid of `rows` × `columns`, hardly larger than `size`: what comes out beyond it goes in
    again until it does not.
    """
    rows = math.isqrt(size - 1) + 1
    columns = -(-size // rows)
    keys = _keys(seed, epoch)
    while True:
        index = _through(index, rows, columns, keys)
        if index < size:
            return index


def _through(index: int, rows: int, columns: int, keys: tuple[int, ...]) -> int:
    column, row = divmod(index, rows)
    for number in range(0, _ROUNDS, 2):
        row = (row + _mixed(column ^ keys[number])) % rows
        column = (column + _mixed(row ^ keys[number + 1])) % columns
    return column * rows + row


def _mixed(word: int) -> int:
    """Every bit of the result depends on every bit of the word."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


@functools.lru_cache(maxsize=4)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    digest = hashlib.blake2b(f"windlass order {seed} {epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(digest[8 * number : 8 * number + 8], "little") for number in range(_ROUNDS))
