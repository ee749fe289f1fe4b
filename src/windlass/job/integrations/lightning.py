"""Lightning's checkpoints as the run's: `Trainer(callbacks=[RunCallback()])`.

    trainer.fit(model, ckpt_path=resume_path())

Lightning saves and loads as ever; each file it has written is then copied into the catalogue, and the store. A run that
is told to stop saves the step that it is at. `plugins=[RunCheckpointIO()]` is the copying alone.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback

from windlass.core.errors import InvalidInput
from windlass.core.manifest import SaveReason
from windlass.job.integrations.loop import Loop
from windlass.job.integrations.registration import close_registration, registration, resume_path
from windlass.job.session import session

__all__ = ["RunCallback", "RunCheckpointIO", "resume_path"]


class RunCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Lightning calls it on the rank that writes."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        if Path(path).parent != _own_folder():
            registration().register(path, int(checkpoint.get("global_step", 0)), _scores(checkpoint))

    def teardown(self) -> None:
        close_registration()
        super().teardown()


class RunCallback(Callback):  # type: ignore[misc]
    """With `RunCheckpointIO` for the Trainer's own, unless it has one already."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._step = 0
        self._total: int | None = None

    def setup(self, trainer: Any, _model: Any, stage: str) -> None:
        if stage == "fit":
            _use_ours(trainer.strategy)

    def on_train_start(self, trainer: Any, _model: Any) -> None:
        """Lightning has its own handler of SIGTERM by now, which stops without saving: ours comes in its place."""
        self._step, self._total = trainer.global_step, _total(trainer)
        if trainer.is_global_zero:
            shutil.rmtree(_own_folder(), ignore_errors=True)  # of an attempt that was killed while it saved
        self._loop.begin(self._step, is_warned=trainer.received_sigterm)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self._step:
            return  # gradients are being gathered, which no checkpoint has
        self._step = trainer.global_step
        if self._loop.stepped(self._step, self._total):
            self._save(trainer)
            self._loop.leave()

    def on_validation_start(self, _trainer: Any, _model: Any) -> None:
        self._loop.pause()

    def on_train_end(self, _trainer: Any, _model: Any) -> None:
        self._loop.end()

    def on_exception(self, _trainer: Any, _model: Any, _error: BaseException) -> None:
        self._loop.end()

    def _save(self, trainer: Any) -> None:
        path = _own_folder() / f"step={self._step}.ckpt"
        trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            registration().register(path, self._step, trainer.callback_metrics, SaveReason.WARNED)
            shutil.rmtree(path.parent, ignore_errors=True)


def _own_folder() -> Path:
    return session().checkpoint_dir / ".warned"


def _use_ours(strategy: Any) -> None:
    chosen = strategy.checkpoint_io
    if type(chosen) is TorchCheckpointIO:
        strategy.checkpoint_io = RunCheckpointIO()
    elif not isinstance(chosen, RunCheckpointIO):
        raise InvalidInput(
            f"RunCallback takes what Lightning's TorchCheckpointIO writes, and here {type(chosen).__name__} does",
            hint="leave that plugin out, or derive it from RunCheckpointIO; or use `job.checkpoints`",
        )


def _total(trainer: Any) -> int | None:
    """None: it is not known, or steps of several optimizers are counted together."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if len(trainer.optimizers) == 1 and math.isfinite(steps) else None


def _scores(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What Lightning's own callbacks judge by, by its name."""
    found = {}
    for state in (checkpoint.get("callbacks") or {}).values():
        if isinstance(state, dict) and state.get("monitor") and state.get("current_score") is not None:
            found[str(state["monitor"])] = state["current_score"]
    return found
