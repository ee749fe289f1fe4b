"""Checkpoints of real trainings in real processes: going on, other plans, warnings, damage, and plain torch."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

from tests.unit.job.checkpoint.programs import finish, start, train  # noqa: E402
from windlass.core.manifest import SaveReason  # noqa: E402
from windlass.job.checkpoint.folder import check_hashes, check_sizes, list_saved  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


def steps_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if "step" in line]


@pytest.mark.parametrize("plan", ["shard=2", "pipeline=2,accumulate=2", "data=2"])
def test_a_run_that_goes_on_is_the_run_that_was_not_disturbed(plan: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", plan, 6, count=2, every=100)
    before = train(tmp_path / "two", plan, 3, count=2)
    after = train(tmp_path / "two", plan, 6, count=2)
    assert (after[0]["first"], after[0]["taken"]) == (3, 3)
    assert steps_of(before) + steps_of(after) == steps_of(whole)
    assert after[-1]["state"] == whole[-1]["state"]
    for saved in list_saved(tmp_path / "two"):
        check_sizes(saved)
        check_hashes(saved)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(("shard=4", 4), ("tensor=2", 2)), (("data=2", 2), ("data=1", 1))])
def test_another_plan_can_load_it(saved_by: tuple[str, int], loaded_by: tuple[str, int], tmp_path: Path) -> None:
    saved = train(tmp_path, saved_by[0], 3, count=saved_by[1])
    shutil.copytree(tmp_path, tmp_path / "copy")
    expected = train(tmp_path / "copy", saved_by[0], 5, count=saved_by[1])
    loaded = train(tmp_path, loaded_by[0], 5, count=loaded_by[1])
    assert loaded[0]["state"] == saved[-1]["state"]  # bit for bit: weights and the optimizer's moments
    assert (loaded[0]["first"], loaded[0]["taken"]) == (3, 3)
    for ours, theirs in zip(steps_of(loaded), steps_of(expected), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["lr"] == theirs["lr"]


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "nodes"), [("shard=2", 1), ("data=2", 2)])
def test_ranks_go_on_from_memory_when_one_is_killed(plan: str, nodes: int, tmp_path: Path) -> None:
    """Nothing is on the disk. With data=2 each copy holds a half, which the other node must send."""
    memory = tuple(tmp_path / f"node-{number}" for number in range(nodes))
    for node in memory:
        node.mkdir()
    processes = start(tmp_path / "disk", plan, 1_000_000, count=2, every=1000, memory=memory)
    assert processes[0].stdout is not None
    before = []
    while len(steps_of(before)) < 5:
        line = processes[0].stdout.readline()
        assert line, before
        before.append(json.loads(line) if line.startswith("{") else {"text": line})
    processes[1].kill()  # in the middle of something
    for process in processes:
        process.kill()
        before += [json.loads(line) for line in process.communicate()[0].splitlines() if line.startswith('{"step"')]
    on = start(tmp_path / "disk", plan, 20, count=2, every=1000, memory=memory)
    after = finish(on)
    first = next(line for line in after if "first" in line)
    assert first["first"] == first["taken"] >= len(steps_of(before)) - 1
    assert any("from the nodes' memory" in line.get("text", "") for line in after)
    whole = train(tmp_path / "whole", plan, 20, count=2, every=1000)
    assert steps_of(after) == steps_of(whole)[first["first"] :]
    assert after[-1]["state"] == whole[-1]["state"]


def test_plain_torch_reads_it(tmp_path: Path) -> None:
    from tests.unit.job.parallel.models import small_gpt

    train(tmp_path, "shard=2", 2, count=2)
    (saved,) = list_saved(tmp_path)
    model = small_gpt(seed=99)
    state: dict[str, Any] = {"model": model.state_dict()}
    name = next(iter(model.state_dict()))
    state["optimizer"] = {f"state.{name}.exp_avg": torch.zeros_like(model.state_dict()[name])}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=saved.path)
    again = train(tmp_path, "data", 2)  # one process, which has the same weights in one piece
    assert again[0]["first"] == 2
    assert state["optimizer"][f"state.{name}.exp_avg"].abs().sum() > 0
    assert not torch.equal(state["model"][name], small_gpt(seed=99).state_dict()[name])


def test_a_warning_saves_this_very_step_on_all_ranks(tmp_path: Path) -> None:
    processes = start(tmp_path, "shard=2", 1_000_000, count=2, every="1h")
    assert processes[0].stdout is not None
    lines = [processes[0].stdout.readline() for _ in range(4)]  # it is at work
    assert any('"step"' in line for line in lines), lines
    processes[1].send_signal(signal.SIGTERM)  # one of them is told
    said = finish(processes, code=143)
    (saved,) = list_saved(tmp_path)
    assert saved.manifest.reason is SaveReason.WARNED
    assert saved.manifest.step == steps_of(said)[-1]["step"] + 1
    last = saved.manifest.step
    on = train(tmp_path, "shard=2", last + 1, count=2)
    assert (on[0]["first"], on[0]["taken"]) == (last, last)


def test_damage_is_found_said_and_passed_over(tmp_path: Path) -> None:
    train(tmp_path, "data=2", 4, count=2)
    newest, before = list_saved(tmp_path)
    assert (newest.manifest.step, before.manifest.step) == (4, 2)
    path = newest.path / newest.manifest.files[1].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    lines = finish(start(tmp_path, "data=2", 4, count=2))
    first = next(line for line in lines if "first" in line)
    assert (first["first"], first["taken"]) == (2, 2)
    assert any("checkpoint-damaged" in line.get("text", "") and path.name in line["text"] for line in lines)
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [4, 2]  # saved anew
