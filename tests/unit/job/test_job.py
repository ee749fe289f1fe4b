"""The in-job library: identity, params and the metrics spool."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.job import spool as spool_module
from windlass.job.logbook import count_of
from windlass.job.session import Params, Session
from windlass.job.spool import Spool


def points(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.01)


def inside(tmp_path: Path, **extra: str) -> Session:
    return Session({"WINDLASS_RUN_ID": "r-x", "WINDLASS_NODE_DIR": str(tmp_path), "RANK": "1", **extra})


def test_outside_a_run_everything_has_a_default() -> None:
    alone = Session({})
    assert (alone.run_id, alone.rank, alone.world_size, alone.local_rank, alone.attempt) == (None, 0, 1, 0, 1)
    assert alone.is_main
    assert dict(alone.params) == {}
    alone.log(3, 10, {"loss": 0.5})
    alone.flush()
    assert alone.last() == {"loss": 0.5}


def test_identity_comes_from_the_environment(tmp_path: Path) -> None:
    me = inside(tmp_path, WORLD_SIZE="4", LOCAL_RANK="1", WINDLASS_ATTEMPT="2", WINDLASS_SEED="7")
    assert (me.rank, me.world_size, me.local_rank, me.attempt, me.seed) == (1, 4, 1, 2, 7)
    assert not me.is_main


def test_a_broken_variable_is_named() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE is 'four'"):
        Session({"WORLD_SIZE": "four"})
    with pytest.raises(ValueError, match="must be a JSON object"):
        Session({"WINDLASS_PARAMS": "[1]"})


def test_params_by_key_and_by_attribute() -> None:
    params = Session({"WINDLASS_PARAMS": '{"lr": 0.0003, "layers": 4}'}).params
    assert params["lr"] == params.lr == 0.0003
    assert params.get("width", 64) == 64
    with pytest.raises(AttributeError, match="did you mean 'layers'"):
        _ = params.layer
    assert dict(pickle.loads(pickle.dumps(params))) == dict(params)
    assert "layers" in repr(Params({"layers": 4}))


def test_output_dir_exists(tmp_path: Path) -> None:
    folder = Session({"SM_MODEL_DIR": str(tmp_path / "model")}).output_dir
    assert folder == tmp_path / "model"
    assert folder.is_dir()


def test_logged_points_reach_the_spool_by_themselves(tmp_path: Path) -> None:
    me = inside(tmp_path)
    me.log(5, 100, {"loss": 1, "train/acc": True})
    spool = tmp_path / "metrics-1.jsonl"
    eventually(lambda: len(points(spool)) == 1)
    (point,) = points(spool)
    assert (point["s"], point["n"], point["m"]) == (5, 100, {"loss": 1.0, "train/acc": 1.0})
    assert abs(point["t"] - time.time()) < 60


def test_nan_and_infinities_are_kept(tmp_path: Path) -> None:
    me = inside(tmp_path)
    me.log(None, None, {"a": math.nan, "b": -math.inf, "c": 10**400})
    me.flush()
    (point,) = points(tmp_path / "metrics-1.jsonl")
    assert math.isnan(point["m"]["a"])
    assert (point["m"]["b"], point["m"]["c"]) == (-math.inf, math.inf)
    assert "n" not in point


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "x" * 251])
def test_names_that_are_no_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no metric name"):
        inside(tmp_path).log(1, None, {name: 1.0})


def test_values_and_steps_that_are_no_numbers(tmp_path: Path) -> None:
    me = inside(tmp_path)
    with pytest.raises(TypeError, match="metric 'loss' must be a number, not list"):
        me.log(1, None, {"loss": [1.0]})
    with pytest.raises(ValueError, match="`step` is -1"):
        me.log(-1, None, {})
    with pytest.raises(ValueError, match=r"`step` is 1\.5"):
        me.log(1.5, None, {})  # type: ignore[arg-type]
    me.log(2.0, None, {"loss": 1})  # type: ignore[arg-type]
    me.flush()
    assert [point["s"] for point in points(tmp_path / "metrics-1.jsonl")] == [2]


def test_a_call_costs_microseconds(tmp_path: Path) -> None:
    me = inside(tmp_path)
    me.log(0, None, {"loss": 1.0})
    started = time.thread_time()  # what others do with the core meanwhile is not ours
    for step in range(20_000):
        me.log(step, 20_000, {"loss": 1.0, "lr": 0.1})
    each_s = (time.thread_time() - started) / 20_000
    me.flush()
    assert len(points(tmp_path / "metrics-1.jsonl")) == 20_001
    assert each_s < 100e-6  # about 2 µs on an idle core; the bound is for a loaded one


def test_the_last_values_are_known_before_and_after_they_are_written(tmp_path: Path) -> None:
    me = inside(tmp_path)
    me.log(1, None, {"loss": 1.0, "lr": 0.5})
    me.note_metrics(1, {"checkpoint/save_s": 3.0})  # of ours
    assert me.last() == {"loss": 1.0, "lr": 0.5}
    me.flush()
    me.log(2, None, {"loss": 0.5})
    assert me.last() == {"loss": 0.5, "lr": 0.5}
    me.flush()
    assert me.last() == {"loss": 0.5, "lr": 0.5}


def test_points_that_come_after_a_long_pause_are_written_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "_BATCH_S", 0.001)
    me = inside(tmp_path)
    spool = me._spool
    assert spool is not None
    for step in range(3):
        me.log(step, None, {"loss": 1.0})
        eventually(lambda: spool.is_asleep, within_s=60)  # the thread has looked in vain often enough
    eventually(lambda: [point["s"] for point in points(tmp_path / "metrics-1.jsonl")] == [0, 1, 2], within_s=60)


def _child(spool: Spool) -> None:
    spool.add((2.0, 2, None, {"child": 1.0}))


def test_a_forked_worker_writes_its_own_points_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics-0.jsonl"
    spool = Spool(str(path))
    spool.add((1.0, 1, None, {"parent": 1.0}))
    worker = multiprocessing.get_context("fork").Process(target=_child, args=(spool,))
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0
    spool.flush()
    assert sorted(next(iter(point["m"])) for point in points(path)) == ["child", "parent"]


def test_a_process_that_ends_at_once_loses_nothing(tmp_path: Path) -> None:
    script = "from windlass import job\nfor i in range(3): job.log(i, total=3, loss=i)\nprint(job.rank, job.params.lr)"
    env = os.environ | {"WINDLASS_NODE_DIR": str(tmp_path), "RANK": "3", "WINDLASS_PARAMS": '{"lr": 1}'}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "3 1\n"
    assert [point["s"] for point in points(tmp_path / "metrics-3.jsonl")] == [0, 1, 2]


def test_importing_it_loads_nothing_heavy() -> None:
    script = (
        "import sys; from windlass import job; job.log(1, loss=2)\n"
        "print(sorted({'torch', 'numpy', 'httpx', 'pydantic', 'yaml', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_disk_that_refuses_is_reported_once_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "later"
    spool = Spool(str(folder / "metrics-0.jsonl"))
    for step in range(3):
        spool.add((float(step), step, None, {"loss": 1.0}))
        spool.flush()
    assert capsys.readouterr().err.count("cannot be written") == 1
    folder.mkdir()
    spool.flush()
    assert [point["s"] for point in points(folder / "metrics-0.jsonl")] == [0, 1, 2]


@pytest.mark.torch
def test_a_loss_with_a_gradient_is_logged_without_a_warning() -> None:
    torch = pytest.importorskip("torch")
    session = Session({})
    session.log(1, None, {"loss": torch.ones((), requires_grad=True) * 2})
    assert session.last() == {"loss": 2.0}


def test_a_misspelt_name_is_told_the_right_one() -> None:
    import windlass.job

    with pytest.raises(AttributeError, match="has no attribute 'parallelise'; did you mean 'parallelize'"):
        windlass.job.parallelise  # noqa: B018


@pytest.mark.parametrize("step", ["x", [3], -3, 1.5, 2**63])
def test_a_step_that_is_none_is_named(step: Any) -> None:
    with pytest.raises(ValueError, match=r"`step` is .*, but must be a whole number from 0 to 2\*\*63 - 1"):
        count_of("step", step)
