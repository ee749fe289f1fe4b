"""Event files of a run's folders become lines of its spool, each scalar once."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.event_files import event, field, record, simple, write
from windlass.agent.tensorboard import STATE, Boards, Names, read_file
from windlass.tracking.points import parse_spool

NOW = 1_700_000_000


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.agent.tensorboard.time.time", lambda: float(NOW))


class Node:
    """A node of an attempt, as its supervisor knows it."""

    def __init__(self, root: Path, *, attempt: int = 1, **more: Any) -> None:
        self.work = root / "work"
        self.node_dir = root / "attempts" / str(attempt) / "node-0"
        for folder in (self.work, self.node_dir):
            folder.mkdir(parents=True, exist_ok=True)
        self.plan = {
            "run_dir": str(root),
            "node_dir": str(self.node_dir),
            "workdir": str(self.work),
            "node_rank": 0,
            "self_launching": False,
            "workers_per_node": 1,
            "env": {},
            **more,
        }
        self.boards = Boards(self.plan)

    def log(self, folder: str, step: int, value: float = 0.5, *, tag: str = "loss", began: int = NOW) -> Path:
        return write(self.work / folder, began, record(event(NOW + step, step, simple(tag, value))))

    @property
    def spool(self) -> Path:
        return self.node_dir / "metrics-0.jsonl"

    def points(self) -> list[tuple[str, int | None, float]]:
        data = self.spool.read_bytes() if self.spool.exists() else b""
        chunk = parse_spool(data, 0)
        assert chunk.bad_lines == 0
        return [(name, row.step, value) for row in chunk.points for name, value in row.values.items()]


def test_scalars_are_read_while_the_run_goes_on_and_at_its_end(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.log("runs/Nov16_host", 0)
    node.boards.look(0.0)
    assert node.points() == [("loss", 0, 0.5)]
    node.log("runs/Nov16_host", 1, 0.25)
    node.boards.look(1.0)  # no search is due, but known files are followed
    assert node.points() == [("loss", 0, 0.5), ("loss", 1, 0.25)]
    node.log("runs/late", 2)
    for _ in range(2):
        node.boards.drain()
        assert node.points()[2:] == [("late/loss", 2, 0.5)]


def test_a_record_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    node = Node(tmp_path)
    path = node.log("runs", 0)
    whole = record(event(NOW, 1, simple("loss", 0.25)))
    for cut in (3, 20, len(whole)):
        before = path.read_bytes()
        path.write_bytes(before + whole[:cut])
        node.boards.drain()
        assert len(node.points()) == (2 if cut == len(whole) else 1)
        if cut < len(whole):
            path.write_bytes(before)


def test_a_damaged_record_ends_its_file_with_a_note(tmp_path: Path) -> None:
    node = Node(tmp_path)
    path = node.log("runs", 0)
    bad = bytearray(record(event(NOW, 1, simple("loss", 0.25))))
    bad[15] ^= 1
    path.write_bytes(path.read_bytes() + bytes(bad) + record(event(NOW, 2, simple("loss", 0.1))))
    node.log("runs/other", 3)
    for _ in range(2):
        node.boards.drain()
    assert {step for _, step, _ in node.points()} == {0, 3}
    [alert] = parse_spool(node.spool.read_bytes(), 0).alerts
    assert (alert.kind, str(path) in alert.message) == ("tensorboard", True)


def test_what_was_there_before_the_run_is_not_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.log("runs/old", 5, began=NOW - 1)
    node.log("runs/new", 6, began=NOW)
    node.boards.drain()
    assert node.points() == [("loss", 6, 0.5)]


def test_the_next_attempt_goes_on_where_the_one_before_has_read(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.log("runs/a", 0)
    first.boards.look(0.0)
    first.log("runs/a", 1)  # and the supervisor dies before it looks again
    second = Node(tmp_path, attempt=2)
    second.boards.look(0.0)
    assert second.points() == [("loss", 1, 0.5)]
    second.log("runs/b", 2, began=NOW + 9)  # the new ranks' writer: not beside the old one's, but in its place
    third = Node(tmp_path, attempt=3)
    third.boards.drain()
    assert third.points() == [("loss", 2, 0.5)]


def test_lines_that_were_written_count_also_if_the_state_was_not(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.log("runs", 0)
    first.boards.look(0.0)
    state = (tmp_path / STATE).read_bytes()
    first.log("runs", 1)
    first.boards.drain()
    (tmp_path / STATE).write_bytes(state)  # died in between
    with first.spool.open("ab") as spool:
        spool.write(b'{"t": 1, "o": ["torn')
    second = Node(tmp_path, attempt=2)
    second.boards.drain()
    assert second.points() == []


@pytest.mark.parametrize(
    "state",
    [b"", b"\0\0\0", b"[]", b"{}", b'{"since": [], "files": {}}', b'{"since": 1, "files": {"a": "x"}}', b"\xff"],
)
def test_a_state_that_makes_no_sense_is_none(tmp_path: Path, state: bytes) -> None:
    node = Node(tmp_path, attempt=2)
    (tmp_path / STATE).write_bytes(state)
    node.log("runs/old", 5, began=NOW - 1)
    node.log("runs/new", 6)
    node.boards.look(0.0)
    assert node.points() == [("loss", 6, 0.5)]
    third = Node(tmp_path, attempt=3)  # it was mended
    third.boards.drain()
    assert third.points() == []


def test_nothing_that_goes_wrong_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("odd")

    node = Node(tmp_path)
    node.log("runs", 0)
    with monkeypatch.context() as patched:
        patched.setattr("windlass.agent.eventsearch.Search.look", fail)
        for now in range(3):
            node.boards.look(float(now))
    assert capsys.readouterr().err.count("odd") == 1
    node.boards.drain()
    assert node.points() == [("loss", 0, 0.5)]


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    refused = node.log("a", 0)
    node.log("b", 1)

    def reading(path: str, *more: Any) -> Any:
        if path == str(refused):
            raise PermissionError(13, "Permission denied", path)
        return read_file(path, *more)

    monkeypatch.setattr("windlass.agent.tensorboard.read_file", reading)
    for now in range(3):
        node.boards.look(float(now))
    assert [step for _, step, _ in node.points()] == [1]
    [alert] = parse_spool(node.spool.read_bytes(), 0).alerts
    assert "Permission denied" in alert.message


def test_of_a_shared_folder_only_what_its_own_processes_write_is_taken(tmp_path: Path) -> None:
    shared, host = tmp_path / "shared", socket.gethostname()
    (tmp_path / "run").mkdir()
    node = Node(tmp_path / "run", tensorboard=str(shared))
    node.boards.add(4_000_001)

    def put(folder: str, step: int, name: str) -> Path:
        path = write(shared / folder, NOW, record(event(NOW, step, simple("loss", 0.5))))
        return path.rename(path.with_name(f"events.out.tfevents.{NOW}.{name}"))

    put("own", 1, f"{host}.4000001.0")
    put("other", 2, f"{host}.4000002.0")
    put("elsewhere", 3, "another-host.4000001.0.v2")
    put("nobody", 4, host)
    with put("open", 5, f"{host}").open("ab"):
        node.boards.look(0.0)
    node.boards.drain()
    assert {step for _, step, _ in node.points()} == {1, 5}
    second = Node(tmp_path / "run", attempt=2, tensorboard=str(shared))  # knows what was taken before
    with (shared / "own" / f"events.out.tfevents.{NOW}.{host}.4000001.0").open("ab") as file:
        file.write(record(event(NOW, 6, simple("loss", 0.5))))
    second.boards.drain()
    assert {step for _, step, _ in second.points()} == {6}


def test_a_metric_that_is_called_as_the_mark_of_a_line_hides_no_other(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.log("runs", 0)
    first.boards.look(0.0)
    state = (tmp_path / STATE).read_bytes()
    with first.spool.open("ab") as spool:
        spool.write(b'{"t": 1.0, "s": 1, "m": {"o": 1.0}}\n')
    first.log("runs", 1)
    first.boards.drain()
    (tmp_path / STATE).write_bytes(state)
    second = Node(tmp_path, attempt=2)
    second.boards.drain()
    assert second.points() == []


@pytest.mark.parametrize("folder", ["data/train", "."])
def test_event_files_beside_a_data_set_are_found(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.agent.tensorboard._LONGEST_SEARCH_S", 1e-9)  # one entry at a time
    node = Node(tmp_path)
    for number in range(30):
        (node.work / folder / f"class-{number}").mkdir(parents=True)
        (node.work / folder / f"class-{number}" / "picture").touch()
    node.log("lightning_logs/version_0", 1)
    node.log("other/place", 2)
    for now in range(3):
        node.boards.look(float(now))
    assert node.points() == [("loss", 1, 0.5)]
    for now in range(3, 200):
        node.boards.look(float(now))
    assert {step for _, step, _ in node.points()} == {1, 2}


def test_a_search_that_was_not_ended_is_said_where_there_are_event_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("windlass.agent.tensorboard._LAST_SEARCH_S", 1e-9)
    node = Node(tmp_path)
    for number in range(10):
        (node.work / f"d{number}").mkdir()
    node.boards.drain()
    assert not node.spool.exists()
    assert "not all folders were searched" in capsys.readouterr().err
    named = Node(tmp_path, attempt=2, tensorboard=".")
    named.boards.drain()
    [alert] = parse_spool(named.spool.read_bytes(), 0).alerts
    assert "not all folders were searched" in alert.message


def test_a_disk_that_is_full_costs_time_and_no_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.log("runs", 0)
    spool, node.boards._spool = node.boards._spool, "/dev/full"
    node.boards.drain()
    node.boards._spool = spool
    node.boards.drain()
    assert node.points() == [("loss", 0, 0.5)]


def test_what_takes_too_long_at_the_end_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.agent.tensorboard._DRAIN_S", 0.0)
    node = Node(tmp_path)
    node.log("runs", 0)
    node.boards.drain()
    [alert] = parse_spool(node.spool.read_bytes(), 0).alerts
    assert "not read to their end" in alert.message


def test_folders_that_hold_no_event_files_are_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for folder in (".git/logs", "venv/lib", "a/b/c/d/e/f/g/h/i"):
        node.log(folder, 0)
    (node.work / "loop").symlink_to(node.work)
    node.boards.drain()
    assert node.points() == []


def test_large_records_are_passed_over(tmp_path: Path) -> None:
    node = Node(tmp_path)
    path = node.log("runs", 0)
    picture = record(field(5, 2, bytes(100_000)))
    path.write_bytes(path.read_bytes() + picture + record(event(NOW, 1, simple("loss", 1.0))))
    node.boards.drain()
    assert [step for _, step, _ in node.points()] == [0, 1]


@pytest.mark.parametrize(
    ("wanted", "env", "found"),
    [
        (True, {}, {"work"}),
        (True, {"TENSORBOARD_LOGDIR": "../elsewhere"}, {"work", "elsewhere"}),
        (True, {"SM_OUTPUT_DATA_DIR": "s3://bucket"}, {"work"}),
        ("../elsewhere", {}, {"elsewhere"}),
        (False, {}, set()),
    ],
)
def test_where_it_looks(tmp_path: Path, wanted: bool | str, env: dict[str, str], found: set[str]) -> None:
    node = Node(tmp_path, tensorboard=wanted, env=env)
    node.log("runs", 1, tag="work")
    node.log("../elsewhere", 2, tag="elsewhere")
    node.boards.drain()
    assert {name.rpartition("/")[2] for name, _, _ in node.points()} == found


def test_other_nodes_leave_it_to_the_first(tmp_path: Path) -> None:
    node = Node(tmp_path, node_rank=1)
    node.log("runs", 1)
    node.boards.drain()
    assert not node.spool.exists()
    assert not (tmp_path / STATE).exists()


@pytest.mark.parametrize(
    ("folders", "prefixes"),
    [
        (["/w/runs/Nov16"], [""]),
        (["/w/logs/train", "/w/logs/validation"], ["train/", "validation/"]),
        (["/w/runs/x", "/w/runs/x/loss_val", "/w/runs/x/loss_train"], ["", "loss_val/", "loss_train/"]),
        (["/w/a", "/w/b/c"], ["", "b/c/"]),
        (["/w/x/sub", "/w/x"], ["", ""]),
        (["/w/runs/Nov19_06-00-23_vm", "/w/logs/val"], ["", "logs/val/"]),
        (["/w/logs/val", "/w/runs/Nov19_06-00-23_vm"], ["val/", ""]),
        (["/w/a", "/w/runs/Nov19_06-00-23_vm", "/w/b/Nov19_06-00-23_vm"], ["", "2/", "b/"]),
        (
            [f"/w/runs/{name}" for name in ("Nov19_06-00-23_vm", "Nov19_06-00-24_vm", "Nov19_06-00-24_vm/loss_val")],
            ["", "2/", "2/loss_val/"],
        ),
    ],
)
def test_several_writers_have_their_folders_in_names(folders: list[str], prefixes: list[str]) -> None:
    names = Names()
    assert [names.prefix(folder) for folder in folders] == prefixes
    assert [names.prefix(folder) for folder in folders] == prefixes


def test_the_first_writer_has_no_prefix_whatever_the_others_are_called(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.log("runs/x/a_part", 1)  # before `events...` in the alphabet
    node.log("runs/x", 2)
    node.log("runs/earlier/b", 3, tag="late", began=NOW + 1)
    node.boards.drain()
    assert {name for name, _, _ in node.points()} == {"loss", "a_part/loss", "earlier/b/late"}


def test_of_writers_that_began_together_the_first_is_none_of_a_part_of_the_data(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.log("logs/val", 1, tag="acc")
    node.log("runs/Nov19_06-00-23_vm", 2)
    node.boards.drain()
    assert {name for name, _, _ in node.points()} == {"loss", "logs/val/acc"}


def test_lines_are_as_the_ranks_own(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.log("runs", 3, -0.5)
    node.boards.drain()
    [line] = node.spool.read_text().splitlines()
    said = json.loads(line)
    assert {key: said[key] for key in ("t", "s", "m")} == {"t": NOW + 3, "s": 3, "m": {"loss": -0.5}}
