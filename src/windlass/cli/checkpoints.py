"""`checkpoints`: the catalogue of what a run saved, as a list, one by one, verified, exported and removed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windlass.cli import options
from windlass.cli.charts import number
from windlass.cli.connection import open_client
from windlass.cli.terminal import Cell, next_steps, notice, paint_for, say, say_json, table, width_of
from windlass.core.errors import Conflict, InvalidInput, NotFound, WindlassError
from windlass.core.manifest import Tier
from windlass.core.quantities import format_count, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windlass.wire.checkpoints import CheckpointDetail, CheckpointView, PlaceView, Verification
    from windlass.wire.spec import RunSpec

app = typer.Typer(help="Checkpoints of a run: list, look at, verify, export, remove.", no_args_is_help=True)
_STYLES = {"available": (), "corrupt": ("red",), "deleted": ("dim",)}
_FINDINGS = {"good": "green", "corrupt": "red", "missing": "red", "unseen": "yellow"}
_MOST_METRICS = 3
_MOST_FILES = 20
ID_START = "c-"

_WHICH = "A step, an id, `newest` or `best`."
Which = Annotated[str, typer.Argument(metavar="[WHICH]", help=_WHICH)]
Only = Annotated[Tier | None, typer.Option("--tier", help="Only there.")]
Several = Annotated[list[str] | None, typer.Argument(metavar="[WHICH...]", help=_WHICH)]


@app.command()
def ls(
    ctx: typer.Context,
    run: options.RunRef,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Those that are corrupt or deleted too.")] = False,
    json: options.Json = False,
) -> None:
    """List a run's checkpoints, newest first. * marks the best."""
    found = open_client(ctx).get(run).checkpoints(everything=everything)
    if json:
        say_json(found.model_dump(mode="json"))
        return
    if not found.checkpoints:
        notice(f"{found.run_id} has no good checkpoints" + ("" if everything else "; -a lists all that ever were"))
        return
    headers = ("", "STEP", "AGE", "SIZE", "METRICS", "REASON", "TIER", "STATE", "ID")
    rows = [_row(one, found.best_by, time.time()) for one in found.checkpoints]
    say(table(headers, rows, flexible=4, stream=sys.stdout))
    next_steps(f"windlass checkpoints show {found.run_id}", f"windlass checkpoints verify {found.run_id}")


def _row(one: CheckpointView, best_by: str, now: float) -> list[Cell | str]:
    return [
        Cell("*" if one.is_best else "", ("green",)),
        Cell(f"{one.step:,}", ("bold",) if one.is_newest else ()),
        _ago(one, now),
        format_size(one.size_bytes),
        "  ".join(_metrics(one, best_by)[:_MOST_METRICS]),
        one.reason,
        ", ".join(_tiers(one)),
        Cell(one.state, _STYLES.get(one.state, ())),
        Cell(one.id, ("dim",)),
    ]


def _tiers(one: CheckpointView) -> list[str]:
    """Where it is; where it was, if it is nowhere."""
    there = [place.tier for place in one.places if place.state == "available"]
    return list(dict.fromkeys(there or [place.tier for place in one.places]))


def _ago(one: CheckpointView, now: float) -> str:
    return format_duration(max(0.0, now - one.created_at))


def _metrics(one: CheckpointView, best_by: str = "loss") -> list[str]:
    """That which tells the best first."""
    names = sorted(one.metrics, key=lambda name: (name != best_by, name))
    return [f"{name} {number(one.metrics[name])}" for name in names]


@app.command()
def show(ctx: typer.Context, run: options.RunRef, which: Which = "newest", json: options.Json = False) -> None:
    """Show what is known of a checkpoint: where it lies, what it is of, its files."""
    found = open_client(ctx).get(run).checkpoint(which)
    if json:
        say_json(found.model_dump(mode="json"))
        return
    one, paint = found.checkpoint, paint_for(sys.stdout)
    marks = [word for word, on in (("newest", one.is_newest), ("best", one.is_best)) if on]
    state = paint(one.state, *_STYLES.get(one.state, ()))
    say(f"{paint(f'step {one.step:,}', 'bold')}  {paint(one.id, 'dim')}  {state}  {', '.join(marks)}".rstrip())
    _put_facts(found)
    next_steps(f"windlass checkpoints verify {one.run_id} {one.step}", f"windlass checkpoints ls {one.run_id}")


def _put_facts(found: CheckpointDetail) -> None:
    from windlass.cli.record import Record

    one = found.checkpoint
    lines = Record(paint_for(sys.stdout), width_of(sys.stdout))
    lines.put("why", one.detail, "red" if one.state == "corrupt" else "dim")
    lines.put("run", f"{one.run_id}, attempt {one.attempt}")
    lines.put("epoch", "" if one.epoch is None else f"{one.epoch:,}")
    lines.put("saved", f"{_ago(one, time.time())} ago, {one.reason}")
    verified = one.verified_at and f"{format_duration(max(0.0, time.time() - one.verified_at))} ago"
    lines.put("verified", verified or "never")
    lines.put("size", f"{format_size(one.size_bytes)} in {format_count(one.file_count, 'file')}")
    lines.put("processes", f"{one.world_size}" + (f", plan {one.plan}" if one.plan else ""))
    lines.put("metrics", "  ".join(_metrics(one)))
    lines.put("format", one.format)
    for place in one.places:
        # A path that is cut off cannot be copied: it may be longer than the line.
        state = "" if place.state == "available" else f"  {lines.paint(_why(place), *_STYLES.get(place.state, ()))}"
        lines.lines.append(f"  {lines.paint(place.tier.ljust(12), 'dim')}{place.location}{state}")
    if found.files is None:
        lines.put("files", "nobody has told, and the server cannot see that place")
    else:
        shown = [f"{format_size(file.size_bytes):>8}  {file.name}" for file in found.files[:_MOST_FILES]]
        more = len(found.files) - len(shown)
        for index, line in enumerate([*shown, *([f"and {more} more"] if more else [])]):
            label = "files" if index == 0 else ""
            lines.lines.append(f"  {lines.paint(label.ljust(12), 'dim')}{line}")
    say("\n".join(lines.lines))


def _why(place: PlaceView) -> str:
    return f"{place.state}: {place.detail}" if place.detail else place.state


@app.command()
def verify(
    ctx: typer.Context,
    run: options.RunRef,
    which: Several = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All that should be there.")] = False,
    tier: Only = None,
    json: options.Json = False,
) -> None:
    """Read checkpoints whole, and compare sizes and hashes with what was saved. Default: the newest."""
    found = open_client(ctx).get(run)
    if everything:
        wanted = places_of_all(found.checkpoints().checkpoints, tier)
    else:
        words = which or ["newest"]
        wanted = [place for word in words for place in places_of(found.checkpoint(word).checkpoint, word, tier)]
    results = []
    for place in wanted:
        looked = found.verify_checkpoint(place.id)
        results.append(look_here(found.view.spec, looked) if looked.finding == "unseen" else looked)
        if not json:
            _say_finding(results[-1])
    if json:
        say_json([result.model_dump(mode="json") for result in results])
    if any(result.finding != "good" for result in results):
        sys.exit(1)


def places_of_all(checkpoints: Sequence[CheckpointView], tier: Tier | None) -> list[PlaceView]:
    """All that should be there; of those the ones in `tier`. One that is not in it has none there to look at."""
    found = [place for one in checkpoints for place in _there(one) if tier in (None, place.tier)]
    if not found and checkpoints:
        raise NotFound(f"no good checkpoint of {checkpoints[0].run_id} is in a {tier}")
    return found


def places_of(one: CheckpointView, word: str, tier: Tier | None) -> list[PlaceView]:
    """The one that `word`, which somebody wrote, names if it is an id, or all that should be there; of those the ones
    in `tier`."""
    named = [place for place in one.places if word.startswith(ID_START) and place.id.startswith(word)]
    there = named or _there(one)
    chosen = [place for place in there if tier in (None, place.tier)]
    if not chosen:
        raise NotFound(f"step {one.step} is not in a {tier}; it is in: {', '.join(_tiers(one))}")
    return chosen


def _there(one: CheckpointView) -> list[PlaceView]:
    """Where it should be, or, if it is nowhere any more, where it was."""
    return [place for place in one.places if place.state != "deleted"] or one.places[:1]


def _endpoint(spec: RunSpec, location: str) -> str | None:
    return None if spec.checkpoint is None else spec.checkpoint.endpoint_of(location)


def look_here(spec: RunSpec, looked: Verification) -> Verification:
    """What the server cannot see may be a folder of this machine, or a store that its environment has the keys of."""
    from windlass.checkpoints.places import check_place
    from windlass.core.integrity import Finding

    one = looked.checkpoint
    endpoint = _endpoint(spec, one.location)
    found = check_place(one.location, run_id=one.run_id, step=one.step, endpoint=endpoint)
    if found.finding is Finding.UNSEEN:
        return looked
    changes = {"finding": found.finding.value, "problems": list(found.problems), "host": os.uname().nodename}
    notice(f"the server cannot see the {one.tier}, this machine can; what is found here is not recorded")
    return looked.model_copy(update=changes)


def _say_finding(looked: Verification) -> None:
    paint, one = paint_for(sys.stdout), looked.checkpoint
    words = {"unseen": f"cannot be seen, neither from {looked.host} nor from here"}.get(looked.finding, looked.finding)
    finding = paint(words, _FINDINGS.get(looked.finding, "red"))
    size = f"{format_size(one.size_bytes)} in {format_count(one.file_count, 'file')}"
    say(f"{paint(f'step {one.step:,}', 'bold')}  {paint(one.id, 'dim')}  {one.tier}  {finding}  {size}")
    for problem in looked.problems:
        say(f"  {problem}")


@app.command()
def export(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN[@WHICH]", help="A run, and which one if it is not the newest.")],
    words: Annotated[list[str], typer.Argument(metavar="[WHICH] FILE", help="The safetensors file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    json: options.Json = False,
) -> None:
    """Write a checkpoint's weights to one safetensors file. This machine must see the folder or the store."""
    from windlass.checkpoints.places import export_place

    name, which, target = read_export(run, words)
    found = open_client(ctx).get(name)
    one = found.checkpoint(which).checkpoint
    _check_target(target, force=force)
    for place in places_of(one, which, None):
        endpoint = _endpoint(found.view.spec, place.location)
        try:
            done = export_place(place.location, target.absolute(), run_id=one.run_id, step=one.step, endpoint=endpoint)
        except OSError as error:
            raise Conflict(f"step {one.step} could not be written to {target}: {error}") from error
        if done is None:
            continue
        if json:
            say_json({"path": str(target), "step": one.step, "tensors": done.tensors, "size_bytes": done.size_bytes})
        else:
            size = f"{format_count(done.tensors, 'tensor')}, {format_size(done.size_bytes)}"
            say(f"{paint_for(sys.stdout)(f'step {one.step:,}', 'bold')}  {size}  {target}")
        return
    seen = ", ".join(place.location for place in one.places)
    raise Conflict(
        f"nothing of step {one.step} can be seen from {os.uname().nodename}: {seen}",
        hint="run it where the folder is, or set the credentials of the store in the environment",
    )


def read_export(run: str, words: Sequence[str]) -> tuple[str, str, Path]:
    """The run, which checkpoint of it, and the file, of `RUN FILE`, `RUN@WHICH FILE` or `RUN WHICH FILE`."""
    name, _, which = run.partition("@")
    if len(words) > 2 or (which and len(words) > 1):
        raise InvalidInput(
            f"'{' '.join([run, *words])}' names more than one FILE; write RUN FILE, RUN WHICH FILE or RUN@WHICH FILE"
        )
    *before, file = words
    if not before and (file in ("newest", "best") or file.isdecimal() or file.startswith(ID_START)):
        raise InvalidInput(
            f"'{file}' says which checkpoint, and no FILE is given",
            hint=f"windlass checkpoints export {name} {file} {name}.safetensors; or ./{file} for a file of that name",
        )
    return name, before[0] if before else which or "newest", Path(file)


def _check_target(target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise InvalidInput(f"{target} is a folder; write the name of a file")
    if not target.absolute().parent.is_dir():
        raise InvalidInput(f"{target} cannot be written: there is no folder {target.parent}")
    if target.exists() and not force:
        raise Conflict(f"{target} is there already", hint="--force writes over it")


@app.command()
def rm(
    ctx: typer.Context,
    run: options.RunRef,
    which: Annotated[list[str], typer.Argument(metavar="WHICH...", help=_WHICH)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Only take them off the list; files stay.")] = False,
    tier: Only = None,
    json: options.Json = False,
) -> None:
    """Remove checkpoints. The newest good one of a run that is not over stays."""
    found = open_client(ctx).get(run)
    # By id or step: a word such as `newest` means another one after the first is gone.
    named = ((word, found.checkpoint(word).checkpoint) for word in which)
    wanted = {one.id if word.startswith(ID_START) else str(one.step): one for word, one in named}
    if not yes:
        _ask(list(wanted.values()), is_over=found.is_over, forget=forget)
    removed, failures = [], list[WindlassError]()
    paint = paint_for(sys.stdout)
    for word, one in wanted.items():
        try:
            removed.append(found.remove_checkpoint(word, forget=forget, tier=tier))
        except WindlassError as error:  # the others are to go all the same
            failures.append(error)
            continue
        if not json:
            say(f"{paint(f'step {one.step:,}', 'bold')}  {paint(one.id, 'dim')}  {removed[-1].detail}")
    if json:
        say_json([one.model_dump(mode="json") for one in removed])
    for failure in failures[:-1]:
        print(f"{paint_for(sys.stderr)('error:', 'red', 'bold')} {failure.message}", file=sys.stderr)
    if failures:
        raise failures[-1]


def _ask(wanted: list[CheckpointView], *, is_over: bool, forget: bool) -> None:
    what = ", ".join(f"step {one.step:,}" for one in wanted)
    size = format_size(sum(one.size_bytes for one in wanted))
    if not sys.stdin.isatty():
        raise Conflict(f"this would remove {what} ({size})", hint="--yes does it")
    last = " A resumed run could not go on from it." if is_over and any(one.is_newest for one in wanted) else ""
    action = "Take off the list" if forget else "Remove"
    sys.stderr.write(f"{action} {what} ({size})?{last} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Conflict("nothing was removed")
