"""A run's record in words, as lines of text."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.agent.tracebacks import abridged
from windlass.cli.charts import number, sparkline
from windlass.cli.pane import clip
from windlass.cli.terminal import STATE_MARKS, STATE_STYLES, Paint, cells, fit
from windlass.core.names import metric_place
from windlass.core.quantities import format_duration, format_size
from windlass.core.shown import without_moves, words_of
from windlass.core.wanted import PLAN_TAG, spec_text

if TYPE_CHECKING:
    from windlass.client import Client, Metric
    from windlass.wire.checkpoints import CheckpointList
    from windlass.wire.gang import RoleSpec
    from windlass.wire.runs import AttemptView, EventView, ExitView, RunView
    from windlass.wire.search import FoundRun
    from windlass.wire.spec import RunSpec

_LABEL = 12
_MOST_METRICS = 8
_MOST_POINTS = 1_000
_MOST_LINES = 6
_MOST_TRACEBACK = 24
_MOST_ALERTS = 5
_MOST_RECOVERIES = 3
_FRAMEWORKS = ("torch", "jax", "tensorflow", "xgboost", "lightning", "transformers", "numpy")


class Record:
    """Lines under labels: `put("cost", "0.02 CPU hours")`."""

    def __init__(self, paint: Paint, width: int) -> None:
        self.paint = paint
        self.width = width
        self.lines: list[str] = []

    def put(self, label: str, text: str | None, *styles: str) -> None:
        """Long text goes on in further lines; a line that has colours of its own is cut off instead. What people and
        programs wrote moves no cursor, and where no colours are shown it has none."""
        if not text:
            return
        text = shown_by(self.paint, text)
        room = max(20, self.width - _LABEL - 2)
        if "\x1b" in text:
            shown = [clip(text, room)]
        else:
            shown = [self.paint(line, *styles) for line in textwrap.wrap(text, room)[:_MOST_LINES]]
        for index, line in enumerate(shown):
            self.lines.append(f"  {self.paint((label if index == 0 else '').ljust(_LABEL), 'dim')}{line}")

    def put_all(self, label: str, texts: Sequence[str]) -> None:
        for index, text in enumerate(texts):
            self.put(label if index == 0 else "", text)


def shown_by(paint: Paint, text: str) -> str:
    return without_moves(text) if paint.on else words_of(text)


def headline(view: RunView | FoundRun, paint: Paint) -> str:
    mark = STATE_MARKS.get(view.state, "●")
    took = f" in {format_duration(view.duration_s)}" if view.duration_s is not None and view.ended_at else ""
    styles = STATE_STYLES.get(view.state, ())
    name, state = paint(shown_by(paint, view.name), "bold"), paint(view.word, *styles) + took
    return f"{paint(mark, *styles)} {name}  {paint(view.id, 'dim')}  {state}"


def put_outcome(record: Record, view: RunView, attempts: Sequence[AttemptView]) -> None:
    if view.exit is not None and view.exit.reason != "completed":
        record.put("why", describe_exit(view.exit), "red" if view.state == "failed" else "yellow")
        put_traceback(record, view.exit)
    brief = len(attempts) == 1  # then its reason is the run's, and stands above
    sizes = view.spec.elastic is not None
    lines = [_attempt_line(record.paint, attempt, brief=brief, sizes=sizes) for attempt in attempts]
    record.put_all("attempts", lines)


def put_traceback(record: Record, exit: ExitView) -> None:
    """Of the rank that failed first: the program's own frames, and where the error was raised."""
    for index, line in enumerate(abridged((exit.traceback or "").splitlines(), _MOST_TRACEBACK)):
        label = "traceback" if index == 0 else ""
        record.lines.append(f"  {record.paint(label.ljust(_LABEL), 'dim')}{shown_by(record.paint, line)}")


def put_alerts(record: Record, events: Sequence[EventView]) -> None:
    alerts = [event for event in events if event.kind == "alert"]
    shown = [
        record.paint(f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {event.message}", "yellow")
        for event in alerts[-_MOST_ALERTS:]
    ]
    if len(alerts) > len(shown):
        shown.insert(0, record.paint(f"{len(alerts) - len(shown)} earlier ones", "dim"))
    record.put_all("alerts", shown)


def put_recoveries(record: Record, events: Sequence[EventView]) -> None:
    """How often the run came back after a failure, and what the last times cost."""
    back = [event for event in events if event.kind == "recovered"]
    shown = [f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {event.message}" for event in back]
    if len(shown) > _MOST_RECOVERIES:
        earlier = len(shown) - _MOST_RECOVERIES
        shown = [f"{earlier} earlier one{'' if earlier == 1 else 's'}", *shown[-_MOST_RECOVERIES:]]
    record.put_all("recoveries", shown)


def _attempt_line(paint: Paint, attempt: AttemptView, *, brief: bool, sizes: bool) -> str:
    reason = describe_exit(attempt.exit, brief=brief) if attempt.exit else _going_on(attempt)
    style = "green" if attempt.exit and attempt.exit.reason == "completed" else "red" if attempt.exit else "cyan"
    took = ""
    if attempt.started_at is not None:
        took = format_duration((attempt.ended_at or time.time()) - attempt.started_at)
    size = f"  {_nodes(len(attempt.nodes)):>8}" if sizes else ""
    return f"{attempt.number}  {took:>8}{size}  {paint(reason, style)}"


def _nodes(count: int) -> str:
    return f"{count} node" + ("" if count == 1 else "s")


def _going_on(attempt: AttemptView) -> str:
    said = f": {attempt.detail}" if attempt.detail else ""
    if attempt.unknown_since is not None:
        return f"unknown for {format_duration(time.time() - attempt.unknown_since)}, was {attempt.state}{said}"
    return f"{attempt.state} on {attempt.engine}{said}"


def describe_exit(exit: ExitView, *, brief: bool = False) -> str:
    what = exit.reason.replace("_", " ")
    if exit.message.startswith(("rank ", what)) and not brief:
        return exit.message  # says it all
    if exit.reason == "exit_code":
        what = f"exit code {exit.exit_code}"
    elif exit.reason == "signal" and exit.signal:
        what = f"signal {exit.signal}"
    if exit.rank is not None and exit.reason != "completed":
        what += f" of rank {exit.rank}"
    if exit.trouble is not None:
        what += f" ({exit.trouble.replace('_', ' ')})"
    return f"{what}: {exit.message}" if exit.message and not brief else what


def _change(metric: Metric) -> str:
    values = metric.values
    return f"{number(values[0])} → {number(values[-1])}" if len(values) > 1 else number(metric.last)


def put_metrics(record: Record, run: RunView | FoundRun, client: Client) -> None:
    metrics = client.metrics(run.id, limit=_MOST_METRICS, most=_MOST_POINTS)
    if not metrics:
        return
    shown = sorted(metrics, key=metric_place)
    longest = min(24, max(cells(name) for name in shown))
    changes = {name: _change(metrics[name]) for name in shown}
    widest = max(map(len, changes.values()))
    lines = []
    for name, change in changes.items():
        values = metrics[name].values
        spark = record.paint(sparkline(values), "cyan") if len(values) > 1 else ""
        words = record.paint(change.ljust(widest), "bold")
        lines.append(f"{fit(name, longest).ljust(longest)}  {words}  {spark}".rstrip())
    if len(run.metrics) > len(shown):
        more = len(run.metrics) - len(shown)
        lines.append(record.paint(f"and {more:,} more: windlass metrics {run.id}", "dim"))
    record.put_all("metrics", lines)


def put_checkpoint(record: Record, found: CheckpointList) -> None:
    """What the run would go on from."""
    newest = next((one for one in found.checkpoints if one.is_newest), None)
    if newest is not None:
        ago = format_duration(max(0.0, time.time() - newest.created_at))
        best = next((f"; best by {found.best_by}: step {one.step:,}" for one in found.checkpoints if one.is_best), "")
        count = f", {len(found.checkpoints)} of them" if len(found.checkpoints) > 1 else ""
        record.put("checkpoints", f"step {newest.step:,}, {format_size(newest.size_bytes)}, {ago} ago{count}{best}")


def put_tracked(record: Record, run: FoundRun) -> None:
    """What is known of a run that an MLflow client made."""
    record.put("params", _pairs(run.params))
    record.put("tags", _pairs(run.tags))
    record.put("experiment", run.project)
    record.put("user", run.user)
    for label, at in (("started", run.started_at), ("ended", run.ended_at)):
        record.put(label, None if at is None else _moment(at))
    record.put("made by", "an MLflow client: no attempts, logs or code here")


def _pairs(pairs: Mapping[str, str]) -> str:
    return "  ".join(f"{name}={value}" if value else name for name, value in pairs.items())


def _moment(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return f"{at:g}"  # clients may say any number


def put_cost(record: Record, view: RunView) -> None:
    used = [_hours(view.cost.cpu_hours, "CPU")]
    if view.cost.gpu_hours:
        used.append(_hours(view.cost.gpu_hours, "GPU"))
    record.put("compute", f"{', '.join(used)} · ${view.cost.usd:.4f}")


def _hours(hours: float, of: str) -> str:
    return f"{hours:.3f} {of} hours" if hours >= 0.005 else f"{hours * 3600:.1f} {of} seconds"


def put_folders(record: Record, view: RunView, attempts: Sequence[AttemptView]) -> None:
    if attempts and attempts[-1].log_dirs:
        # A path that is cut off cannot be copied: it may be longer than the line.
        record.lines.append(f"  {record.paint('logs'.ljust(_LABEL), 'dim')}{attempts[-1].log_dirs[0]}")
    elif view.run_dir:
        record.lines.append(f"  {record.paint('folder'.ljust(_LABEL), 'dim')}{view.run_dir}")


def put_request(record: Record, view: RunView) -> None:
    spec = view.spec
    record.put("command", shlex.join(view.command))
    record.put("recipe", spec.recipe)
    record.put("roles", ", ".join(_role_words(name, role) for name, role in spec.roles.items()))
    told = [spec_text(spec.plan)] if spec.plan is not None else []
    told += [view.tags[PLAN_TAG]] if PLAN_TAG in view.tags else []
    record.put("plan", " → ".join(told))
    record.put("framework", spec.framework)
    record.put("experiment", spec.experiment)
    record.put("resources", ", ".join(_asked(spec)))
    record.put("params", "  ".join(f"{name}={_short(value)}" for name, value in spec.params.items()))
    record.put("env", "  ".join(f"{name}={value}" for name, value in spec.env.items()))
    record.put("secrets", ", ".join(spec.secrets))
    # The plan in use has a line of its own.
    record.put("tags", _pairs({name: value for name, value in view.tags.items() if name != PLAN_TAG}))
    record.put("project", view.project if view.project != "default" else None)
    record.put("priority", view.priority if view.priority != "normal" else None)
    record.put("timeout", format_duration(spec.timeout) if spec.timeout else None)
    if spec.deadline is not None:
        record.put("deadline", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(spec.deadline)))
    record.put("preemptible", None if spec.preemptible else "no")
    record.put("seed", str(view.seed))
    record.put("clone of", view.clone_of)


def _asked(spec: RunSpec) -> list[str]:
    asked = [f"{spec.nproc} processes per node"] if spec.nproc and spec.nproc > 1 else []
    wanted = spec.resources
    if spec.elastic is not None:
        asked.append(f"{spec.elastic.min_nodes} to {_nodes(spec.elastic.max_nodes)}")
    elif wanted.nodes > 1:
        asked.append(_nodes(wanted.nodes))
    asked += [f"{wanted.cpus:g} CPUs"] if wanted.cpus is not None else []
    if wanted.gpus:
        fewest = f"{wanted.min_gpus} to " if wanted.min_gpus else ""
        asked.append(f"{fewest}{wanted.gpus:g} {' or '.join(wanted.gpu_type) or 'GPU'}")
    if wanted.tpus:
        asked.append(f"{wanted.tpus} TPU {' or '.join(wanted.tpu_type)}".rstrip())
    asked += [format_size(wanted.memory)] if wanted.memory else []
    asked += [f"{key}={value}" for key, value in wanted.labels.items()]
    asked += [] if wanted.spot else ["not on spot"]
    return asked


def _role_words(name: str, role: RoleSpec) -> str:
    command = role.command if isinstance(role.command, str) or role.command is None else shlex.join(role.command)
    return f"{role.count} {name}" + (f" ({command})" if command else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def put_provenance(record: Record, view: RunView) -> None:
    origin, environment = view.origin, view.environment or {}
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.submitted_at))
    who = "@".join(part for part in (origin.user, origin.host) if part)
    record.put("submitted", f"{when} by {who}" if who else when)
    if (git := origin.git) is not None:
        state = f"{(git.commit or 'no commit')[:12]} on {git.branch or 'no branch'}"
        record.put("git", f"{state}, with uncommitted changes" if git.dirty else state)
    record.put("code", f"snapshot {view.code_digest[:12]}" if view.code_digest else view.spec.workdir)
    if environment.get("python_version") or environment.get("packages"):
        packages = environment.get("packages") or {}
        known = [f"{name} {packages[name]}" for name in _FRAMEWORKS if name in packages]
        python = f"python {environment.get('python_version') or '?'}"
        record.put("environment", ", ".join([python, *known, f"{len(packages)} packages"]))
    record.put("host", environment.get("host"))
    if view.usage and (peak := view.usage.get("peak_rss_bytes") or view.usage.get("rss_bytes")):
        record.put("memory", f"{format_size(peak)} at most")
