"""`job.checkpoints`: save while training, and go on from the newest good checkpoint after whatever happened.

    with job.checkpoints(model=parallel, optimizer=optimizer, every="10m") as ckpt:
        for step in ckpt.steps(1000):
            ...

Training waits for the copy into host memory only. SIGTERM makes all ranks save at the same step and stop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windlass.blobs.encoding import choose_encoding
from windlass.core.errors import InvalidInput
from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.announcing import Announcer
from windlass.job.checkpoint.apart import Hold, is_apart, refuse_shared
from windlass.job.checkpoint.clearing import make_room
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import OWN_FOLDER, Saved, list_saved, make_folder, whose
from windlass.job.checkpoint.handing import Handed
from windlass.job.checkpoint.interval import Interval, MemoryPace, refuse_bare
from windlass.job.checkpoint.memory import NodeMemory, block_of
from windlass.job.checkpoint.peers import Exchange, Peers
from windlass.job.checkpoint.restoring import Restored, restore_newest
from windlass.job.checkpoint.retention import Keep, kept
from windlass.job.checkpoint.sickness import Sickness
from windlass.job.checkpoint.snapshots import Snapshots
from windlass.job.checkpoint.state import Stateful, TrainingState
from windlass.job.parallel.optimizer import Optimizer
from windlass.job.parallel.parallelize import Parallel
from windlass.job.session import session

if TYPE_CHECKING:
    from windlass.job.checkpoint.stores.tier import StoreTier

STOPPED = 128 + signal.SIGTERM  # as a shell says of a process that ended because of it
_EXCHANGE_EVERY_S = 0.05
_MOST_CALLS = 8  # between two exchanges: the next steps may be longer than the last
_PATIENCE_S = 30.0  # when the block is left by an exception: for the part of a save that is being written
_TELLING_S = 2.0  # from a signal's handler: what it interrupted may hold the lock that telling takes
_HOW_TO_TELL = "write `for step in ckpt.steps(total):`, or call `ckpt.step(done)` at the end of each step"

_open: set[Path] = set()  # folders that blocks of this process save to


def checkpoints(
    *,
    model: Parallel | nn.Module,
    optimizer: Optimizer | torch.optim.Optimizer | None = None,
    scheduler: Stateful | None = None,
    loader: Stateful | None = None,
    scaler: Stateful | None = None,
    others: Mapping[str, Stateful] | None = None,
    every: int | float | str | None = None,
    keep: Keep | int | None = None,
    folder: str | os.PathLike[str] | None = None,
    store: str | None = None,
    memory: int | float | str | bool | None = None,
    overlap: bool = False,
) -> Checkpoints:
    """Checkpoints of these objects, `every` so many steps or such a time ("10m").

    `keep`: how many of the last ones, or a `Keep`. What is not given is as the run's spec says, or "10m" and 3.
    `others`: whatever else has a state_dict, by name. Every rank calls it. The folder is the run's own, or
    `checkpoints` in the output folder; ranks on several nodes must share it, or have a `store` such as
    "s3://bucket/prefix", which gets a copy of what is saved. `memory`: how often a copy is left in the node's memory,
    where a run has some: as `every`, "off", or "auto" (not given: as the spec says), which is as often as costs little.
    Several processes are in one process group (`job.init()`), or have a folder each, and then no copies in memory.
    `overlap`: copies from a GPU go on beside the next forward and backward; none but optimizers of torch may change
    parameters then.
    """
    if not isinstance(others or {}, Mapping):
        raise InvalidInput(f"others is {type(others).__name__}; write names and objects, others={{'name': object}}")
    if "://" in os.fspath(folder or ""):
        raise InvalidInput(f"folder is {folder!r}, which is no path; an object store is a store: store={folder!r}")
    refuse_bare("every", every)
    refuse_bare("memory", memory)
    wanted = session().wanted_checkpoints
    in_store = {**wanted, "store": store} if store is not None else wanted
    apart = is_apart()
    if apart:
        refuse_shared(folder, in_store.get("store") or in_store.get("stores"))
    given = {"scheduler": scheduler, "scaler": scaler, **(others or {})}
    state = TrainingState(model, optimizer, {name: one for name, one in given.items() if one is not None}, loader)
    place = folder or session().checkpoint_dir
    interval = Interval(wanted.get("every", "10m") if every is None else every)
    pace = MemoryPace(wanted.get("memory", "auto") if memory is None else memory)
    if apart:
        pace.is_off = True  # copies there have the rank's number, and each is the first of its own
    return Checkpoints(state, Path(place).absolute(), interval, _kept(keep, wanted), in_store, pace, overlap)


def _kept(keep: Keep | int | None, wanted: Mapping[str, Any]) -> Keep:
    if isinstance(keep, Keep):
        return keep
    if keep is None:
        return kept(wanted)
    if not isinstance(keep, int) or isinstance(keep, bool):
        raise InvalidInput(f"keep is {keep!r}; write a number of checkpoints from 1, or job.Keep(last=3, best='loss')")
    return Keep(last=keep)


class Checkpoints:
    """`first_step`: how many steps are done already; `resumed_from`: the checkpoint that says so."""

    def __init__(
        self,
        state: TrainingState,
        folder: Path,
        interval: Interval,
        keep: Keep,
        in_store: Mapping[str, Any],
        pace: MemoryPace,
        overlap: bool = False,
    ) -> None:
        self.folder = folder
        self.first_step = 0
        self.resumed_from: Saved | None = None
        self._state = state
        self._interval = interval
        self._keep = keep
        self._in_store = in_store
        self._encode = {name: in_store.get(name) for name in ("compress", "encrypt")}
        choose_encoding(self._encode, os.environ)  # what is missing for it is told now
        self._pace = pace
        self._overlap = overlap
        self._store: StoreTier | None = None
        self._group: list[int] = []  # the ranks that share this one's folder, if not all do
        self._warned = False
        self._metrics: dict[str, float] = {}
        self._sickness = Sickness()
        self._exchange: Exchange | None = None
        self._calls = 0  # since the last exchange was begun
        self._gap = 1  # calls between two exchanges

    def __enter__(self) -> Checkpoints:
        # Who only wants to have what another block has saved may; those that are apart have a hold on their folders.
        self._only_reads = self.folder in _open and not is_apart()
        self._pace.is_off = self._pace.is_off or self._only_reads
        self._peers = Peers()
        if problems := [text for text in self._peers.gather(make_folder(self.folder)) if text]:
            raise InvalidInput(f"the folder of checkpoints cannot be made: {problems[0]}; give a `folder` that can")
        self._hold = Hold(self.folder) if is_apart() else None
        if self._in_store.get("store") or self._in_store.get("stores"):
            from windlass.job.checkpoint.stores.tier import open_tier

            self._store = open_tier(self._in_store, self.folder, self._keep, self._peers)
            self._group = self._store.group if self._store is not None else []
        began = time.monotonic()
        block = block_of(self.folder, session().checkpoint_dir.absolute())
        memory = None if self._pace.is_off else NodeMemory.from_environ(os.environ, block)
        restored = restore_newest(self.folder, self._state, self._peers, self._store, memory)
        if restored is not None:
            self._tell_of(restored, time.monotonic() - began)
        self._step = self.first_step
        self._is_told = restored is not None  # of steps, or will be: by whatever told those that were saved
        self._saved_step = restored.saved_step if restored is not None else 0
        announcer = Announcer(self.folder) if session().is_main else None
        if announcer is not None:
            announcer.look()  # an attempt before this one may have died before it could tell
        self._snapshots = Snapshots(
            self._state,
            self.folder,
            self._peers,
            asdict(self._keep),
            announcer,
            memory=memory,
            restored=restored.in_memory if restored is not None else None,
            pace=self._pace,
            overlaps=self._overlap,
            extras={"group": self._group, "encode": self._encode},
        )
        if self._store is not None:
            self._store.start()
        if not self._only_reads:
            _open.add(self.folder)
        self._saved_at = self._called_at = self._left_at = time.monotonic()
        self._handed = Handed()
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_warning)
        return self

    def _tell_of(self, restored: Restored, took_s: float) -> None:
        self.resumed_from = restored.saved
        self.first_step = restored.saved.manifest.step
        session().restored(self.first_step, took_s)
        if session().is_main:
            place = "the nodes' memory" if restored.in_memory is not None else str(restored.saved.path)
            print(f"windlass: going on from step {self.first_step}, from {place}", file=sys.stderr, flush=True)
            told = {"checkpoint_load_s": took_s, "checkpoint_from_memory": float(restored.in_memory is not None)}
            session().note_metrics(self.first_step, told)
            self._tell_of_another_run(restored.saved)

    def _tell_of_another_run(self, saved: Saved) -> None:
        """Some continue from it on purpose; others have given two runs one folder."""
        if saved.manifest.run_id == session().run_id:
            return
        text = (
            f"the checkpoint of step {saved.step} in {self.folder} is of {whose(saved)}: this one goes on with what "
            f"that one has trained; if it is to begin anew, give it a folder of its own, such as {OWN_FOLDER}"
        )
        session().alert("checkpoint-of-another-run", text, saved.step)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._handed.close()
        try:
            if kind is None:
                self._count_last()
                session().finished()
                self._save_last(SaveReason.FINAL)
                if not self._is_told and session().is_main:
                    self._tell_unsaved(f"nothing is saved, since job.checkpoints was told no step: {_HOW_TO_TELL}")
            is_done = kind is None and self._saved_step == self._step
            self._snapshots.close(wait_s=None if kind is None else _PATIENCE_S, is_done=is_done)
            if self._store is not None:
                self._store.close(wait_s=None if kind is None else _PATIENCE_S)
        finally:
            if not self._only_reads:
                _open.discard(self.folder)
            self._hold = None
            if self._previous is not None:
                signal.signal(signal.SIGTERM, self._previous)

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps that are left, from 0; what `step` wants to know is told it after each."""
        self._is_told = True
        return self._told_steps(total)

    def _told_steps(self, total: int) -> Iterator[int]:
        for number in range(self.first_step, total):
            self._handed.out(number)
            yield number
            self._handed.back()
            self.step(number + 1)

    def _count_last(self) -> None:
        """The step that a `break` at its end has left untold: its update is in the state, so the state is its. One rank
        may have no parameters of its own to update."""
        (done,) = self._peers.largest([self._handed.done])
        if done > self._step:
            self._step = done
            session().stepped(done)

    def step(self, done: int, **metrics: float) -> None:
        """At the end of every step, on every rank: `done` steps are done. Saves if it is time, and stops if told to.

        Raises SystemExit(143) after SIGTERM, when the state of this very step is safe, or an alert has said that it
        cannot be saved.
        """
        if self._only_reads:
            raise InvalidInput(
                f"another block of this process, which is open, saves to {self.folder} too, under the same names; "
                "put all that is trained together into one block (others={'name': object}), or give each a folder: "
                "folder=job.session().checkpoint_dir / 'generator'"
            )
        if done < self._step:
            raise InvalidInput(
                f"step {done} comes after step {self._step}; say how many steps are done, {done} or more"
            )
        self._step, self._is_told = done, True
        session().stepped(done)
        self._metrics.update({name: float(value) for name, value in metrics.items()})
        now = time.monotonic()
        self._pace.stepped(now - self._left_at)
        self._snapshots.settle(done)
        self._snapshots.look()
        if self._store is not None:
            self._store.look()
        warned, due = self._agreed(now)
        if warned:
            self._save_last(SaveReason.WARNED)
            self._snapshots.close(wait_s=None)
            raise SystemExit(STOPPED)
        begun = due and self._begin_due()
        if not begun and self._snapshots.is_memory_due(done):
            self._snapshots.remember(done, self._looked_at_metrics())
        self._left_at = time.monotonic()

    def wait(self) -> None:
        """For the save that goes on, if there is one. Every rank calls it."""
        self._snapshots.wait(self._step)

    def save(self, reason: SaveReason = SaveReason.ASKED) -> bool:
        """Save now and wait until it is safe. Every rank calls it at the same step. False, on all of them: it could not
        be saved, and an alert says why. Where the disk is full, older checkpoints make room for it."""
        self.wait()
        self._heed_failure()
        if self._step == self._saved_step:
            return True
        if self._save_once(reason) and self._make_room():
            self._save_once(reason)
        return self._step == self._saved_step

    def _begin_due(self) -> bool:
        """By the interval. If there was no room for the one before, there would be none for any: older ones go."""
        if self._heed_failure():
            self._make_room(is_last=False)
        return self._begin(SaveReason.INTERVAL)

    def _save_once(self, reason: SaveReason) -> bool:
        """True: it could not be saved for there is no room."""
        self._begin(reason)
        self.wait()
        return self._heed_failure()

    def _heed_failure(self) -> bool:
        """Of the last save, on any rank; True: for there is no room."""
        failed, full = self._snapshots.agree_on_failure()
        if failed:
            self._saved_step = -1
        return full

    def _make_room(self, *, is_last: bool = True) -> bool:
        """True: something has gone, of some folder. `is_last`: there may be no other save after this one."""
        gone = []
        if self._peers.rank == (self._group or [0])[0]:
            gone = make_room(self.folder, self._keep, Disk(), session().run_id, is_last=is_last)
        if gone:
            text = f"the disk is full: {', '.join(gone)} had to go for this step"
            session().alert("checkpoint-room", text, self._step)
        return bool(self._peers.largest([len(gone)])[0])

    def _save_last(self, reason: SaveReason) -> None:
        """Training ends with this step, saved or not; if not, nobody is to miss it."""
        if self.save(reason) or not session().is_main:
            return
        newest = next((f"that of step {saved.manifest.step}" for saved in list_saved(self.folder)), "none")
        self._tell_unsaved(
            f"step {self._step}, the last one, is not saved: the newest checkpoint in {self.folder} is {newest}"
        )

    def _tell_unsaved(self, text: str) -> None:
        session().alert("checkpoint-unsaved", text, self._step if self._is_told else None)
        if session().run_id is not None:
            print(f"windlass: {text}", file=sys.stderr, flush=True)

    def _begin(self, reason: SaveReason) -> bool:
        self._saved_at = time.monotonic()
        if self._step == self._saved_step:
            return False
        begun = self._snapshots.begin(self._step, reason, self._looked_at_metrics())
        if begun:
            self._saved_step = self._step
        return begun

    def _looked_at_metrics(self) -> dict[str, float]:
        metrics = {**session().last(), **self._metrics}
        self._sickness.look(self._step, metrics)
        return metrics

    def _on_warning(self, number: int, _frame: Any) -> None:
        if self._is_told:
            self._warned = True  # at the next step's end, when the state is whole and all ranks are at the same place
            return
        # Nobody may ever ask whether to stop, and there is nothing to save: it goes as it would without this block.
        text = f"ended by SIGTERM before a step was told, so nothing is saved; where none is: {_HOW_TO_TELL}"
        teller = threading.Thread(target=self._tell_unsaved, args=(text,), daemon=True)
        if session().is_main:
            teller.start()
            teller.join(_TELLING_S)
        signal.signal(number, signal.SIG_DFL if self._previous is None else self._previous)
        os.kill(os.getpid(), number)

    def _agreed(self, now: float) -> tuple[bool, bool]:
        """Whether to stop and whether to save, the same on every rank.

        What one rank alone knows (a signal, rank 0's clock) is exchanged in the background and heeded by all when the
        next exchange is begun: nobody waits for it, and steps of a millisecond do not pay for it every time.
        """
        is_first = self._saved_step == 0
        due = self._interval.is_due(self._step, since_last_s=now - self._saved_at, is_first=is_first)
        if self._peers.world_size == 1:
            return self._warned, due
        warned, by_clock = False, False
        self._calls += 1
        if self._calls >= self._gap:
            if self._exchange is not None:
                agreed_warned, agreed_clock, self._gap = self._exchange.result()
                warned, by_clock = bool(agreed_warned), bool(agreed_clock)
            per_call_s = max((now - self._called_at) / self._calls, 1e-6)
            self._calls, self._called_at = 0, now
            mine = [int(self._warned), 0, 0]
            if self._peers.rank == 0:
                mine[1] = int(due and not by_clock)
                mine[2] = max(1, min(_MOST_CALLS, int(_EXCHANGE_EVERY_S / per_call_s)))
            self._exchange = None if warned else self._peers.begin_largest(mine)
        return warned, by_clock if self._interval.steps is None else due
