"""`job.Trainer`: the training loop for those who do not want to write it, made of nothing but the public helpers.

job.Trainer(steps=1000, schedule=lambda step: min(1.0, (step + 1) / 100)).fit(
    model, batches, loss=cross_entropy, optimizer=torch.optim.AdamW, lr=3e-4)
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from windlass.core.errors import InvalidInput
from windlass.core.plan import Plan
from windlass.job.accounting.meter import Steps, steps
from windlass.job.checkpoint.checkpoints import Checkpoints
from windlass.job.checkpoint.checkpoints import checkpoints as keep_checkpoints
from windlass.job.ordering import Order
from windlass.job.parallel.optimizer import Optimizer
from windlass.job.parallel.optimizer import optimizer as make_optimizer
from windlass.job.parallel.parallelize import Parallel, cross_entropy, parallelize
from windlass.job.passing import Passing, drawn_from, has_lasting_workers, one_more
from windlass.job.prefetch import Loader, PositionedLoader, loader, order_of
from windlass.job.session import session

# (inputs, targets) of this process; or what makes them once it is known which part of the batch this process reads
# (`parallel.data_rank` of `parallel.data_world`).
Batches: TypeAlias = Iterable[tuple[Any, Any]]
Data: TypeAlias = Batches | Callable[[Parallel], Batches]


@dataclass(slots=True, kw_only=True)
class Fit:
    """One call of `fit` as it goes on; callbacks read it, and may set `stopping`."""

    parallel: Parallel
    optimizer: Optimizer
    total: int | None
    step: int = 0  # steps done; a callback that restores an earlier state sets it in `started`
    epoch: int = 0
    loss: Tensor | None = None  # of the last step, on the device
    evaluation: dict[str, float] = field(default_factory=dict)  # what the last evaluation found
    meter: Steps | None = None
    share: float | None = None  # this process's part of every batch, if the data is read by `job.order`
    checkpoints: Checkpoints | None = None
    stopping: bool = False
    began: bytes | None = None  # the random generators as the epoch began, if the data has no position
    before: tuple[bytes, ...] = ()  # as those before it began, if its workers outlive an epoch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "began": self.began, "before": self.before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch = state["epoch"]

    def load_of_reader(self, state: Mapping[str, Any] | None) -> None:
        self.began = None if state is None else state.get("began")
        self.before = () if state is None else state.get("before", ())


class Callback:
    """What happens beside the steps. Every method is called on all processes; each does nothing unless overridden."""

    def started(self, fit: Fit) -> None: ...

    def stepped(self, fit: Fit) -> None: ...

    def evaluated(self, fit: Fit) -> None: ...

    def ended(self, fit: Fit) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    steps: int | None = None  # how long: so many steps, or
    epochs: int | None = None  # so many times the data; neither: once
    plan: Plan | str | Mapping[str, Any] | None = None  # None: the run's own
    batch: int | None = (
        None  # samples of a step, of all processes, in equal parts: `auto` chooses a plan that cuts it so
    )
    schedule: Callable[[int], float] | None = None  # of the steps done: what the learning rates are multiplied with
    evaluate_every: int | None = None  # steps; None: after the last one only
    tokens_per_step: int | None = None  # of all processes, for the figures
    samples_per_step: int | None = None  # None: `batch`
    log_every: int | None = None
    prefetch: int | None = None  # as of `job.loader`
    # How often ("10m", 500 steps), or arguments of `job.checkpoints`, {} for as the spec says. None: nothing is saved.
    checkpoints: int | float | str | Mapping[str, Any] | None = None
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "batch", "evaluate_every", "log_every"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidInput(f"{name} of the Trainer is {value!r}, but must be a whole number from 1, or None")
        if self.steps is not None and self.epochs is not None:
            raise InvalidInput(
                f"the Trainer has steps={self.steps} and epochs={self.epochs}; options: one of them, or neither for "
                "one epoch"
            )

    def fit(
        self,
        model: nn.Module,
        data: Data,
        *,
        loss: Callable[[Any, Any], Tensor] = cross_entropy,
        optimizer: type[torch.optim.Optimizer] | Callable[[Parallel], Optimizer] = torch.optim.AdamW,
        evaluation: Data | None = None,
        **options: Any,
    ) -> Fit:
        """Train `model`; `options` are the optimizer's. Every process calls it, with data of its own.

        `optimizer` may also be a function that calls `job.optimizer` itself. All processes must have the same number of
        batches. An iterator serves one epoch; a list, a DataLoader or a function of `parallel` any number.
        """
        parallel = parallelize(model, self.plan, loss=loss, batch=self.batch)
        if isinstance(optimizer, type):
            kind, optimizer = optimizer, lambda parallel: make_optimizer(parallel, kind, **options)
        chosen = optimizer(parallel)
        rates = [group["lr"] for group in chosen.param_groups]  # a checkpoint has those that the schedule had made
        batches, held_out = _made(data, parallel), _made(evaluation, parallel)
        _check_ends(held_out)
        order = order_of(batches)
        share = None if order is None else order.share
        fit = Fit(parallel=parallel, optimizer=chosen, total=self._total(batches, order), share=share)
        feed = loader(batches, parallel.device, self.prefetch)
        with self._checkpoints(fit, feed):
            self._tell("started", fit)
            if order is not None and not order.position:
                order.advance(fit.step)
            fit.meter = steps(
                parallel,
                total=fit.total,
                first=fit.step,
                tokens_per_step=self.tokens_per_step,
                samples_per_step=self.samples_per_step or self.batch,
                every=self.log_every,
            )
            with fit.meter:
                for inputs, targets in self._batches(fit, feed, order):
                    self._step(fit, rates, inputs, targets)
                    if held_out is not None and self._evaluates(fit):
                        self._evaluate(fit, held_out)
                    if fit.checkpoints is not None:
                        fit.checkpoints.step(fit.step, epoch=fit.epoch)
                    if fit.stopping:
                        break
        session().finished()
        if held_out is not None and not self._evaluates(fit):
            self._evaluate(fit, held_out)
        self._tell("ended", fit)
        return fit

    @contextlib.contextmanager
    def _checkpoints(self, fit: Fit, feed: Loader[Any]) -> Iterator[None]:
        if self.checkpoints is None:
            yield
            return
        wanted = self.checkpoints
        # Nobody but the optimizer changes parameters in this loop; hooks that do are noticed.
        options: dict[str, Any] = {"overlap": True, **(wanted if isinstance(wanted, Mapping) else {"every": wanted})}
        position = feed if isinstance(feed, PositionedLoader) else None
        options["others"] = {"fit": fit, **options.get("others", {})}
        kept = keep_checkpoints(model=fit.parallel, optimizer=fit.optimizer, loader=position, **options)
        with kept as fit.checkpoints:
            fit.step = kept.first_step
            yield

    def _step(self, fit: Fit, rates: Sequence[float], inputs: Any, targets: Any) -> None:
        assert fit.meter is not None
        factor = self.schedule(fit.step) if self.schedule else 1.0
        for group, rate in zip(fit.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        fit.loss = fit.parallel.step(inputs, targets, share=fit.share)
        report = fit.optimizer.step()
        fit.optimizer.zero_grad()
        fit.step = fit.meter.done(fit.loss, report, lr=rates[0] * factor)
        self._tell("stepped", fit)

    def _evaluate(self, fit: Fit, held_out: Batches) -> None:
        assert fit.meter is not None
        with fit.meter.pause():
            # From its beginning each time: no position is kept of it.
            source = held_out.source if isinstance(held_out, Loader) else held_out
            feed = Loader(source, fit.parallel.device, self.prefetch)
            found = [fit.parallel.evaluate_counted(*batch) for batch in feed]
            if not found:
                raise ValueError("the evaluation data has no batches")
            losses, counts = (torch.stack(column) for column in zip(*found, strict=True))
            fit.evaluation = {"eval_loss": float((losses * counts).sum() / counts.sum())}
            self._tell("evaluated", fit)  # may add to it
            if session().is_main:
                session().log(fit.step, fit.total, dict(fit.evaluation))

    def _evaluates(self, fit: Fit) -> bool:
        return self.evaluate_every is not None and fit.step % self.evaluate_every == 0

    def _batches(self, fit: Fit, feed: Loader[Any], order: Order | None) -> Iterator[tuple[Any, Any]]:
        """As many as there are steps left."""
        if fit.total is not None and fit.step >= fit.total:
            return iter(())
        return self._by_epochs(fit, feed) if order is None else _by_order(fit, feed, order)

    def _by_epochs(self, fit: Fit, feed: Loader[Any]) -> Iterator[tuple[Any, Any]]:
        """Epoch after epoch. Data that knows its position goes on from there; of other data the batches of steps that
        are done are passed over, drawn as they were."""
        restored = fit.checkpoints is not None and fit.checkpoints.resumed_from is not None
        goes_on = isinstance(feed, PositionedLoader) and restored
        passed = fit.step if goes_on else 0
        first = fit.epoch if goes_on else 0
        is_lasting = has_lasting_workers(feed.source)
        passes = restored and not goes_on
        passing = Passing(fit.epoch, fit.began, fit.before, is_lasting=is_lasting) if passes else None
        fit.before = ()
        for fit.epoch in itertools.count(first) if self.steps is not None else range(first, self.epochs or 1):
            before = passed
            if passing is not None:
                passing.begins(fit.epoch)
            _begin_epoch(feed.source, fit.epoch)
            if is_lasting and fit.epoch > first:
                fit.before = one_more(fit.before, fit.began)
            fit.began = None if goes_on else drawn_from()
            for batch in feed:
                passed += 1
                if passed > fit.step:
                    yield batch
                elif passed == fit.step and passing is not None:
                    passing.is_over(passed, fit.began)
                if passed == fit.total:
                    return
            if passed == before and not (goes_on and fit.epoch == first):  # it may have ended with its epoch
                raise ValueError(
                    f"epoch {fit.epoch + 1} has no batches, after {passed} steps; an iterator can be read once: "
                    "give a list, a DataLoader or a function that makes them"
                )

    def _total(self, batches: Batches, order: Order | None) -> int | None:
        if order is not None:
            return self._total_of(order)
        if self.steps is not None:
            return self.steps
        try:
            return len(batches) * (self.epochs or 1)  # type: ignore[arg-type]
        except TypeError:
            return None  # nobody knows before it is over

    def _total_of(self, order: Order) -> int:
        """An order goes through all its epochs at once, and most have no end of their own."""
        whole = None if order.epochs is None else len(order)
        wanted = self.steps
        if wanted is None:
            wanted = whole if whole is not None and self.epochs is None else order.steps_in(self.epochs or 1)
        total = wanted if whole is None else min(wanted, whole)
        said = f"{order.dataset_size} samples, {order.global_batch} in a step"
        if not total:
            raise InvalidInput(
                f"the data has no whole batch: {said}, epochs={self.epochs or order.epochs or 1}; options: a batch of "
                f"{order.dataset_size} at most, or more epochs"
            )
        if self.steps is not None and total < self.steps:
            raise InvalidInput(
                f"the Trainer has steps={self.steps}, and its data ends after {total}: {said}, epochs={order.epochs} "
                f"in job.order; options: steps={total}, or job.order without epochs"
            )
        return total

    def _tell(self, what: str, fit: Fit) -> None:
        for callback in self.callbacks:
            getattr(callback, what)(fit)


def _by_order(fit: Fit, feed: Loader[Any], order: Order) -> Iterator[tuple[Any, Any]]:
    """From the order's position on, whose epochs are not the loader's passes."""
    for batch in feed:
        fit.epoch = order.epoch
        yield batch
        if fit.step == fit.total:
            return


def _check_ends(held_out: Any) -> None:
    order = order_of(held_out)
    if order is not None and order.epochs is None:
        raise InvalidInput(
            f"the evaluation data is read by an order of {order.dataset_size} samples without an end; options: "
            "job.order(..., epochs=1), or data that is read by no order"
        )


def _begin_epoch(batches: Any, epoch: int) -> None:
    """Tell samplers whose order is another one in each epoch, as torch's DistributedSampler's is."""
    by_batch = getattr(batches, "batch_sampler", None)
    told: list[Any] = []
    for sampler in (getattr(batches, "sampler", None), by_batch, getattr(by_batch, "sampler", None)):
        tell = getattr(sampler, "set_epoch", None)
        if callable(tell) and not any(sampler is one for one in told):
            tell(epoch)
            told.append(sampler)


def _made(data: Any, parallel: Parallel) -> Any:
    return data(parallel) if callable(data) else data
