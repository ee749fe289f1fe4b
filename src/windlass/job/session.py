"""What a process knows about the run it belongs to, read from its environment."""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from windlass.agent import stacksignal
from windlass.agent.layout import metrics_spool, progress
from windlass.agent.progress import ProgressFile
from windlass.core.manifest import Manifest
from windlass.core.names import nearest
from windlass.core.plan import AUTO, Plan, parse_plan
from windlass.job.alerts import AlertGate
from windlass.job.spool import Alert, Measured, SaveNote, Spool

_LONGEST_NAME = 250
_LONGEST_KIND = 60
_LONGEST_MESSAGE = 2_000
_LATE_STEPS = 4
_STEPS_END = 2**63


class Params(Mapping[str, Any]):
    """The run's params: `params["lr"]`, `params.lr` or `params.get("lr", 3e-4)`. Read only."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        # `_values` itself is asked for while unpickling, before it is there.
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            guess = nearest(name, self._values)
            known = f"did you mean {guess!r}?" if guess else f"known: {', '.join(sorted(self._values)) or 'none'}"
            raise AttributeError(f"the run has no param {name!r}; {known}") from None

    def __repr__(self) -> str:
        return f"Params({self._values!r})"


class Session:
    """One process of a run, or a lone process outside of one (`run_id` is None then)."""

    PUBLIC: ClassVar[frozenset[str]] = frozenset(
        ("params", "plan", "rank", "world_size", "local_rank", "attempt", "run_id", "seed", "is_main", "output_dir")
    )

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.run_id: str | None = environ.get("WINDLASS_RUN_ID") or None
        self.rank: int = _number(environ, "RANK", _number(environ, "WINDLASS_RANK", 0))
        self.world_size: int = _number(environ, "WORLD_SIZE", 1)
        self.local_rank: int = _number(environ, "LOCAL_RANK", 0)
        self.attempt: int = _number(environ, "WINDLASS_ATTEMPT", 1)
        self.seed: int | None = _number(environ, "WINDLASS_SEED", None)
        self.params = Params(_mapping("WINDLASS_PARAMS", environ.get("WINDLASS_PARAMS", "")))
        self._plan = environ.get("WINDLASS_PLAN", "").strip()
        self._checkpoint = environ.get("WINDLASS_CHECKPOINT", "")
        self._model_dir = environ.get("SM_MODEL_DIR")
        self._last: dict[str, float] = {}  # outside a run; in one, the spool knows
        self._names: set[str] = set()
        self._gate = AlertGate()
        folder = environ.get("WINDLASS_NODE_DIR")
        if folder:
            stacksignal.listen()
        self._spool = Spool(os.path.join(folder, metrics_spool(self.rank))) if folder else None
        self._folder = folder
        self._steps = -1  # the newest that was told

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def plan(self) -> Plan | str:
        """How the run wants its model spread: a plan, or "auto"; without one, data parallel over all processes."""
        return AUTO if self._plan == AUTO else parse_plan(self._plan)

    @property
    def wanted_checkpoints(self) -> Mapping[str, Any]:
        """The spec's `checkpoint`: `every` ("10m", or a number of steps), `keep`, `keep_every`, `best`, `best_is`. What
        the spec does not say is not in it."""
        return _mapping("WINDLASS_CHECKPOINT", self._checkpoint)

    @property
    def output_dir(self) -> Path:
        """Where results go: the run's model folder, or `output` in the working folder outside a run. It exists."""
        folder = Path(self._model_dir or "output").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, step: int | None, total: int | None, metrics: dict[str, Any]) -> None:
        """`metrics` is kept: it is the caller's no more. Nothing else of us is in the caches at the end of a step, so
        that what is touched here is what it costs."""
        if not self._names.issuperset(metrics):
            self._names.update(map(_checked, metrics))
        # Here and not in the writer's thread, where nobody would hear of a value that is none; floats are as they are.
        for value in metrics.values():
            if type(value) is not float:
                metrics = {name: _value(name, value) for name, value in metrics.items()}
                break
        steps = None if total is None else _count("total", total)
        if step is not None:
            if type(step) is not int or not 0 <= step < _STEPS_END:
                step = _count("step", step)
            self.stepped(step)
        if self._spool is None:
            self._last.update(metrics)
        else:
            self._spool.add((time.time(), step, steps, metrics))

    def note_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """What we have measured of a save of `step`, maybe long after it, or in a process that does not train: for the
        record only. It tells nobody that a step is finished."""
        if self._spool is not None:
            self._spool.add(Measured(time.time(), step, None, dict(values)))

    def stepped(self, step: int) -> None:
        """Tell the supervisor that `step` is finished; told twice it counts once. Several may tell, and some a little
        later, when a device is through with it."""
        is_known = 0 <= self._steps - step <= _LATE_STEPS
        if not is_known and self._progress is not None:
            self._steps = step
            self._progress.stepped(step)

    def restored(self, step: int, load_s: float) -> None:
        """Tell the supervisor that this process goes on from `step`."""
        self._steps = step
        if self._progress is not None:
            self._progress.restored(step, load_s)

    def finished(self) -> None:
        """Tell the supervisor that no more steps are to come: none is missed while this process evaluates, exports or
        waits for what is still written. Whoever goes on all the same tells the next one."""
        if self._progress is not None:
            self._progress.finished()

    @functools.cached_property
    def _progress(self) -> ProgressFile | None:
        """Made when there is something to tell: a process beside the rank, with its environment, is not to undo what
        the rank has told."""
        try:
            return ProgressFile(os.path.join(self._folder, progress(self.rank))) if self._folder else None
        except OSError:
            return None  # a full disk, say: telling how far we are is not worth the training

    def alert(self, kind: str, message: str, step: int | None = None) -> None:
        if not isinstance(kind, str) or not 0 < len(kind) <= _LONGEST_KIND or not kind.isprintable():
            raise ValueError(f"{kind!r:.80} is no kind of alert: write 1 to {_LONGEST_KIND} printable characters")
        number = None if step is None else _count("step", step)
        held_back = self._gate.let_through(kind, time.monotonic())
        if held_back is None:
            return
        text = str(message)[:_LONGEST_MESSAGE] + (f" (and {held_back} more of this kind before)" if held_back else "")
        if self._spool is None:
            print(f"windlass: {kind}: {text}", file=sys.stderr)
        else:
            self._spool.add(Alert(time.time(), number, kind, text))
            self._spool.flush()  # what is wrong enough to be told may end the process next

    def checkpoint(self, folder: str | Path, manifest: Manifest, *, tier: str = "folder") -> None:
        """Tell the catalogue of a checkpoint that is committed. Told twice it is there once: after a crash, tell it of
        all that are found."""
        said = {
            "folder": _place(folder),
            "tier": tier,
            "created_at": manifest.created_at,
            "size_bytes": manifest.size_bytes,
            "files": len(manifest.files),
            "world_size": manifest.world_size,
            "plan": manifest.plan,
            "format": manifest.format,
            "reason": manifest.reason.value,
            "metrics": {name: value for name, value in manifest.metrics.items() if math.isfinite(value)},
        }
        self._note(manifest.step, said)

    def checkpoint_removed(self, folder: str | Path) -> None:
        self._note(None, {"removed": _place(folder)})

    def checkpoint_corrupt(self, folder: str | Path, why: str) -> None:
        self._note(None, {"corrupt": _place(folder), "why": str(why)[:_LONGEST_MESSAGE]})

    def checkpoints_there(self, root: str | Path, folders: Iterable[str | Path]) -> None:
        """Tell the catalogue that `root` holds these checkpoints and no others."""
        self._note(None, {"root": _place(root), "there": [_place(folder) for folder in folders]})

    def _note(self, step: int | None, said: dict[str, object]) -> None:
        if self._spool is not None:
            self._spool.add(SaveNote(time.time(), step, said))
            self._spool.flush()  # the process may be at its end: it was saved because of that

    def flush(self) -> None:
        if self._spool is not None:
            self._spool.flush()

    def last(self) -> dict[str, float]:
        return dict(self._last) if self._spool is None else self._spool.last()


@functools.cache
def session() -> Session:
    """This process's session. One a process, because the environment it describes is the process's."""
    return Session(os.environ)


def _number(environ: Mapping[str, str], name: str, default: Any) -> Any:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment variable {name} is {text!r}, but must be a whole number") from None


def _mapping(variable: str, text: str) -> Mapping[str, Any]:
    if not text.strip():
        return {}
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{variable} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{variable} must be a JSON object, not {type(values).__name__}")
    return values


def _place(folder: str | Path) -> str:
    """As whoever reads the catalogue finds it: a whole path, or the address of an object store."""
    text = os.fspath(folder)
    return text if "://" in text else os.path.abspath(text)


def _checked(name: str) -> str:
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(f"{name[:60]!r} is no metric name: write 1 to {_LONGEST_NAME} printable characters")
    return name


def _value(name: str, value: Any) -> float:
    try:
        item = getattr(value, "item", None)  # a tensor's own way: torch warns of float() where it has a gradient
        return float(value if item is None else item())
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several elements
        shown = f"{type(value).__name__} ({error})"
        raise TypeError(f"metric {name!r} must be a number, not {shown}") from error


def _count(what: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = int(value) if float(value).is_integer() else -1
    if not 0 <= number < _STEPS_END:
        raise ValueError(f"`{what}` is {value!r}, but must be a whole number from 0")
    return number
