"""`cancel`, `resume`, `clone` and `why`: steering a run and asking after it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from windlass.cli import keys, options
from windlass.cli.connection import open_client
from windlass.cli.terminal import next_steps, paint_for, say, say_json, width_of
from windlass.core.errors import InvalidInput, WindlassError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windlass.wire.runs import Pin, Why

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow it, as `run` does.")]


def cancel(
    ctx: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids, beginnings of ids, or names.")],
    grace: Annotated[
        str | None, typer.Option("--grace", help="Time between SIGTERM and SIGKILL, e.g. 30s. Default: the spec's.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Ask runs to end: SIGTERM, and SIGKILL after the grace period."""
    from windlass.core.quantities import parse_duration

    try:
        grace_s = None if grace is None else parse_duration(grace)
    except ValueError as error:
        raise InvalidInput(f"--grace: {error}") from None
    client = open_client(ctx)
    paint = paint_for(sys.stdout)
    cancelled, failures = [], list[WindlassError]()
    for ref in runs:
        try:
            run = client.get(ref).cancel(grace_s)
        except WindlassError as error:  # the others are to be cancelled all the same
            failures.append(error)
            continue
        cancelled.append(run.view.model_dump(mode="json"))
        if not json:
            word = run.state if run.is_over else "cancelling"
            say(f"{paint(run.id, 'bold')}  {run.name}  {paint(word, 'yellow')}")
    if json:
        say_json(cancelled)
    for failure in failures[:-1]:
        print(f"{paint_for(sys.stderr)('error:', 'red', 'bold')} {failure.message}", file=sys.stderr)
    if failures:
        raise failures[-1]
    if not json:
        next_steps("windlass ps", f"windlass resume {runs[-1]}")


def resume(ctx: typer.Context, run: options.RunRef, follow: Follow = False, json: options.Json = False) -> None:
    """Start a failed or cancelled run again, as a further attempt of the same run."""
    _started(open_client(ctx).get(run).resume(), follow=follow, json=json)


def clone(
    ctx: typer.Context,
    run: options.RunRef,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="K=V", help="A param or a spec key to change, e.g. lr=3e-4; repeatable."),
    ] = None,
    name: options.Name = None,
    secret: options.Secret = None,
    follow: Follow = False,
    json: options.Json = False,
) -> None:
    """Run the same code and spec again as a new run, with changes."""
    wanted = keys.pairs("--set", changes, typed=True)
    original = open_client(ctx).get(run)
    _started(original.clone(set=wanted, name=name, secrets=keys.secrets(secret)), follow=follow, json=json)


def reproduce(
    ctx: typer.Context,
    run: options.RunRef,
    name: options.Name = None,
    secret: options.Secret = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be the same, and what is open.")
    ] = False,
    follow: Follow = False,
    json: options.Json = False,
) -> None:
    """Run exactly the same again, and say what could not be pinned."""
    original = open_client(ctx).get(run)
    if dry_run:
        pins = original.pins()
        if json:
            say_json({"pins": [pin.model_dump(mode="json") for pin in pins]})
        else:
            _show_pins(pins, sys.stdout)
        return
    copy, pins = original.reproduce(name=name, secrets=keys.secrets(secret))
    if json:
        say_json({"run": copy.view.model_dump(mode="json"), "pins": [pin.model_dump(mode="json") for pin in pins]})
        return
    _show_pins(pins, sys.stderr)
    _started(copy, follow=follow, json=False)


def _show_pins(pins: Sequence[Pin], stream: TextIO) -> None:
    paint = paint_for(stream)
    for pin in pins:
        mark = paint("same", "green") if pin.pinned else paint("open", "yellow")
        print(f"{mark}  {pin.what:<9} {pin.how}", file=stream)


def _started(run: object, *, follow: bool, json: bool) -> None:
    from windlass.client import Run

    assert isinstance(run, Run)
    if json:
        say_json(run.view.model_dump(mode="json"))
    elif follow:
        from windlass.cli.follow import follow_to_end

        sys.exit(follow_to_end(run))
    elif not sys.stdout.isatty():
        say(run.id)
    else:
        paint = paint_for(sys.stdout)
        say(f"{paint(run.id, 'bold')}  {run.name}  {paint.state(run.state)}")
        next_steps(f"windlass logs -f {run.id}", f"windlass watch {run.id}")


def why(ctx: typer.Context, run: options.RunRef, json: options.Json = False) -> None:
    """Say why a run is in the state it is in: what it waits for, or what ended it."""
    reason = open_client(ctx).get(run).why()
    if json:
        say_json(reason.model_dump(mode="json"))
        return
    paint = paint_for(sys.stdout)
    width = width_of(sys.stdout)
    head, *more = _folded(f"{reason.run_id}  {reason.state}  {reason.summary}", width)
    head = head.removeprefix(f"{reason.run_id}  {reason.state}")
    say(f"{paint(reason.run_id, 'bold')}  {paint.state(reason.state)}{head}")
    for line in more:
        say(line)
    if outlook := _outlook(reason):
        say(f"  {paint(outlook, 'cyan')}")
    for detail in reason.details:
        for line in _folded(f"  {detail}", width):
            say(line)
    next_steps(f"windlass show {reason.run_id}", *(["windlass queue"] if reason.position else []), "windlass cluster")


def _folded(text: str, width: int) -> list[str]:
    """At spaces, what follows set in; a pipe has no edge."""
    if len(text) <= width:
        return [text]
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _outlook(reason: Why) -> str:
    """`starts in about 25 min (10 to 70 min); 3rd of 12 in the queue`."""
    from windlass.cli.estimate import describe_start

    said = []
    if reason.start is not None:
        said.append(describe_start(reason.start, time.time()))
    if reason.position is not None:
        of = f" of {reason.queued:,}" if reason.queued is not None else ""
        said.append(f"place in the queue: {reason.position:,}{of}")
    return "; ".join(said)
