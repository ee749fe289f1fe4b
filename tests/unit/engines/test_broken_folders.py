"""Node folders that a program has written into, or that lost power has cut short: an end on record is reported all the
same, and what only tells of a node counts as not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from windlass.agent import kernel, layout, outcome
from windlass.agent.files import write_json
from windlass.core.exits import ExitReason
from windlass.engines.contract import Engine, EngineContext, Phase
from windlass.engines.folders.node import NodeFolder
from windlass.engines.folders.plans import node_dir
from windlass.engines.local.engine import LocalEngine
from windlass.engines.slurm.engine import SlurmEngine
from windlass.testing.clock import FakeClock
from windlass.wire.slurm import SlurmConfig

ATTEMPT = "r-bcdfghjkmn.1"
SAMPLE = {"at": 2.0, "cpu_percent": 1.0, "rss_bytes": 1, "peak_rss_bytes": 1, "cpu_seconds": 1.0}
BROKEN = ["", '{"state": "ru', "[]", "[" * 100_000, "\0" * 40]
# What lies beside an outcome and is read for what is not known then.
BESIDE = [layout.ENVIRONMENT, layout.USAGE, layout.STATUS, layout.STOP, layout.NOTICE]


def local(folder: Path) -> Engine:
    return LocalEngine(folder, folder / "blobs", notify=lambda: None, clock=FakeClock(), warm=False)


def slurm(folder: Path) -> Engine:
    context = EngineContext(
        name="slurm",
        home=folder,
        clock=FakeClock(),
        notify=lambda: None,
        code=cast(Any, None),
        nodes=cast(Any, None),
        server_url=None,
    )
    return SlurmEngine(SlurmConfig(type="slurm", shared_dir=folder), context)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def write_attempt(home: Path, *, nodes: int = 1) -> list[Path]:
    folders = [node_dir(home, ATTEMPT, rank) for rank in range(nodes)]
    for folder in folders:
        folder.mkdir(parents=True)
        plan = {"nnodes": nodes, "grace_s": 5.0, "node_names": [f"n{rank}" for rank in range(nodes)]}
        write_json(str(folder / layout.PLAN), plan)
    return folders


def end(folder: Path) -> None:
    outcome.write(str(folder), outcome.summary(reason="completed", message="", started_at=1.0, ended_at=2.0))


@pytest.mark.parametrize("text", BROKEN, ids=["empty", "cut", "list", "deep", "zeros"])
@pytest.mark.parametrize("open_engine", [local, slurm])
def test_an_end_is_reported_whatever_lies_beside_it(
    tmp_path: Path, opened: ExitStack, open_engine: Callable[[Path], Engine], text: str
) -> None:
    (folder,) = write_attempt(tmp_path)
    end(folder)
    for name in BESIDE:
        (folder / name).write_text(text)
    engine = open_engine(tmp_path)
    opened.callback(engine.close)
    seen = engine.poll([ATTEMPT])[ATTEMPT]
    assert (seen.phase, seen.usage, seen.environment) == (Phase.ENDED, None, None)
    assert seen.exit is not None
    assert seen.exit.reason is ExitReason.COMPLETED


@pytest.mark.parametrize("open_engine", [local, slurm])
def test_so_it_is_without_plans_that_can_be_read_and_with_strange_ones_beside(
    tmp_path: Path, opened: ExitStack, open_engine: Callable[[Path], Engine]
) -> None:
    folders = write_attempt(tmp_path, nodes=2)
    for folder in folders:
        end(folder)
        (folder / layout.USAGE).write_text('{"at": "noon"}')
        (folder / layout.STATUS).write_text('{"recoveries": 3}')
    (folders[1] / layout.PLAN).write_text("")
    engine = open_engine(tmp_path)
    opened.callback(engine.close)
    seen = engine.poll([ATTEMPT])[ATTEMPT]
    assert (seen.phase, seen.usage, seen.recoveries) == (Phase.ENDED, None, ())


def test_a_plan_that_cannot_be_read_says_nothing_of_nodes_that_may_go_on(tmp_path: Path, opened: ExitStack) -> None:
    folders = write_attempt(tmp_path, nodes=2)
    end(folders[1])
    (folders[1] / layout.PLAN).write_text("")
    for engine in (local(tmp_path), slurm(tmp_path)):
        opened.callback(engine.close)
        with pytest.raises(ValueError, match="Expecting value"):
            engine.poll([ATTEMPT])


def test_a_live_node_is_seen_whatever_its_usage_and_surroundings(tmp_path: Path, opened: ExitStack) -> None:
    (folder,) = write_attempt(tmp_path)
    own = kernel.stat(1)
    assert own is not None
    status = {"pid": 1, "pid_start": own.start, "boot_id": kernel.boot_id(), "sid": 1, "started_at": 1.0}
    write_json(str(folder / layout.STATUS), {**status, "state": "running"})
    for name in (layout.ENVIRONMENT, layout.USAGE):
        (folder / name).touch()
    engine = local(tmp_path)
    opened.callback(engine.close)
    assert engine.poll([ATTEMPT])[ATTEMPT].phase is Phase.RUNNING
    write_json(str(folder / layout.USAGE), SAMPLE)
    write_json(str(folder / layout.ENVIRONMENT), {"host": "n0"})
    seen = engine.poll([ATTEMPT])[ATTEMPT]
    assert (seen.usage, seen.environment) == (SAMPLE, {"host": "n0"})


def test_a_status_that_cannot_be_read_decides_something_until_the_end_is_on_record(tmp_path: Path) -> None:
    node = NodeFolder(path=tmp_path, attempt_id=ATTEMPT, rank=0)
    (tmp_path / layout.STATUS).touch()
    with pytest.raises(ValueError, match="Expecting value"):
        node.status()
    end(tmp_path)
    assert node.status() is None
