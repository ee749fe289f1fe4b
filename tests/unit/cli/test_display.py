"""What is shown: charts, tables, log lines, the pane with its staying rows, and the status line."""

from __future__ import annotations

import io
import math
import re
import time
from typing import Any

import pytest

from windlass.cli.charts import bar, braille, number, resample, sparkline
from windlass.cli.loglines import LogFormatter
from windlass.cli.pane import Pane, clip
from windlass.cli.record import Record, describe_exit, headline, put_checkpoint, put_outcome, put_request, put_traceback
from windlass.cli.status import Status, clock, eta_words, main_metric, progress_words, share_done
from windlass.cli.terminal import Cell, Paint, cells, fit, table
from windlass.client import Update
from windlass.wire.checkpoints import CheckpointList, CheckpointView
from windlass.wire.runs import AttemptView, EventView, ExitView, LogLine, Progress, RunSummary, RunView
from windlass.wire.search import FoundRun
from windlass.wire.spec import parse_spec

PLAIN = Paint(False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(text: str, *, rank: int = 0, stream: str = "stdout", partial: bool = False, at: float = 0.0) -> LogLine:
    return LogLine(at=at, attempt=1, rank=rank, stream=stream, text=text, partial=partial)


def test_sparklines() -> None:
    assert sparkline([3, 2, 1]) == "█▅▁"
    assert sparkline([1, 1]) == "▁▁"
    assert sparkline([1, math.nan, 2]) == "▁×█"
    assert sparkline([math.nan]) == "×"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)), 24)) == 24


def test_resampling_keeps_what_is_no_number_apart() -> None:
    assert resample([1, 3, math.nan, math.nan], 2)[0] == 2
    assert math.isnan(resample([1, 3, math.nan, math.nan], 2)[1])
    assert resample([1, math.inf, 5, 7], 2) == [1, 6]


@pytest.mark.parametrize(("fraction", "shown"), [(0, "░░░░"), (1, "████"), (0.5, "██░░"), (0.53, "██▏░"), (7, "████")])
def test_bars(fraction: float, shown: str) -> None:
    assert bar(fraction, 4) == shown


def test_braille_charts_stay_inside_their_frame() -> None:
    rising = braille([0, 1, 2, 3, 4, 5, 6, 7], 4, 2)
    assert [len(row) for row in rising] == [4, 4]
    assert rising[0].strip()
    assert rising[1][0] != " "
    assert rising[1][3] == " "
    flat = braille([1.0] * 50, 10, 3)
    assert (flat[0].strip(), flat[2].strip(), flat[1].count(" ")) == ("", "", 0)
    # A level that stays at the top must not wrap round to the bottom.
    top = braille([0, 5, 5, 5], 2, 2)
    assert top[1][1] == " "
    assert braille([], 3, 1) == ["   "]
    assert braille([math.nan, 1, math.nan], 3, 1) != ["   "]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2.0, "2"), (0.123456, "0.1235"), (1e-7, "1e-07"), (math.nan, "nan"), (-math.inf, "-inf"), (None, "nan")],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_fitting_counts_columns_not_characters() -> None:
    assert cells("日本") == 4
    assert fit("日本語", 4) == "日…"
    assert fit("hello", 5) == "hello"
    assert fit("hello", 4) == "hel…"
    assert clip("\x1b[31mred\x1b[0m and more", 5) == "\x1b[31mred\x1b[0m a\x1b[0m"


def test_tables_are_whole_in_a_pipe_and_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["r-1", "a-very-long-name-of-a-run", Cell("failed", ("red",))]]
    assert table(("ID", "NAME", "STATE"), rows, flexible=1, stream=io.StringIO()).splitlines() == [
        "ID   NAME                       STATE",
        "r-1  a-very-long-name-of-a-run  failed",
    ]
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("NO_COLOR", "1")
    assert table(("ID", "NAME", "STATE"), rows, flexible=1, stream=Terminal()).splitlines() == [
        "ID   NAME         STATE",
        "r-1  a-very-lon…  failed",
    ]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31mfailed\x1b[0m" in table(("ID", "NAME", "STATE"), rows, flexible=1, stream=Terminal())


def test_unfinished_lines_are_put_together_per_rank_and_stream() -> None:
    formatter = LogFormatter(paint=PLAIN, ranks=True)
    assert formatter.feed(line("load", partial=True)) is None
    assert formatter.unfinished == "[0] load"
    assert formatter.feed(line("other", rank=1)) is not None
    finished = formatter.feed(line("ing done"))
    assert finished is not None
    assert finished.text == "[0] loading done"
    assert formatter.unfinished == ""
    formatter.feed(line("never ends", rank=1, stream="stderr", partial=True))
    assert [(shown.stream, shown.text) for shown in formatter.drain()] == [("stderr", "[1] never ends")]
    assert formatter.drain() == []


def test_of_a_progress_bar_the_newest_state_is_shown() -> None:
    formatter = LogFormatter(paint=PLAIN, ranks=False)
    for percent in range(0, 100, 10):
        formatter.feed(line(f"\r{percent}%", partial=True))
    assert formatter.unfinished == "90%"
    finished = formatter.feed(line("\r100%"))
    assert finished is not None
    assert finished.text == "100%"
    windows = formatter.feed(line("a line of another system\r"))
    assert windows is not None
    assert windows.text == "a line of another system"


def test_escapes_that_would_tear_the_display_are_left_out() -> None:
    formatter = LogFormatter(paint=Paint(True), ranks=False)
    shown = formatter.feed(line("\x1b[2J\x1b[1A\x1b[31mred\x1b[0m\x1b]0;title\x07!\x07"))
    assert shown is not None
    assert shown.text == "\x1b[31mred\x1b[0m!\x1b[0m"
    kept = LogFormatter(paint=PLAIN, ranks=False, as_written=True).feed(line("\x1b[2Jx"))
    assert kept is not None
    assert kept.text == "\x1b[2Jx"


def test_colours_of_ranks_and_streams() -> None:
    formatter = LogFormatter(paint=Paint(True), ranks=True)
    shown = [formatter.feed(line("x", rank=rank, stream=stream)) for rank, stream in ((0, "stdout"), (1, "stderr"))]
    assert [item.text if item else "" for item in shown] == [
        "\x1b[36m[0]\x1b[0m x",
        "\x1b[32m[1]\x1b[0m \x1b[2;31mx\x1b[0m",
    ]


def test_timestamps() -> None:
    shown = LogFormatter(paint=PLAIN, ranks=False, timestamps=True).feed(line("x", at=1_700_000_000.25))
    assert shown is not None
    assert shown.text.endswith(".250 x")


def test_the_staying_rows_stay_below_what_scrolls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    out = Terminal()
    pane = Pane(live=True, out=out)
    pane.show([("stdout", "one")], ["bar", "status is longer than that"])
    assert out.getvalue() == "one\nbar\nstatus is\x1b[0m"
    out.truncate(0)
    out.seek(0)
    pane.show([], ["bar", "status is longer than that"])
    assert out.getvalue() == ""  # nothing has changed
    pane.show([("stderr", "two")], [])
    assert out.getvalue() == "\r\x1b[2K\x1b[1A\r\x1b[2Ktwo\n"
    pane.clear()
    assert out.getvalue().endswith("two\n")


def test_in_a_pipe_each_stream_goes_to_its_own() -> None:
    out, err = io.StringIO(), io.StringIO()
    pane = Pane(live=False, out=out, err=err)
    pane.show([("stdout", "one"), ("stderr", "two"), ("stdout", "three")], ["status"])
    pane.clear()
    assert (out.getvalue(), err.getvalue()) == ("one\nthree\n", "two\n")


def status(**changes: object) -> Status:
    made = Status(state="running", started_at=100.0, submitted_at=90.0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_the_status_line_says_the_most_important_first() -> None:
    full = status(
        progress={"step": 50, "total": 200, "eta_s": 83.0},
        metrics={"acc": 0.1, "loss": 2.0},
        usage={"cpu_percent": 198.0, "rss_bytes": 812_000_000},
        attempts=2,
    )
    wide = full.line(PLAIN, 120, 107.0)
    assert wide[2:] == (
        "running  0:07  █████░░░░░░░░░░░░░░░  50/200  loss 2  eta 1:23  cpu 198%  mem 812 MB  attempt 2"
    )
    for width in range(20, 120):
        assert cells(full.line(PLAIN, width, 107.0)) <= width
    assert "loss 2" in full.line(PLAIN, 50, 107.0)


def test_the_status_line_of_other_states() -> None:
    assert "queued  0:10  waits for 1 GPU" in status(state="queued", waiting_for="waits for 1 GPU").line(
        PLAIN, 80, 100.0
    )
    assert status(cancelling=True).line(PLAIN, 80, 101.0)[2:] == "cancelling  0:01"
    assert "reconnecting" in status(connected=False).line(PLAIN, 80, 101.0)
    assert "step 1,234" in status(progress={"step": 1234, "total": None}).line(PLAIN, 80, 101.0)


@pytest.mark.parametrize(
    ("state", "step", "eta_s", "words"),
    [
        ("running", 40, 83.0, "step 40 of 200 (20%), eta 1:23"),
        ("running", 199, 0.5, "step 199 of 200 (99%), eta 0:00"),
        ("succeeded", 199, 0.5, "step 199 of 200 (100%)"),  # counted from 0
        ("failed", 199, 0.5, "step 199 of 200 (99%)"),
        ("succeeded", 198, None, "step 198 of 200 (99%)"),
    ],
)
def test_progress_says_how_far_and_how_long(state: str, step: int, eta_s: float | None, words: str) -> None:
    run = RunSummary.model_construct(
        state=state,
        ended_at=None if state == "running" else 1.0,
        progress=Progress(step=step, total=200, eta_s=eta_s),
    )
    assert progress_words(run) == words
    share = share_done(run)
    assert share is not None
    assert f"({share:.0%})" in words
    assert eta_words(run) in words


def test_the_last_checkpoint_is_seen_and_what_became_of_older_ones_is_not() -> None:
    seen = status()
    for step, state, at in ((7, "available", 50.0), (9, "available", 60.0), (7, "deleted", 70.0), (9, "corrupt", 80.0)):
        event = EventView(
            seq=step, at=at, kind="checkpoint", attempt=1, message="", data={"step": step, "state": state}
        )
        seen.see(Update(kind="event", value=event))
    assert seen.saved == (9, 60.0)


def checkpoint(step: int, **more: Any) -> CheckpointView:
    return CheckpointView(
        id="c-1", run_id="r-1", attempt=1, step=step, location="/c", tier="folder", size_bytes=16_200_000_000,
        file_count=4, world_size=4, plan="", format="dcp", reason="interval", metrics={"loss": 0.5}, state="available",
        created_at=time.time() - 180.5, **more,
    )  # fmt: skip


def test_a_record_says_what_a_run_would_go_on_from() -> None:
    lines = Record(PLAIN, 120)
    put_checkpoint(lines, CheckpointList(run_id="r-1", best_by="loss", checkpoints=[]))
    assert lines.lines == []
    both = [checkpoint(2_000, is_newest=True), checkpoint(1_500, is_best=True)]
    put_checkpoint(lines, CheckpointList(run_id="r-1", best_by="loss", checkpoints=both))
    [line] = lines.lines
    assert re.fullmatch(r"  checkpoints step 2,000, 16.2 GB, 3m\d\ds ago, 2 of them; best by loss: step 1,500", line)


def test_clocks_and_the_main_metric() -> None:
    assert [clock(seconds) for seconds in (-1, 7.9, 754, 3723)] == ["0:00", "0:07", "12:34", "1:02:03"]
    assert main_metric({"acc": 1, "train/loss": 2}) == "train/loss"
    assert main_metric({"acc": 1, "f1": 2}) == "acc"
    assert main_metric({}) is None


def test_a_record_wraps_what_is_long_and_cuts_what_has_colours() -> None:
    record = Record(PLAIN, 40)
    record.put("why", "word " * 12)
    record.put("", None)
    assert [len(shown) <= 40 for shown in record.lines] == [True] * 3
    assert record.lines[0].startswith("  why         word")
    assert record.lines[1].startswith("              word")
    coloured = Record(Paint(True), 40)
    coloured.put("attempts", Paint(True)("x" * 100, "red"))
    assert len(coloured.lines) == 1
    assert "x" * 26 in coloured.lines[0]
    assert "x" * 27 not in coloured.lines[0]


def found(name: str, **known: Any) -> FoundRun:
    return FoundRun(id="r", name=name, state="succeeded", project="p", params={}, metrics={}, tags={}, **known)


def test_what_people_write_moves_nothing_on_a_terminal_and_is_plain_in_a_pipe() -> None:
    note = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2Jend\x07"
    plain, painted = Record(PLAIN, 100), Record(Paint(True), 100)
    for record in (plain, painted):
        record.put_all("note", [note])
    assert plain.lines == ["  note        red end"]
    assert "\x1b[31mred\x1b[0m end" in painted.lines[0]
    assert headline(found("a\x1b[2Jb"), PLAIN) == "✓ ab  r  succeeded"


def test_a_run_that_ended_before_it_began_took_no_time() -> None:
    assert headline(found("a", started_at=9.0, ended_at=-0.001), PLAIN) == "✓ a  r  succeeded"
    assert headline(found("a", started_at=9.0, ended_at=11.0), PLAIN).startswith("✓ a  r  succeeded in 2")


@pytest.mark.parametrize(
    ("exit", "words", "brief"),
    [
        (
            ExitView(reason="exit_code", exit_code=3, rank=1, message="ValueError: no"),
            "exit code 3 of rank 1: ValueError: no",
            "exit code 3 of rank 1",
        ),
        (
            ExitView(reason="exit_code", exit_code=3, rank=1, message="rank 1 exited with code 3"),
            "rank 1 exited with code 3",
            "exit code 3 of rank 1",
        ),
        (ExitView(reason="signal", signal=9, rank=0), "signal 9 of rank 0", "signal 9 of rank 0"),
        (ExitView(reason="cancelled", message="cancelled on request"), "cancelled on request", "cancelled"),
        (ExitView(reason="completed", rank=0), "completed", "completed"),
        (ExitView(reason="launch_failed", message="no command 'x'"), "launch failed: no command 'x'", "launch failed"),
    ],
)
def test_ends_in_words(exit: ExitView, words: str, brief: str) -> None:
    assert describe_exit(exit) == words
    assert describe_exit(exit, brief=True) == brief


def test_a_traceback_begins_with_its_header_and_the_programs_own_lines() -> None:
    own = ['  File "/work/train.py", line 9, in <module>', "    fit()"]
    library = ['  File "/venv/lib/python3.11/site-packages/torch/nn.py", line 7, in call', "    return f()"] * 20
    text = "\n".join(["Traceback (most recent call last):", *own, *library, "RuntimeError: no"])
    record = Record(Paint(False), 100)
    put_traceback(record, ExitView(reason="exit_code", exit_code=1, rank=0, message="no", traceback=text))
    shown = [line[14:] for line in record.lines]
    assert shown == ["Traceback (most recent call last):", *own, "  ...", *library[-2:], "RuntimeError: no"]


@pytest.mark.parametrize(
    ("plan", "tags", "shown"),
    [
        ("auto,clip=1", {"windlass.plan": "data=2,clip=1", "team": "a"}, "auto,clip=1 → data=2,clip=1"),
        (None, {"windlass.plan": "data=1,shard=2"}, "data=1,shard=2"),
        ("shard=2", {}, "shard=2"),
        (None, {}, None),
    ],
)
def test_the_plan_that_was_used_stands_beside_the_one_asked_for(
    plan: str | None, tags: dict[str, str], shown: str | None
) -> None:
    spec = parse_spec({"command": "x", "plan": plan})
    view = RunView.model_construct(
        spec=spec, command=["x"], exit=None, tags=tags, project="default", priority="normal", seed=1, clone_of=None
    )
    record = Record(PLAIN, 100)
    put_request(record, view)
    assert [line.split(maxsplit=1)[1] for line in record.lines if "plan" in line] == ([shown] if shown else [])


def test_an_elastic_run_shows_its_range_and_the_size_of_every_attempt() -> None:
    spec = parse_spec({"command": "x", "elastic": {"max_nodes": 4}, "resources": {"cpus": 2}})
    view = RunView.model_construct(
        spec=spec, command=["x"], exit=None, tags={}, project="default", priority="normal", seed=1, clone_of=None
    )
    lost = ExitView(reason="lost", exit_code=None, signal=None, rank=None, message="node n2 is gone")
    attempts = [
        AttemptView(
            id=f"r.{number}", number=number, state="ended" if exit else "running", engine="hpc", nodes=["n"] * nodes,
            created_at=0, started_at=0, ended_at=60, exit=exit, log_dirs=[], environment=None, usage=None,
        )
        for number, nodes, exit in [(1, 3, lost), (2, 1, None)]
    ]  # fmt: skip
    record = Record(PLAIN, 100)
    put_outcome(record, view, attempts)
    put_request(record, view)
    assert record.lines[:2] == [
        "  attempts    1     1m00s   3 nodes  lost: node n2 is gone",
        "              2     1m00s    1 node  running on hpc",
    ]
    assert "  resources   1 to 4 nodes, 2 CPUs" in record.lines
