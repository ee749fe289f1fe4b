"""What does a checkpoint cost a training loop, against `torch.save`, `dcp.save` and `dcp.async_save` in the same run?

A loop of steps that change every byte of a model and its Adam state runs with one save in it, and without. The stall is
the difference, so everything that slows training counts: the copy, and what the background takes from the loop. Each
round has every arm once. Speeds of writing and reading are over those of plain files of the same size, right before
them. Both are read cold: the page cache was told to forget them, and the machine has rested since, for a virtual one
gives memory that is free for some seconds back to its host: a plain read into pages that were free a moment ago is up
to six times as fast as one that has to fetch pages first, as whoever goes on after a restart does. Both are compared
without a rest as well. The checkpoint that is loaded has one before it, as in most runs. With a GPU the state is there:
`--gb 16.2` is that of a model of 1.3 billion parameters.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also as `python bench/checkpoint.py`

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from bench.harness import Figure, Report, Table, alternate, finish, medians, options, tell, workspace
from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.checkpoints import Checkpoints, checkpoints
from windlass.job.checkpoint.copying import has_free_core
from windlass.job.checkpoint.folder import list_saved

_CHUNK = 8 << 20
_TENSOR_BYTES = 16 << 20
_TOKENS = 32 * 1024  # a step on a GPU
STALLS, SPEEDS = "stalls", "speeds"
_ROOM_FOR_TWO = 5
_REST_S = 10.0
_LOOP_S = 4.0  # on a CPU: about as long as a save of 1 GB goes on in the background


class Training:
    """A model of so many bytes with its optimizer's state, and steps that change all of it."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        count = max(1, size_bytes // (3 * _TENSOR_BYTES))
        self.device = device
        self.model = nn.ParameterList([torch.randn(_TENSOR_BYTES // 4, device=device) for _ in range(count)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        # As many products as a forward and a backward pass make: 6 operations for every parameter and token, of a batch
        # that a GPU of that size takes, or of hardly any on a CPU. Then the update.
        side, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
        parameters = count * _TENSOR_BYTES // 4
        self.products = round(6 * parameters * _TOKENS / (2 * side**3)) if device.type == "cuda" else 4
        self.factor = torch.randn(side, side, device=device, dtype=dtype)
        self.step()

    def step(self) -> None:
        for _ in range(self.products):
            self.factor = (self.factor @ self.factor).clamp_(-1, 1)
        self.optimizer.step()

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def steps_for(self, most: int) -> int:
        """How many make a loop: on a CPU, where one takes as long as the state is large, no more than are needed."""
        if self.device.type == "cuda":
            return most
        began = time.perf_counter()
        self.step()
        return max(2, min(most, round(_LOOP_S / (time.perf_counter() - began))))

    def state(self) -> dict[str, Any]:
        """Flat, as every peer likes it best."""
        found: dict[str, Tensor] = {f"model.{name}": tensor.detach() for name, tensor in self.model.named_parameters()}
        for number, state in enumerate(self.optimizer.state.values()):
            found |= {f"optimizer.{number}.{kind}": value for kind, value in state.items()}
        return found

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())


class Arms:
    def __init__(self, training: Training, folder: Path, steps: int, ours: Checkpoints) -> None:
        self._training = training
        self._folder = folder
        self._steps = steps
        self._checkpoints = ours
        self._saves = 0
        self._done = 0
        self.calls: dict[str, list[float]] = {}  # by arm: how long the call itself took

    def _stall(self, arm: str, save: Callable[[Path], Any]) -> float:
        """The loop with one save in it against the loop without, right after each other."""
        without = self._timed(lambda _: None)

        def timed(place: Path) -> Any:
            began = time.perf_counter()
            pending = save(place)
            self.calls.setdefault(arm, []).append(time.perf_counter() - began)
            return pending

        return self._timed(timed) - without

    def _timed(self, save: Callable[[Path], Any]) -> float:
        """Seconds of the loop with one save after its first step; what still goes on at its end is not waited for."""
        self._training.settle()
        self._saves += 1
        place = self._folder / f"peer-{self._saves}"
        gc.collect()
        began = time.perf_counter()
        self._training.step()
        pending = save(place)
        for _ in range(self._steps):
            self._training.step()
            self._checkpoints._snapshots.settle(self._done)  # as `step` does first of all: a copy beside it is written
        self._training.settle()
        took = time.perf_counter() - began
        if hasattr(pending, "result"):
            pending.result()
        shutil.rmtree(place, ignore_errors=True)
        os.sync()
        return took

    def windlass(self) -> float:
        return self._ours("windlass", beside=False)

    def windlass_beside(self) -> float:
        """The copy goes on beside the next step's products: on a GPU, or on a core that the loop leaves free."""
        return self._ours("windlass, beside", beside=True)

    def _ours(self, arm: str, *, beside: bool) -> float:
        ours = self._checkpoints
        ours._snapshots._copier._never = not beside
        self._done += 1

        def save(_: Path) -> None:
            ours.step(self._done)

        took = self._stall(arm, save)
        ours.wait()
        return took

    def torch_save(self) -> float:
        def save(place: Path) -> None:
            place.mkdir()
            with (place / "state.pt").open("wb") as file:
                torch.save(self._training.state(), file)
                os.fsync(file.fileno())

        return self._stall("torch.save", save)

    def dcp_save(self) -> float:
        return self._stall("dcp.save", lambda place: dcp.save(self._training.state(), checkpoint_id=place) and None)

    def dcp_async_save(self) -> float:
        return self._stall("dcp.async_save", lambda place: dcp.async_save(self._training.state(), checkpoint_id=place))


def pinned_copy(training: Training) -> float:
    """Seconds that the bytes take from the GPU into pinned memory, with nothing else."""
    tensors = [tensor for tensor in training.state().values() if tensor.is_cuda]
    room = torch.empty(max(tensor.nbytes for tensor in tensors), dtype=torch.uint8, pin_memory=True)
    training.settle()
    began = time.perf_counter()
    for tensor in tensors:
        room[: tensor.nbytes].copy_(tensor.view(-1).view(torch.uint8), non_blocking=True)
    training.settle()
    return time.perf_counter() - began


def raw_write(path: Path, size: int) -> float:
    """GB/s of a plain file, with its fsync."""
    chunk = memoryview(os.urandom(_CHUNK))
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, _CHUNK):
            file.write(chunk)
        os.fsync(file.fileno())
    return size / (time.perf_counter() - began) / 1e9


def raw_write_direct(path: Path, size: int) -> float:
    """The same past the page cache, as the saver writes: what it could reach if there were nothing to hash."""
    with mmap.mmap(-1, _CHUNK) as chunk:
        chunk[:] = os.urandom(_CHUNK)
        began = time.perf_counter()
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
        except OSError:
            return float("nan")  # a file system without it
        try:
            with contextlib.suppress(OSError):
                os.posix_fallocate(fd, 0, size)
            for at in range(0, size, _CHUNK):
                os.pwrite(fd, chunk, at)
            os.fsync(fd)
        finally:
            os.close(fd)
        return size / (time.perf_counter() - began) / 1e9


def forget(paths: list[Path]) -> None:
    """Out of the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def raw_read(path: Path) -> float:
    forget([path])
    buffer = bytearray(_CHUNK)
    size, began = path.stat().st_size, time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return size / (time.perf_counter() - began) / 1e9


def raw_read_direct(path: Path) -> float:
    """The same past the page cache, as checkpoints are read: what could be reached if there were nothing to hash."""
    size = path.stat().st_size
    with mmap.mmap(-1, _CHUNK) as chunk:
        chunk[:] = bytes(_CHUNK)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return float("nan")  # a file system without it
        try:
            began = time.perf_counter()
            for at in range(0, size, _CHUNK):
                os.preadv(fd, [chunk], at)
        finally:
            os.close(fd)
        return size / (time.perf_counter() - began) / 1e9


def our_write(training: Training, ours: Checkpoints, step: int) -> float:
    """GB/s from the order to the commit, while the trainer does nothing."""
    ours._step = step
    training.settle()
    ours._begin(SaveReason.ASKED)
    answer = ours._snapshots._saving._companion.answer(wait_s=None)
    ours._snapshots._slots.end_saving()
    assert answer is not None
    assert answer["error"] is None, answer["error"]
    return float(answer["size_bytes"]) / float(answer["took_s"]) / 1e9


def our_read(size: int, device: torch.device, folder: Path, *, rest_s: float = _REST_S) -> tuple[float, Training]:
    """GB/s of finding, verifying and loading the newest checkpoint into new objects."""
    fresh = Training(size, device)
    newest = list_saved(folder)[0]
    forget([path for path in newest.path.iterdir() if path.is_file()])
    time.sleep(rest_s)
    began = time.perf_counter()
    with checkpoints(model=fresh.model, optimizer=fresh.optimizer, folder=folder, every="1000h") as ckpt:
        fresh.settle()
        took = time.perf_counter() - began
        assert ckpt.resumed_from is not None
    return newest.manifest.size_bytes / took / 1e9, fresh


def same(left: Training, right: Training) -> bool:
    theirs = right.state()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in left.state().items())


def measure(
    report: Report, folder: Path, *, gb: float, rounds: int, steps: int, device: torch.device, parts: tuple[str, ...]
) -> None:
    training = Training(int(gb * 1e9), device)
    place = folder / "ours"
    # With a raw file and the next one, the disk has to hold the state so many times and twice more. Where there is only
    # one checkpoint, its weights are not put in place before all of it has been verified, which takes longer.
    kept = 2 if shutil.disk_usage(folder).free > _ROOM_FOR_TWO * training.size_bytes else 1
    with checkpoints(
        model=training.model, optimizer=training.optimizer, folder=place, every=1, keep=kept, overlap=True
    ) as ours:
        arms = Arms(training, folder, training.steps_for(steps), ours)
        arms.windlass()  # the arena is made once
        if STALLS in parts:
            measure_stalls(report, training, arms, rounds)
        if SPEEDS in parts:
            measure_speeds(report, training, folder, ours, rounds)


def measure_stalls(report: Report, training: Training, arms: Arms, rounds: int) -> None:
    on_gpu = training.device.type == "cuda"
    arms.dcp_async_save()  # what peers cache is made once, too
    arms.calls.clear()
    chosen = {
        "windlass": arms.windlass,
        "torch.save": arms.torch_save,
        "dcp.save": arms.dcp_save,
        "dcp.async_save": arms.dcp_async_save,
    }
    if on_gpu or has_free_core():
        chosen["windlass, beside"] = arms.windlass_beside
    stalls = medians(alternate(chosen, rounds=rounds))
    calls = medians(arms.calls)
    beside_s = stalls.get("windlass, beside")
    if min(stall for arm, stall in stalls.items() if arm != "windlass, beside") <= 0:
        # Loops with a save that were faster than those without: noise, of which no ratio is to be made.
        report.notes.append("No figure of the stalls: the machine was too busy to tell a save from none.")
    else:
        ours_s, async_s, plain_s = stalls["windlass"], stalls["dcp.async_save"], stalls["torch.save"]
        report.figures["stall_vs_dcp_async"] = Figure(value=ours_s / async_s, target=0.05, better="lower")
        report.figures["stall_vs_torch_save"] = Figure(value=ours_s / plain_s, target=0.02, better="lower")
        if beside_s is not None and beside_s > 0:
            report.figures |= {
                "stall_beside_vs_dcp_async": Figure(value=beside_s / async_s, target=0.05, better="lower"),
                "stall_beside_vs_torch_save": Figure(value=beside_s / plain_s, target=0.02, better="lower"),
            }
        elif beside_s is not None:
            report.notes.append("No figure of copies beside a step: the loop was as fast with one as without.")
        if on_gpu:
            copy_s = min(pinned_copy(training) for _ in range(3))
            report.figures["stall_vs_pinned_copy"] = Figure(value=ours_s / copy_s, target=2.0, better="lower")
            stalls["pinned copy alone"] = calls["pinned copy alone"] = copy_s
    report.tables.append(
        Table(
            title=f"Stall of one save of {training.size_bytes / 1e9:.2f} GB, {training.device.type}",
            header=("arm", "stall s", "the call alone s"),
            rows=[(name, stall, calls[name]) for name, stall in stalls.items()],
        )
    )


def measure_speeds(report: Report, training: Training, folder: Path, ours: Checkpoints, rounds: int) -> None:
    size = training.size_bytes
    names = (
        "raw write",
        "raw write, direct",
        "our write",
        "raw read, no rest",
        "raw read",
        "raw read, direct",
        "our read",
        "our read, no rest",
    )
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        rates["raw write, direct"].append(raw_write_direct(folder / "direct", size))
        (folder / "direct").unlink(missing_ok=True)
        rates["raw write"].append(raw_write(folder / "raw", size))
        rates["our write"].append(our_write(training, ours, 1000 + number))
        rates["raw read, direct"].append(raw_read_direct(folder / "raw"))
        rates["raw read, no rest"].append(raw_read(folder / "raw"))
        forget([folder / "raw"])
        time.sleep(_REST_S)
        rates["raw read"].append(raw_read(folder / "raw"))
        (folder / "raw").unlink()  # the disk need not hold all of it at once
        for name, rest_s in (("our read, no rest", 0.0), ("our read", _REST_S)):
            rate, fresh = our_read(size, training.device, folder / "ours", rest_s=rest_s)
            rates[name].append(rate)
            if not same(training, fresh):
                raise AssertionError("what was loaded is not what was saved")
            del fresh
        tell(f"round {number + 1}/{rounds}  " + "  ".join(f"{k}: {v[-1]:.3g} GB/s" for k, v in rates.items()))
    # Of neighbours in time: disks of virtual machines are at times twice as fast as at others.
    persist, load, load_no_rest = (
        statistics.median(our / raw for our, raw in zip(rates[ours], rates[theirs], strict=True))
        for ours, theirs in (
            ("our write", "raw write"),
            ("our read", "raw read"),
            ("our read, no rest", "raw read, no rest"),
        )
    )
    report.figures |= {
        "loaded_equal": Figure(value=1.0, target=1.0, better="higher"),  # or it would not have come here
        "persist_vs_raw": Figure(value=persist, target=0.85, better="higher"),
        "load_vs_raw": Figure(value=load, target=0.8, better="higher"),
        "load_vs_raw_no_rest": Figure(value=load_no_rest, target=0.8, better="higher"),
    }
    rows = [[name, statistics.median(found), min(found), max(found)] for name, found in rates.items()]
    report.tables.append(Table(title=f"Speed, {rounds} rounds", header=("GB/s", "median", "least", "most"), rows=rows))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--gb", type=float, help="size of the state; default 1, with --quick 0.4")
    parser.add_argument("--threads", type=int, help="of the loop on a CPU; default: one for each core")
    parser.add_argument("--part", action="append", choices=(STALLS, SPEEDS), help="default: both")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if given.threads:
        torch.set_num_threads(given.threads)
    report = Report(bench="checkpoint")
    with workspace() as folder:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        dist.init_process_group("cpu:gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        measure(
            report,
            folder,
            gb=given.gb or (0.4 if given.quick else 1.0),
            rounds=given.rounds or 3,
            steps=10 if given.quick else 20,
            device=device,
            parts=tuple(given.part or (STALLS, SPEEDS)),
        )
        dist.destroy_process_group()
    report.notes.append(
        "The background's work on the loop's own cores is part of the stall; so it is on a machine of 2."
    )
    finish(report)


if __name__ == "__main__":
    main()
