"""Checkpoints in one process: what is saved and given back, when, and what happens when the saver is killed."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.torch_processes import start_process  # noqa: E402
from windlass import job  # noqa: E402
from windlass.agent.layout import progress  # noqa: E402
from windlass.agent.progress import read_progress  # noqa: E402
from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.core.manifest import SaveReason  # noqa: E402
from windlass.job.checkpoint.checkpoints import STOPPED, Checkpoints, checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import list_saved, make_folder  # noqa: E402
from windlass.job.checkpoint.interval import Interval  # noqa: E402
from windlass.job.checkpoint.retention import Keep  # noqa: E402
from windlass.job.session import Session  # noqa: E402

pytestmark = pytest.mark.torch


class Small(nn.Module):
    """With a buffer, types of several kinds, and a tensor that is not contiguous."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(7, 3, generator=draw).t())
        self.narrow = nn.Parameter(torch.randn(5, generator=draw).bfloat16())
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("nothing", torch.empty(0, 4))

    def loss(self) -> Any:
        self.count += 1
        return self.weight.square().sum() + self.narrow.float().square().sum()


def trained(ckpt: Checkpoints, model: Small, optimizer: torch.optim.Optimizer, total: int) -> None:
    for _ in ckpt.steps(total):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()


def made(seed: int, kind: Any = torch.optim.AdamW) -> tuple[Small, torch.optim.Optimizer]:
    model = Small(seed)
    return model, kind(model.parameters(), lr=0.1 * (seed + 1))


def test_who_has_left_the_block_is_through_with_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still written then, and what the script does afterwards, is no hang; that it failed is another matter."""
    here = Session({"WINDLASS_NODE_DIR": str(tmp_path)})
    monkeypatch.setattr("windlass.job.checkpoint.checkpoints.session", lambda: here)
    model, optimizer = made(0)
    given: Any = {"model": model, "optimizer": optimizer, "folder": tmp_path / "saved"}
    with contextlib.suppress(KeyError), checkpoints(**given) as ckpt:
        trained(ckpt, model, optimizer, 2)
        raise KeyError
    told = read_progress(str(tmp_path / progress(0)))
    assert (told.step, told.finished_at) == (2, 0.0)
    with checkpoints(**given) as ckpt:
        trained(ckpt, model, optimizer, 4)
    told = read_progress(str(tmp_path / progress(0)))
    assert told.step == 4
    assert told.finished_at > 0
    here.flush()


@pytest.mark.parametrize(
    "kind", [torch.optim.AdamW, torch.optim.Adagrad, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)]
)
def test_everything_comes_back_bit_for_bit(kind: Any, tmp_path: Path) -> None:
    model, optimizer = made(0, kind)
    with checkpoints(model=model, optimizer=optimizer, every=100, folder=tmp_path) as ckpt:
        assert (ckpt.first_step, ckpt.resumed_from) == (0, None)
        trained(ckpt, model, optimizer, 3)
    drawn = (random.random(), torch.rand(2).tolist())
    other, fresh = made(1, kind)
    with checkpoints(model=other, optimizer=fresh, every=100, folder=tmp_path) as ckpt:
        assert ckpt.first_step == 3
        assert (random.random(), torch.rand(2).tolist()) == drawn
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name]), name
        assert fresh.param_groups[0]["lr"] == 0.1
        trained(ckpt, other, fresh, 5)
    for _ in range(2):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize(
    ("stop_at", "reads_from", "workers", "prefetch"), [(3, 0, 0, None), (3, 0, 0, 0), (4, 2, 1, 2), (2, 2, 0, None)]
)
def test_random_numbers_go_on_as_undisturbed(
    stop_at: int, reads_from: int, workers: int, prefetch: int | None, tmp_path: Path
) -> None:
    """A DataLoader draws one when it is started, and that is no reason for another dropout."""
    samples = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))

    def train(folder: Path, total: int) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.3), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        source: Any = torch.utils.data.DataLoader(
            samples,  # type: ignore[arg-type]
            batch_sampler=job.order(20, 8, 1),  # type: ignore[arg-type]
            num_workers=workers,
        )
        loader: Any = job.loader(source, prefetch=prefetch)
        feed: Any = None
        with checkpoints(model=model, optimizer=optimizer, loader=loader, every=1000, folder=folder) as ckpt:
            for step in ckpt.steps(total):
                if feed is None and step >= reads_from:
                    feed = iter(loader)
                inputs = samples if feed is None else next(feed)
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        return model

    whole = train(tmp_path / "whole", 6)
    train(tmp_path / "kept", stop_at)
    rest = train(tmp_path / "kept", 6)
    for left, right in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(left, right)


def test_steps_metrics_and_retention(tmp_path: Path) -> None:
    model, optimizer = made(0)
    keep = Keep(last=1, best="loss")
    with checkpoints(model=model, optimizer=optimizer, every=2, keep=keep, folder=tmp_path) as ckpt:
        for step, loss in enumerate([5.0, 1.0, 5.0, 5.0, 5.0, 4.0, 4.0], start=1):
            ckpt.wait()  # none is left out
            ckpt.step(step, loss=loss)
        ckpt.save()
        ckpt.save()  # the same step: it is there
    found = [
        (saved.manifest.step, saved.manifest.reason, saved.manifest.metrics["loss"]) for saved in list_saved(tmp_path)
    ]
    assert found == [(7, SaveReason.ASKED, 4.0), (2, SaveReason.INTERVAL, 1.0)]


@pytest.mark.parametrize(
    ("memory", "theirs", "told"), [("off", None, "step 40: loss is nan"), (1, None, "step 35: loss"), (1, 35, "theirs")]
)
def test_a_state_that_has_no_numbers_is_told_once_and_takes_no_good_ones_place(
    memory: Any,
    theirs: int | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = Session({})
    for module in ("checkpoints", "sickness"):
        monkeypatch.setattr(f"windlass.job.checkpoint.{module}.session", lambda: here)
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("WINDLASS_MEMORY_DIR", str(tmp_path / "memory"))
    given: Any = {"model": made(0)[0], "every": 10, "keep": 1, "memory": memory, "folder": tmp_path / "saved"}
    with checkpoints(**given) as ckpt:
        for step in range(1, 71):
            here.log(step, None, {"loss": math.nan if step >= 35 else 1.0, "grad_norm": 1.0})
            if step == theirs:
                here.alert("nan", "theirs")  # of `job.steps`, say
            ckpt.step(step)
            ckpt.wait()
    assert [saved.manifest.step for saved in list_saved(tmp_path / "saved")] == [70, 30]
    (alert,) = [line for line in capsys.readouterr().err.splitlines() if "nan: " in line]
    assert told in alert


def test_overflows_while_a_loss_scale_is_found_are_no_sickness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Session({})
    for module in ("checkpoints", "sickness"):
        monkeypatch.setattr(f"windlass.job.checkpoint.{module}.session", lambda: here)
    with checkpoints(model=made(0)[0], folder=tmp_path) as ckpt:
        ckpt.step(1, grad_norm=math.inf, loss_scale=65536.0)
    assert "nan: " not in capsys.readouterr().err


def test_a_warning_saves_and_stops(tmp_path: Path) -> None:
    model, optimizer = made(0)
    before = signal.getsignal(signal.SIGTERM)
    with checkpoints(model=model, optimizer=optimizer, every="1h", folder=tmp_path) as ckpt:
        ckpt.step(1)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as stop:
            ckpt.step(2)
    assert stop.value.code == STOPPED == 143
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [2]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_block_that_is_told_no_step_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = made(0)
    given: Any = {"model": model, "optimizer": optimizer, "folder": tmp_path}
    with checkpoints(**given):
        job.log(1, loss=1.0)  # by one rank alone, maybe, and in the middle of a step: it tells nothing here
    assert "checkpoint-unsaved: nothing is saved, since job.checkpoints was told no step" in capsys.readouterr().err
    assert list_saved(tmp_path) == []
    for steps in (0, 2, 2):  # none, because all are done, is another matter
        with checkpoints(**given) as ckpt:
            trained(ckpt, model, optimizer, steps)
    with checkpoints(**given):
        pass  # whoever only wants to load
    assert "checkpoint-unsaved" not in capsys.readouterr().err


def test_a_warning_ends_who_tells_no_step(tmp_path: Path) -> None:
    script = f"""
import os, signal, time
import torch
from windlass import job
with job.checkpoints(model=torch.nn.Linear(2, 2), folder={str(tmp_path)!r}):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        time.sleep(0.01)
"""
    process = start_process(script, environ=os.environ)
    said = process.communicate()[0]
    assert process.returncode == -signal.SIGTERM
    assert "checkpoint-unsaved: ended by SIGTERM before a step was told" in said


def test_a_killed_saver_costs_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = made(0)
    with checkpoints(model=model, optimizer=optimizer, every=1, folder=tmp_path) as ckpt:
        ckpt.step(1)
        ckpt.wait()
        companion = ckpt._snapshots._saving._companion
        companion._process.kill()
        companion._process.wait()
        ckpt.step(2)
        ckpt.wait()
    assert list_saved(tmp_path)[0].manifest.step == 2
    told = capsys.readouterr().err
    assert "checkpoint-saver: the saver process has ended while it had nothing to do, so no save is lost" in told
    assert "nothing was saved" not in told


def test_a_save_that_comes_too_soon_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = made(0)
    with checkpoints(model=model, optimizer=optimizer, every=1, folder=tmp_path) as ckpt:
        ckpt.step(1)
        ckpt.wait()
        saver = ckpt._snapshots._saving._companion._process
        os.kill(saver.pid, signal.SIGSTOP)  # a disk that is slow
        try:
            for step in (2, 3, 4):
                ckpt.step(step)  # waits for nothing
        finally:
            os.kill(saver.pid, signal.SIGCONT)
        ckpt.wait()
        ckpt.step(5)
    assert sorted(saved.manifest.step for saved in list_saved(tmp_path)) == [1, 2, 5]
    told = [line for line in capsys.readouterr().err.splitlines() if "checkpoint-late" in line]
    assert len(told) == 2  # of steps 3 and 4


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    model, optimizer = made(0)
    with checkpoints(model=model, optimizer=optimizer, folder=tmp_path) as ckpt:
        ckpt.step(1)
    other = nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match=r"has a tensor 'model.count' and 2 more that the model has not"):
        checkpoints(model=other, folder=tmp_path).__enter__()
    larger, _ = made(0)
    larger.more = nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match=r"has no tensor 'model.more.(weight|bias)'"):
        checkpoints(model=larger, folder=tmp_path).__enter__()
    wider, _ = made(0)
    wider.narrow = nn.Parameter(torch.zeros(6))
    with pytest.raises(InvalidInput, match=r"has 'model\.narrow' with the shape"):
        checkpoints(model=wider, folder=tmp_path).__enter__()
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="a parameter of shape"):
        checkpoints(model=nn.Linear(2, 2), optimizer=stranger, folder=tmp_path / "new")._state.take()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every": "500"}, "every is '500', which has no unit; write 500 for steps, or '500s' for a time"),
        ({"memory": "1.5"}, "memory is '1.5', which has no unit; write a whole number for steps, or '1.5s' for a time"),
        ({"every": "ten"}, "every is 'ten'; write a number of steps from 1, or a time such as '10m'"),
        ({"every": [1]}, "every is [1]; write a number of steps from 1, or a time such as '10m'"),
        ({"memory": "sometimes"}, "memory is 'sometimes'; write a number of steps from 1, 'auto', 'off' or a time"),
        ({"keep": "5"}, "keep is '5'; write a number of checkpoints from 1, or job.Keep(last=3, best='loss')"),
        ({"keep": {"last": 3}}, "keep is {'last': 3}; write a number"),
        ({"keep": 2.5}, "keep is 2.5; write a number"),
        ({"model": 3}, "model is int; give a module, or what job.parallelize returned"),
        ({"model": None}, "model is NoneType; give a module"),
        ({"optimizer": [1]}, "optimizer is list; give job.optimizer's, or one of torch's"),
        ({"scheduler": 1}, "scheduler is int, which has no state_dict and load_state_dict"),
        ({"loader": [1]}, "loader is list, which has no state_dict and load_state_dict, so nobody knows its position"),
        ({"loader": job.loader([1])}, "DataLoader(dataset, batch_sampler=job.order(len(dataset), 256))"),
        ({"others": [1]}, "others is list; write names and objects, others={'name': object}"),
        (
            {"folder": "s3://b/x"},
            "folder is 's3://b/x', which is no path; an object store is a store: store='s3://b/x'",
        ),
        ({"folder": "/dev/null/x"}, "the folder of checkpoints cannot be made: [Errno 20] Not a directory"),
        ({"folder": "/dev/null"}, "the folder of checkpoints cannot be made: [Errno 17] File exists: '/dev/null'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_begins(
    given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(InvalidInput) as refused,
        checkpoints(**{"model": made(0)[0], "folder": tmp_path / "c", **given}),
    ):
        pytest.fail("it has begun")
    assert message in refused.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_can_be_read(tmp_path: Path) -> None:
    """By an evaluation, say; and a disk that is full now may have room later."""
    assert make_folder(tmp_path) is None
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(full))
        assert make_folder(tmp_path / "new") is None


def test_the_first_save_of_a_run_does_not_wait_for_the_whole_interval(tmp_path: Path) -> None:
    model, optimizer = made(0)
    with checkpoints(model=model, optimizer=optimizer, every="10m", folder=tmp_path) as ckpt:
        for step, later_s in enumerate([59.0, 61.0, 599.0, 601.0], start=1):
            ckpt._saved_at = time.monotonic() - later_s
            ckpt.step(step)
            ckpt.wait()
        assert [saved.step for saved in list_saved(tmp_path)] == [4, 2]
    with checkpoints(model=model, optimizer=optimizer, every="10m", folder=tmp_path) as ckpt:
        ckpt._saved_at = time.monotonic() - 61.0
        ckpt.step(5)
        ckpt.wait()
        assert [saved.step for saved in list_saved(tmp_path)] == [4, 2]  # it has something to go on from


def test_intervals() -> None:
    assert [step for step in range(1, 7) if Interval(3).is_due(step, since_last_s=0)] == [3, 6]
    assert Interval("10m").is_due(1, since_last_s=600)
    assert not Interval("10m").is_due(1, since_last_s=599)
    assert not Interval("10m").is_due(1, since_last_s=59, is_first=True)
    assert Interval("10m").is_due(1, since_last_s=60, is_first=True)
    assert not Interval("1h").is_due(1, since_last_s=359, is_first=True)
    assert Interval("30s").is_due(1, since_last_s=30, is_first=True)
    assert not Interval(3).is_due(1, since_last_s=3600, is_first=True)
    with pytest.raises(InvalidInput, match="every is 0"):
        Interval(0)
