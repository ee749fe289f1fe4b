"""For scripts inside a run: who am I, what are my params, `log` for metrics and progress, and how a model is spread.

    from windlass import job
    job.log(step, total=1000, loss=loss)

Importing it loads the standard library only; what needs torch loads it on first use. Outside Windlass everything works
with one process, no params and no server.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.names import nearest
from windlass.core.plan import InvalidPlan, ModelShape, Plan
from windlass.job.session import Params, Session, session

# What loads torch, and the module it comes from.
_ON_FIRST_USE: dict[str, str] = {
    "Callback": "windlass.job.trainer",
    "Cut": "windlass.job.parallel.split",
    "Keep": "windlass.job.checkpoint.retention",
    "Parallel": "windlass.job.parallel.parallelize",
    "Process": "windlass.job.process",
    "Split": "windlass.job.parallel.split",
    "Trainer": "windlass.job.trainer",
    "checkpoints": "windlass.job.checkpoint.checkpoints",
    "init": "windlass.job.process",
    "loader": "windlass.job.prefetch",
    "optimizer": "windlass.job.parallel.optimizer",
    "order": "windlass.job.ordering",
    "parallelize": "windlass.job.parallel.parallelize",
    "profile": "windlass.job.accounting.profiling",
    "steps": "windlass.job.accounting.meter",
}

__all__ = [
    "InvalidPlan",
    "ModelShape",
    "Params",
    "Plan",
    "Session",
    "alert",
    "artifact",
    "flush",
    "last",
    "log",
    "session",
    *sorted(_ON_FIRST_USE),
    *sorted(Session.PUBLIC),
]

if TYPE_CHECKING:
    from windlass.job.accounting.meter import steps as steps
    from windlass.job.accounting.profiling import profile as profile
    from windlass.job.checkpoint.checkpoints import checkpoints as checkpoints
    from windlass.job.checkpoint.retention import Keep as Keep
    from windlass.job.ordering import order as order
    from windlass.job.parallel.optimizer import optimizer as optimizer
    from windlass.job.parallel.parallelize import Parallel as Parallel
    from windlass.job.parallel.parallelize import parallelize as parallelize
    from windlass.job.parallel.split import Cut as Cut
    from windlass.job.parallel.split import Split as Split
    from windlass.job.prefetch import loader as loader
    from windlass.job.process import Process as Process
    from windlass.job.process import init as init
    from windlass.job.trainer import Callback as Callback
    from windlass.job.trainer import Trainer as Trainer

    params: Params
    plan: Plan | str
    rank: int
    world_size: int
    local_rank: int
    attempt: int
    run_id: str | None
    seed: int | None
    is_main: bool
    output_dir: Path


def log(step: int | None = None, *, total: int | None = None, **metrics: Any) -> None:
    """Record metrics at `step` of `total` steps. Costs microseconds: a background thread writes them down.

    Values are anything `float()` takes, so a tensor is brought to the CPU here. Raises ValueError for a name that
    is no metric name and TypeError for a value that is no number.
    """
    session().log(step, total, metrics)


def alert(kind: str, message: str, *, step: int | None = None) -> None:
    """Have people know of something, such as `alert("nan", "the loss is no number", step=7)`: it becomes an event of
    the run. Of one kind a few at once and then one a minute; what is held back is counted. Outside a run it is printed.
    """
    session().alert(kind, message, step)


def artifact(path: str | os.PathLike[str], name: str | None = None) -> Path:
    """Have a file or folder kept with the run, as `name`, by default its own: it is copied to `job.output_dir`, all of
    which becomes the run's artifacts when it is over. Outside a run it is copied all the same."""
    from windlass.job.artifacts import artifact as keep

    return keep(path, name)


def flush() -> None:
    """Write down what was logged so far. Happens by itself within a fifth of a second and when the process ends."""
    session().flush()


def last() -> dict[str, float]:
    """The last value of every metric that this process logged."""
    return session().last()


def __getattr__(name: str) -> Any:
    # Read on first use, not at import: a script may set the variables itself before it asks.
    if name in Session.PUBLIC:
        return getattr(session(), name)
    if name in _ON_FIRST_USE:
        return getattr(importlib.import_module(_ON_FIRST_USE[name]), name)
    guess = None if name.startswith("_") else nearest(name, __all__)
    raise AttributeError(
        f"module 'windlass.job' has no attribute {name!r}" + (f"; did you mean {guess!r}?" if guess else "")
    )
