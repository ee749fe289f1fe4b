"""`job.steps`: counts the steps of a training loop and logs what they cost, without waiting for the device.

steps = job.steps(parallel, tokens_per_step=2**19, total=1000)
for inputs, targets in job.loader(batches):
    loss = parallel.step(inputs, targets)
    steps.done(loss, optimizer.step(), lr=lr)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from windlass.core.plan import OnNan, Plan, Precision, parse_plan
from windlass.job.accounting.anomaly import Finding, decide_stop
from windlass.job.accounting.backlog import Backlog, Judged, Pending
from windlass.job.accounting.clock import Clock, clock_of
from windlass.job.accounting.communication import Sampler
from windlass.job.accounting.health import EXPLODE, Health
from windlass.job.accounting.waiting import Waiting, waiting
from windlass.job.accounting.window import LEAST_WINDOW_S, Window, Work, decide_every, metrics_of
from windlass.job.flops import flops_per_token_of, peak_flops
from windlass.job.prefetch import own_device
from windlass.job.session import session

_WARM_UP = 3  # steps before the first window: compilers and allocators are at work
PEAK_EVERY_S = 5.0
_LONGEST_S = 3 * LEAST_WINDOW_S  # that a value waits to be judged: longer than it is from one log to the next, mostly


@dataclass(slots=True, kw_only=True)
class _Step:
    """One that is over for the host, and perhaps not yet for the device."""

    number: int
    mark: Any
    values: dict[str, Tensor | float]  # loss, grad_norm, loss_scale, and what is logged with them
    scaled: bool
    logged: bool
    data_wait_s: float  # all of the loop so far
    pauses: list[tuple[Any, Any]]
    waited: Pending | None  # the steps before it that are read with it, and then itself as well


class Steps:
    def __init__(
        self,
        *,
        clock: Clock,
        work: Work,
        health: Health,
        sampler: Sampler | None,
        waits: Waiting,
        total: int | None,
        first: int,
        every: int | None,
        average: bool,
        log: Callable[[int, int | None, dict[str, float]], None] | None,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        self.number = first  # of the last step that is done
        self._clock, self._work, self._health = clock, work, health
        health.done, health.is_metered = first, True
        self._sampler, self._waits = sampler, waits
        self._total, self._every, self._fixed = total, every or 1, every is not None
        self._average, self._log, self._tell = average, log, tell
        self._unread: deque[_Step] = deque()
        self._pauses: list[tuple[Any, Any]] = []
        self._paused_wait_s = 0.0
        self._window_from: _Step | None = None  # the step before the window's first
        self._window_paused_s = 0.0
        self._first = self._told = first
        # Who goes on whatever the values are can look at many of them together.
        self._can_wait = health.policy is not OnNan.STOP and sampler is None and not average
        self._is_ahead = False  # of the device, which has then enough to do
        self._backlog = Backlog(clock)
        self._read_at = 0.0
        self._peak: tuple[float, int] | None = None  # when it was asked for, and what it was

    def done(self, loss: Tensor | float | None = None, report: Any = None, /, **metrics: Any) -> int:
        """The step is over: its loss, what the optimizer's `step` returned, and what else to log. Its number, from 1.

        Every process says so for every step. Numbers are read up to two steps later; then a loss or gradient that is
        no number is noticed, and under `on_nan: stop` SickStep is raised here, on all processes in the same step. One
        process alone that is to go on reads them with those of the next step that is logged, or that ends 1.5 s later,
        if it waits for the device anyway. Tensors that are changed in place meanwhile are not judged.
        """
        self.number += 1
        self._health.done = self.number
        logged = self.number % self._every == 0 or self.number == self._total
        grad_norm, scale = report, None
        if report is not None and not isinstance(report, Tensor | float):
            grad_norm, scale = getattr(report, "grad_norm", report), getattr(report, "loss_scale", None)
        # A host that is ahead costs the device nothing, and must not be more than two steps ahead: it marks every step.
        waits = self._can_wait and self._window_from is not None and not self._is_ahead
        if waits:
            waits = self._can_wait = self._backlog.add(self.number, loss, grad_norm, scaled=scale is not None)
        if waits:
            # Now and not all at once at the next log, which would look like steps without duration and then a long one.
            # The device is not far behind: if it hangs, the host stops in the loop itself, or at the next step that is
            # read, a second or two later. Among several processes, whoever tells later than others would be taken for
            # the one that they wait for: but there the first has a sampler, and others no window, so that none waits.
            self._tell_of(self.number)
        if not waits or logged or self._backlog.is_due or time.perf_counter() - self._read_at > _LONGEST_S:
            values = {} if waits else self._judged(loss, grad_norm)
            if logged and self._log is not None:
                values |= {name: self._clock.capture(value) for name, value in metrics.items()}
                if scale is not None:
                    values["loss_scale"] = self._clock.capture(scale)
            self._mark(values, scaled=scale is not None, logged=logged)
        if self._unread:
            self._read_reached(self.number if self.number == self._total else self.number - self._clock.lag)
        return self.number

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What happens inside (an evaluation, a save) is no part of the steps' time."""
        began = self._clock.mark()
        waited_s = self._waits.total_s()
        try:
            yield
        finally:
            self._pauses.append((began, self._clock.mark()))
            self._paused_wait_s += self._waits.total_s() - waited_s

    def close(self) -> None:
        """Reads what the device has not finished yet. Happens by itself after `total` steps."""
        if self._sampler is not None:
            self._sampler.give_up()
        self._read_reached(self.number)
        if self._backlog:
            waited = self._backlog.capture()
            self._clock.settle(self._clock.mark())
            for one in waited.read():
                self._judge(one)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()

    def _mark(self, values: dict[str, Tensor | float], *, scaled: bool, logged: bool) -> None:
        """The step that is over is to be read, and what waits with it."""
        waited = None
        if self._backlog:
            waited = self._backlog.capture()
            self._can_wait = self._can_wait and self._backlog.can_keep
            self._read_at = time.perf_counter()
        step = _Step(
            number=self.number,
            mark=self._clock.mark(),
            values=values,
            scaled=scaled,
            logged=logged,
            data_wait_s=self._waits.total_s() - self._paused_wait_s,
            pauses=self._pauses,
            waited=waited,
        )
        self._pauses = []
        self._unread.append(step)
        if self._sampler is not None:
            self._sampler.step_ended(self.number - self._first)

    def _judged(self, loss: Tensor | float | None, grad_norm: Any) -> dict[str, Tensor | float]:
        """The values that every step is judged by, captured."""
        given = {name: value for name, value in (("loss", loss), ("grad_norm", grad_norm)) if value is not None}
        if self._average and given:
            # Processes that stop together must have seen the same: a mean, which one value that is no number spoils.
            means = torch.stack([torch.as_tensor(value, dtype=torch.float32).detach() for value in given.values()])
            dist.all_reduce(means)
            given = dict(zip(given, means / dist.get_world_size(), strict=True))
        return {name: self._clock.capture(value) for name, value in given.items()}

    def _read_reached(self, number: int) -> None:
        """The steps up to this one."""
        while self._unread and self._unread[0].number <= number:
            self._read(self._unread.popleft())

    def _read(self, step: _Step) -> None:
        self._is_ahead = not self._clock.settle(step.mark)
        self._tell_of(step.number)
        values = {name: float(value) for name, value in step.values.items()}
        waited = [] if step.waited is None else step.waited.read()
        if waited and waited[-1].number == step.number:
            last = waited.pop()
            own = {"loss": last.loss, "grad_norm": last.grad_norm}
            values = {name: value for name, value in own.items() if value is not None} | values
        else:
            last = Judged(step.number, values.get("loss"), values.get("grad_norm"), step.scaled)
        for one in waited:
            self._judge(one)
        finding = self._judge(last)
        if finding is not None and (error := decide_stop(finding, self._health.policy)):
            if self._log is not None:
                self._log(step.number, self._total, values)
            raise error
        self._account(step, values)

    def _tell_of(self, number: int) -> None:
        if self._tell is not None and number > self._told:
            self._told = number
            self._tell(number)

    def _judge(self, one: Judged) -> Finding | None:
        return self._health.judge(one.number, loss=one.loss, grad_norm=one.grad_norm, scaled=one.scaled)

    def _account(self, step: _Step, values: dict[str, float]) -> None:
        if self._log is None:
            return
        self._window_paused_s += sum(self._clock.between_s(*pause) for pause in step.pauses)
        begin = self._window_from
        if begin is None:
            if step.number - self._first >= _WARM_UP:
                self._start_window(step)
        elif step.logged:
            values |= self._window_metrics(begin, step)
            self._start_window(step)
        if step.logged:
            self._log(step.number, self._total, values)

    def _window_metrics(self, begin: _Step, end: _Step) -> dict[str, float]:
        window = Window(
            steps=end.number - begin.number,
            seconds=max(0.0, self._clock.between_s(begin.mark, end.mark) - self._window_paused_s),
            data_wait_s=end.data_wait_s - begin.data_wait_s,
            shares=self._sampler.shares if self._sampler is not None else None,
            communicates=self._sampler is not None,
            peak_memory_bytes=self._peak_bytes(is_last=end.number == self._total),
        )
        if not self._fixed:
            # Larger only: a slow step now and then is no reason to log more often.
            self._every = max(self._every, decide_every(window.seconds / window.steps))
        return metrics_of(window, self._work)

    def _peak_bytes(self, *, is_last: bool) -> int:
        """It grows seldom once all sizes have been seen, and torch collects everything else it knows with it."""
        now = time.perf_counter()
        if is_last or self._peak is None or now - self._peak[0] >= PEAK_EVERY_S:
            self._peak = now, self._clock.peak_memory_bytes()
        return self._peak[1]

    def _start_window(self, step: _Step) -> None:
        self._window_from, self._window_paused_s = step, 0.0
        step.values, step.pauses, step.waited = {}, [], None


def steps(
    model: Any = None,
    *,
    total: int | None = None,
    first: int = 0,
    tokens_per_step: int | None = None,
    samples_per_step: int | None = None,
    flops_per_token: float | None = None,
    flops_per_step: float | None = None,
    every: int | None = None,
    on_nan: OnNan | str | None = None,
    explode: float | None = EXPLODE,
) -> Steps:
    """A meter for the loop that trains `model` (what `job.parallelize` returned, a module, or nothing).

    Tokens and samples are those of all processes together. `first`: steps that are done already, of an earlier attempt.
    `every`: log every so many steps; None: so that it happens about twice a second at most. `on_nan`: None: as the plan
    says. `explode`: so many times the usual gradient norm raises an alert; None: never. Call it on all processes.
    """
    plan: Plan | None = getattr(model, "plan", None)
    device = _device_of(model)
    health = _health_of(model, on_nan, explode)
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    me = session()
    if flops_per_step is None and tokens_per_step is not None:
        flops_per_step = _flops_per_token(model, plan, device, flops_per_token) * tokens_per_step
    peak = peak_flops(device, plan.precision if plan is not None else Precision.BF16)
    return Steps(
        clock=clock_of(device),
        work=Work(
            tokens=tokens_per_step,
            samples=samples_per_step,
            flops=flops_per_step,
            peak_flops=peak * (dist.get_world_size() if several else 1) if peak else None,
        ),
        health=health,
        sampler=Sampler(device) if several and me.is_main else None,
        waits=waiting(),
        total=total,
        first=first,
        every=every,
        average=several and plan is None and health.policy is OnNan.STOP,
        log=me.log if me.is_main else None,
        tell=me.stepped,
    )


def _health_of(model: Any, on_nan: OnNan | str | None, explode: float | None) -> Health:
    """The model's own, which its optimizer asks as well; or one for this loop."""
    policy = None if on_nan is None else parse_plan({"on_nan": on_nan}).on_nan
    health = getattr(model, "health", None)
    if not isinstance(health, Health):
        me = session()
        return Health(policy or OnNan.GO_ON, explode=explode, alert=me.alert, is_main=me.is_main)
    health.policy = policy or health.policy
    health.watch.explode = explode
    return health


def _device_of(model: Any) -> torch.device:
    if isinstance(device := getattr(model, "device", None), torch.device):
        return device
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            return parameter.device
    return own_device()


def _flops_per_token(model: Any, plan: Plan | None, device: torch.device, given: float | None) -> float:
    if given is not None or model is None or device.type != "cuda":
        return given or 0.0  # without a peak to compare with there is nothing to work out
    parts = [model] if isinstance(model, nn.Module) else list(model.parts)
    flops = flops_per_token_of(parts)
    if plan is not None and plan.pipeline > 1:
        # Every process knows its own layers. Those beside it in the other directions know the same.
        all_layers = torch.tensor(flops, device=device, dtype=torch.float64)
        dist.all_reduce(all_layers)
        flops = float(all_layers) * plan.pipeline / dist.get_world_size()
    return flops
