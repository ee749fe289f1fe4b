"""`job.loader`: batches made ready in the background, on the device already when the training loop asks for them.

A thread takes batches from the source, pins them and copies them over on a stream of its own, so that the copy goes on
while the model computes. The source is what makes batches (a DataLoader, a generator); it is not changed. Where it has
a position, the loader has one too: that of the loop, which is behind the source's by what is ready.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from windlass.core.errors import InvalidInput
from windlass.job.accounting.waiting import waiting
from windlass.job.handover import Handover
from windlass.job.ordering import Order
from windlass.job.randomness import random_state, set_random_state
from windlass.job.session import session

Batch = TypeVar("Batch")

_PATIENCE_AT_EXIT_S = 5.0
_PREFETCH = 2
# Of small batches that are made quickly, if nobody said how many: to wake the thread for each costs the loop more.
_PREFETCH_LIGHT = 16
_LIGHT_BYTES = 2 << 20
_MOST_PARTS = 64  # of a light batch: more are not looked at, for the loop waits for the interpreter meanwhile
_WEIGHED_EVERY = 16  # while they are not light


class Loader(Generic[Batch]):
    """Iterable as often as its source is."""

    def __init__(self, source: Iterable[Batch], device: torch.device, prefetch: int | None) -> None:
        self.source = source
        self.device = device
        self.prefetch = prefetch

    def __iter__(self) -> Iterator[Batch]:
        # Here and not in the thread: what a source draws from the global random generator when it is started comes
        # at the same place of the program every time.
        source = self._begun()
        if self.prefetch == 0:
            return self._unhurried(source)
        return Feed(source, self.device, self.prefetch, self._state_of_source)

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]  # its TypeError is the right one

    def _begun(self) -> Iterator[Batch]:
        return iter(self.source)

    def _state_of_source(self) -> Any:
        """Taken after every batch, by whoever took the batch."""
        return None

    def _unhurried(self, source: Iterator[Batch]) -> Iterator[Batch]:
        done = object()
        while True:
            with waiting().measured(self.device):
                batch: Any = next(source, done)
                if batch is done:
                    return
                batch = moved(batch, self.device)
            yield batch


class PositionedLoader(Loader[Batch], ABC):
    """Of a source with a position: `job.checkpoints(loader=...)` takes it."""

    _pass: weakref.ref[Any] | None = None
    _is_resumed = False  # the next pass goes on with one that a checkpoint was made in

    def __iter__(self) -> Iterator[Batch]:
        handing_out = self._noted(super().__iter__())
        self._pass = weakref.ref(handing_out)
        return handing_out

    @abstractmethod
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None:
        current = None if self._pass is None else self._pass()
        if current is not None and current.gi_frame is not None:
            raise InvalidInput(
                "the loader is being read already, from another position; enter `job.checkpoints(...)` before the loop "
                "that reads it begins"
            )
        self._is_resumed = self._go_to(state)

    def _begun(self) -> Iterator[Batch]:
        """A DataLoader draws a random number whenever it is started. Those of a pass that goes on were drawn before the
        checkpoint was made, so what training draws next is what it would have drawn undisturbed."""
        if not self._is_resumed:
            return super()._begun()
        self._is_resumed = False
        before = random_state()
        source = super()._begun()
        set_random_state(before)
        return source

    @abstractmethod
    def _go_to(self, state: Any) -> bool:
        """Whether that is within a pass."""

    @abstractmethod
    def _note(self, state: Any) -> None:
        """A batch is handed out, after which the source had this state."""

    def _noted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._note(batches.state if isinstance(batches, Feed) else self._state_of_source())
            yield batch


class OrderedLoader(PositionedLoader[Batch]):
    """Of a source that reads by an Order, whose position follows what is handed out."""

    def __init__(self, source: Iterable[Batch], device: torch.device, prefetch: int | None, order: Order) -> None:
        super().__init__(source, device, prefetch)
        self.order = order

    def state_dict(self) -> Any:
        return self.order.state_dict()

    def _go_to(self, state: Any) -> bool:
        self.order.load_state_dict(state)
        return self.order.position > 0

    def _note(self, state: Any) -> None:
        del state
        self.order.advance()


class StatefulLoader(PositionedLoader[Batch]):
    """Of a source with a state of its own, such as torchdata's StatefulDataLoader."""

    def __init__(self, source: Iterable[Batch], device: torch.device, prefetch: int | None) -> None:
        super().__init__(source, device, prefetch)
        self._state = self._state_of_source()

    def state_dict(self) -> Any:
        return self._state

    def _go_to(self, state: Any) -> bool:
        self.source.load_state_dict(state)  # type: ignore[attr-defined]
        self._state = state
        return True

    def _note(self, state: Any) -> None:
        self._state = state

    def _state_of_source(self) -> Any:
        return self.source.state_dict()  # type: ignore[attr-defined]


def loader(
    source: Iterable[Batch],
    device: torch.device | str | None = None,
    prefetch: int | None = None,
    *,
    order: Order | None = None,
) -> Loader[Batch]:
    """Batches of `source` on `device` (this process's own if None), `prefetch` of them ready in advance; 0: none; not
    given: 2, and up to 16 of small ones that are made quickly.

    Tensors within tuples, lists and mappings are copied, everything else is passed on. An exception of the source is
    raised where its batch would have come. A source that draws random numbers for every batch needs a generator of its
    own, since it runs at the same time as the model. `order`: what the source reads by, where that cannot be seen from
    it; of a DataLoader it is the `batch_sampler`.
    """
    if prefetch is not None and prefetch < 0:
        raise ValueError(f"prefetch is {prefetch}, but must be a whole number from 0")
    where = torch.device(device) if device is not None else own_device()
    order = order_of(source) if order is None else order
    if isinstance(source, Loader):
        source = source.source  # two that count what they hand out would count it twice
    if order is not None:
        return OrderedLoader(source, where, prefetch, order)
    if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
        return StatefulLoader(source, where, prefetch)
    return Loader(source, where, prefetch)


def order_of(source: Any) -> Order | None:
    """What a source reads by, if it is an Order and can be seen."""
    for one in (source, getattr(source, "batch_sampler", None), getattr(source, "order", None)):
        if isinstance(one, Order):
            return one
    return None


def own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", session().local_rank % torch.cuda.device_count())


class Feed(Iterator[Batch]):
    """One pass over a source. Dropping it (a `break` in the loop) or `close` ends its thread."""

    def __init__(
        self,
        source: Iterator[Batch],
        device: torch.device,
        prefetch: int | None,
        state: Callable[[], Any] = lambda: None,
    ) -> None:
        self.state: Any = None  # the source's, after the batch that came last from here
        self._device = device
        self._ready = Handover(_PREFETCH, _PREFETCH_LIGHT) if prefetch is None else Handover(prefetch)
        copy = _copier(device)
        # The thread knows the queue and the source, not this object: else it would never be dropped.
        self._thread = threading.Thread(
            target=_fill, args=(self._ready, source, device, copy, state), name="windlass-loader", daemon=True
        )
        _at_work[self._thread] = self._ready
        self._thread.start()
        weakref.finalize(self, self._ready.close).atexit = False

    def __next__(self) -> Batch:
        # A GPU is idle for as long as this takes where the loop has read its loss: so what has arrived already is
        # neither measured nor put in the stream's order, which it needs no more.
        item = self._ready.take()
        if item is None or not (item[1] is None or item[1].event.query()):
            item = self._waited_for(item)
        batch, copied, self.state = item
        if copied is not None:
            # Its memory came from the copying stream: not to be used again before this one is done with it.
            stream = torch.cuda.current_stream(self._device)
            for tensor in copied.tensors:
                tensor.record_stream(stream)
        return batch  # type: ignore[no-any-return]

    def _waited_for(self, item: Any) -> Any:
        """The next one if there was none, in the stream's order where it is still being copied."""
        with waiting().measured(self._device):
            if item is None:
                item = self._ready.get()
            if item[1] is not None:
                torch.cuda.current_stream(self._device).wait_event(item[1].event)
        return item

    def close(self, patience_s: float = _PATIENCE_AT_EXIT_S) -> None:
        self._ready.close()
        self._thread.join(patience_s)


def _fill(
    ready: Handover,
    source: Iterator[Any],
    device: torch.device,
    copy: Callable[[Any], tuple[Any, Copied | None]],
    state: Callable[[], Any],
) -> None:
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # of this thread: sources make things on "cuda" too
        began, is_light = time.perf_counter(), False
        for number, batch in enumerate(source):
            item = (*copy(batch), state())
            if is_light or number % _WEIGHED_EVERY == 0:
                is_light = _is_light(batch)
            if not ready.put(item, time.perf_counter() - began, is_light=is_light):
                break
            began = time.perf_counter()
        ready.end(StopIteration())
    except BaseException as error:  # whatever it is, it belongs to the loop that reads
        ready.end(error)
    finally:
        if close := getattr(source, "close", None):
            close()  # a generator's own `finally`, in the thread that it ran in


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    event: Any  # reached when all of it has arrived
    tensors: list[Tensor]  # those that were made for it; others were on the device already


def _copier(device: torch.device) -> Callable[[Any], tuple[Any, Copied | None]]:
    """From a batch to the batch on the device, and what was copied for that; None: nothing was."""
    if device.type != "cuda":
        return lambda batch: (moved(batch, device), None)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(batch: Any) -> tuple[Any, Copied | None]:
        made: list[Tensor] = []
        with torch.cuda.device(device), torch.cuda.stream(stream):
            arrived = moved(batch, device, made)
            if not made:
                return arrived, None
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return arrived, Copied(event=event, tensors=made)

    return copy


def moved(batch: Any, device: torch.device, made: list[Tensor] | None = None) -> Any:
    """The batch with its tensors on the device; to a GPU from pinned memory, so that nobody waits for the copy. Tensors
    that were not there already are added to `made`."""
    if device.type == "cpu":
        return batch  # it is there already: nothing to look for in it
    if isinstance(batch, Tensor):
        if device.type == "cuda" and batch.device.type == "cpu" and batch.layout is torch.strided:
            there = batch.pin_memory().to(device, non_blocking=True)
        else:
            there = batch.to(device)
        if made is not None and there is not batch:
            made.extend(_memory_of(there))
        return there
    if isinstance(batch, Mapping):
        return {key: moved(part, device, made) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device, made) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(part, device, made) for part in batch)
    return batch


def _memory_of(tensor: Tensor) -> list[Tensor]:
    """What of it lies somewhere: of sparse ones nobody can be told who uses them."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def _is_light(batch: Any) -> bool:
    """Few parts of few bytes. What is of no known size may have any."""
    parts, size, looked_at = [batch], 0, 0
    while parts and size <= _LIGHT_BYTES and looked_at <= _MOST_PARTS:
        part = parts.pop()
        looked_at += 1
        if type(part) is Tensor and part.layout is torch.strided:
            size += part.nbytes
        elif isinstance(part, Mapping):
            parts.extend(part.values())
        elif isinstance(part, list | tuple):
            parts.extend(part)
        elif isinstance(part, str | bytes):
            size += len(part)
        elif not (part is None or isinstance(part, int | float)):
            return False
    return not parts and size <= _LIGHT_BYTES


# Threads and not feeds: a thread goes on for a while when its feed is dropped. It is known for as long as it runs.
_at_work: weakref.WeakKeyDictionary[threading.Thread, Handover] = weakref.WeakKeyDictionary()


def _end_all() -> None:
    """A thread that still works with tensors or the device while the interpreter goes away ends the process with a
    crash. The end of a source counts as work: it may be the last that knows the model, which goes away with it."""
    running = [(thread, ready) for thread, ready in list(_at_work.items()) if thread.is_alive()]
    for _, ready in running:
        ready.close()
    deadline = time.monotonic() + _PATIENCE_AT_EXIT_S
    for thread, _ in running:
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_end_all)
