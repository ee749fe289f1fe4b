"""What a process knows about the run it belongs to, read from its environment."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from windlass.agent import stacksignal
from windlass.agent.layout import metrics_spool, progress
from windlass.core.manifest import MOST_PARTS, Manifest
from windlass.core.names import nearest
from windlass.core.plan import Plan, plan_of
from windlass.core.wanted import parse_wanted
from windlass.job.alerts import AlertGate
from windlass.job.logbook import Logbook, count_of
from windlass.job.spool import Alert, Measured, PlanNote, SaveNote, Spool

_LONGEST_KIND = 60
_LONGEST_MESSAGE = 2_000


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
        self._checkpoint_dir = environ.get("WINDLASS_CHECKPOINT_DIR")
        self._model_dir = environ.get("SM_MODEL_DIR")
        self._gate = AlertGate()
        folder = environ.get("WINDLASS_NODE_DIR")
        if folder:
            stacksignal.listen()
        self._spool = Spool(os.path.join(folder, metrics_spool(self.rank))) if folder else None
        book = Logbook(self._spool, os.path.join(folder, progress(self.rank)) if folder else None)
        # As they are: a method that only calls another one would be one more to bring into the caches.
        self.log, self.stepped, self.last = book.log, book.stepped, book.last
        self.restored, self.finished = book.restored, book.finished

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def plan(self) -> Plan | str:
        """How the run wants its model spread: a plan, or "auto", alone or with what is not left to the planner, as in
        "auto,clip=1"; without one, data parallel over all processes."""
        wanted = parse_wanted(self._plan)
        return str(wanted) if wanted.auto else plan_of(wanted.named)

    @property
    def wanted_checkpoints(self) -> Mapping[str, Any]:
        """The spec's `checkpoint`: `every` ("10m", or a number of steps), `keep`, `keep_every`, `best`, `best_is`. What
        the spec does not say is not in it."""
        return _mapping("WINDLASS_CHECKPOINT", self._checkpoint)

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run has a place for checkpoints, or its spec speaks of them. A lone process may be started in the
        same folder again, with other settings, and is not to go on from what the last one left there."""
        return bool(self._checkpoint_dir or self._checkpoint)

    @property
    def output_dir(self) -> Path:
        """Where results go: the run's model folder, or `output` in the working folder outside a run. It exists."""
        folder = Path(self._model_dir or "output").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def checkpoint_dir(self) -> Path:
        """Of the run, the same for all its attempts; `checkpoints` in the output folder where none is given."""
        return Path(self._checkpoint_dir or self.output_dir / "checkpoints").absolute()

    def note_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """What we have measured of a save of `step`, maybe long after it, or in a process that does not train: for the
        record only. It tells nobody that a step is finished."""
        if self._spool is not None:
            self._spool.add(Measured(time.time(), step, None, dict(values)))

    def alert(self, kind: str, message: str, step: int | None = None, *, once: bool = False) -> None:
        """`once`: other processes may raise it in the same words, and the record is to have it once."""
        if not isinstance(kind, str) or not 0 < len(kind) <= _LONGEST_KIND or not kind.isprintable():
            raise ValueError(f"{kind!r:.80} is no kind of alert: write 1 to {_LONGEST_KIND} printable characters")
        number = None if step is None else count_of("step", step)
        held_back = self._gate.let_through(kind, time.monotonic())
        if held_back is None:
            return
        text = str(message)[:_LONGEST_MESSAGE] + (f" (and {held_back} more of this kind before)" if held_back else "")
        if self._spool is None:
            print(f"windlass: {kind}: {text}", file=sys.stderr)
        else:
            self._spool.add(Alert(time.time(), number, kind, text, once))
            self._spool.flush()  # what is wrong enough to be told may end the process next

    def alerted_at(self, kind: str) -> float | None:
        """When this process raised an alert of that kind last, by the monotonic clock."""
        return self._gate.last_at(kind)

    def note_plan(self, plan: Plan) -> None:
        """Tell the record by which plan the run trains, where its spec does not say."""
        if self._spool is not None:
            self._spool.add(PlanNote(time.time(), str(plan)))

    def checkpoint(self, folder: str | Path, manifest: Manifest, *, tier: str = "folder") -> None:
        """Tell the catalogue of a checkpoint that is committed. Told twice it is there once: after a crash, tell it of
        all that are found."""
        said: dict[str, object] = {
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
        if len(manifest.files) <= MOST_PARTS:
            said["parts"] = [[file.name, file.size_bytes, file.sha256] for file in manifest.files]
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
