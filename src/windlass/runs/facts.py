"""What is known of a run, from all over the record, for comparing it with others."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from windlass.blobs.contract import Blobs
from windlass.blobs.snapshots import load_files
from windlass.core.errors import NotFound
from windlass.experiments.runstore import load_run as load_tracked
from windlass.experiments.types import NOTE, TrackedRun
from windlass.runs import store
from windlass.runs.comparison import RunFacts, Value
from windlass.runs.records import RunRecord
from windlass.runs.reproduction import Known
from windlass.runs.states import state_of
from windlass.tracking.store import load_summaries
from windlass.tracking.system import without_system
from windlass.wire.comparison import Topic

_LONGEST_FILE_BYTES = 1 << 20  # that is shown as a diff
_OWN_TAGS = "mlflow."  # of the client's own bookkeeping


def load_facts(tx: Connection, blobs: Blobs, run_id: str) -> RunFacts:
    """Raises NotFound. A run that only an MLflow client knows has less to say."""
    run = store.load_run(tx, run_id)
    tracked = load_tracked(tx, run_id)
    topics: dict[Topic, Mapping[str, Value]] = {
        Topic.PARAMS: {pair.key: pair.value for pair in tracked.params},
        Topic.METRICS: _metrics(tx, run_id),
        Topic.DATA: {f"{one.dataset.name}": one.dataset.digest for one in tracked.datasets},
        Topic.TAGS: {pair.key: pair.value for pair in tracked.tags if not pair.key.startswith(_OWN_TAGS)},
    }
    note: dict[str, Value] = {pair.key: pair.value for pair in tracked.tags if pair.key == NOTE}
    written = {"note": note[NOTE]} if note else {}
    if run is None:
        topics[Topic.RUN] = _times(tracked) | written
        return RunFacts(id=run_id, name=tracked.info.name, state=state_of(tracked.info.status), topics=topics)
    topics |= {
        Topic.RUN: _run(run) | written,
        Topic.CODE: _code(run, blobs),
        Topic.ENVIRONMENT: _environment(tx, run),
        Topic.COST: {
            "cost_usd": round(run.cost_usd, 6),
            "gpu_hours": round(run.gpu_hours, 6),
            "cpu_hours": round(run.cpu_hours, 6),
        },
    }
    return RunFacts(id=run_id, name=run.name, state=run.state, project=run.project, topics=topics)


def load_known(tx: Connection, run: RunRecord) -> Known:
    """What running it again goes by."""
    attempts = [attempt for attempt in store.load_attempts(tx, run.id) if attempt.started_at is not None]
    last = attempts[-1] if attempts else None
    environments = store.load_environments(tx, [last.environment_digest if last else None])
    datasets = [(one.dataset.name, one.dataset.digest) for one in load_tracked(tx, run.id).datasets]
    return Known(last.placement if last else None, next(iter(environments.values()), {}), datasets)


def code_files(run: RunRecord, blobs: Blobs) -> dict[str, str | None]:
    """By path the digest of each file of the run's snapshot."""
    if run.code_digest is None:
        return {}
    return {file["path"]: file.get("sha256") or f"-> {file.get('link')}" for file in load_files(blobs, run.code_digest)}


def code_diff(first: RunRecord, second: RunRecord, blobs: Blobs) -> str:
    """A unified diff of the code of two runs, of text files up to a size."""
    old, new = code_files(first, blobs), code_files(second, blobs)
    parts = []
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) != new.get(path):
            before, after = _lines(old.get(path), blobs), _lines(new.get(path), blobs)
            if before is None or after is None:
                parts.append(f"{path} differs (not shown: not text, or over {_LONGEST_FILE_BYTES >> 20} MiB)\n")
            else:
                names = (f"a/{path}" if path in old else "/dev/null", f"b/{path}" if path in new else "/dev/null")
                parts += difflib.unified_diff(before, after, *names)
    return "".join(part if part.endswith("\n") else part + "\n\\ No newline at end of file\n" for part in parts)


def _lines(digest: str | None, blobs: Blobs) -> list[str] | None:
    if digest is None:
        return []
    if digest.startswith("-> "):
        return [digest[3:] + "\n"]
    try:
        data = blobs.get(digest)
        return None if len(data) > _LONGEST_FILE_BYTES else data.decode().splitlines(keepends=True)
    except (NotFound, UnicodeDecodeError):
        return None


def _run(run: RunRecord) -> dict[str, Value]:
    attempts = run.attempt_count
    duration = run.ended_at - run.started_at if run.ended_at and run.started_at else None
    return {
        "duration_s": None if duration is None else round(duration, 3),
        "attempts": attempts,
        "command": " ".join(run.argv),
        "seed": str(run.seed),
        "nodes": run.resources.nodes,
        "gpus": float(run.resources.gpus) if run.resources.gpus else 0,
        "gpu_type": run.resources.gpu_type,
    }


def _times(tracked: TrackedRun) -> dict[str, Value]:
    info = tracked.info
    if info.end_ms is None or info.start_ms is None:
        return {}
    return {"duration_s": (info.end_ms - info.start_ms) / 1000}


def _metrics(tx: Connection, run_id: str) -> dict[str, Value]:
    found = without_system(load_summaries(tx, [run_id]).get(run_id, {}))
    return {name: math.nan if summary.last is None else summary.last for name, summary in found.items()}


def _code(run: RunRecord, blobs: Blobs) -> dict[str, Value]:
    git: Mapping[str, Any] = run.origin.get("git") or {}
    head: dict[str, Value] = {"commit": git.get("commit"), "branch": git.get("branch")}
    try:
        files = code_files(run, blobs)
    except NotFound:
        return head  # it was deleted; the commit is still known
    return head | {path: digest[:12] if digest else None for path, digest in sorted(files.items())}


def _environment(tx: Connection, run: RunRecord) -> dict[str, Value]:
    digests: Sequence[str | None] = [attempt.environment_digest for attempt in store.load_attempts(tx, run.id)[-1:]]
    found = next(iter(store.load_environments(tx, digests).values()), {})
    facts: dict[str, Value] = {
        name: _text(found[name])
        for name in ("python_version", "python", "host", "platform", "cpu_count")
        if found.get(name)
    }
    if gpus := found.get("gpus"):
        facts["gpus"] = ", ".join(str(gpu.get("name", gpu)) if isinstance(gpu, Mapping) else str(gpu) for gpu in gpus)
    return facts | {
        f"package {name}": _text(version) for name, version in sorted((found.get("packages") or {}).items())
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
