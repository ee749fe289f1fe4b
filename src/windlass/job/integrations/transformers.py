"""Checkpoints of Transformers' Trainer as the run's: `Trainer(…, callbacks=[RunCallback()])`.

    trainer.train(resume_from_checkpoint=resume_path())

The Trainer saves and loads as ever; each folder it has written is then copied into the catalogue, and the store. A run
that is told to stop saves the step that it is at.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from windlass.core.manifest import SaveReason
from windlass.job.integrations.loop import Loop
from windlass.job.integrations.registration import close_registration, registration, resume_path

__all__ = ["RunCallback", "resume_path"]


class RunCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self._loop = Loop()

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self._loop.begin(state.global_step)

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._loop.stepped(state.global_step, state.max_steps):
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # it would come before the save, and take time that there may not be

    def on_prediction_step(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._loop.pause()

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """All ranks come here, after the first has written."""
        if state.is_world_process_zero:
            path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            reason = SaveReason.WARNED if self._loop.is_stopping else SaveReason.INTERVAL
            registration().register(path, state.global_step, state.log_history[-1] if state.log_history else {}, reason)
        if self._loop.is_stopping:
            self._loop.leave()  # now: what the Trainer does at its end may take long, or write the same folder again

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self._loop.is_stopping:  # another callback has had nothing saved
            self._loop.leave()
        self._loop.pause()
        close_registration()
        self._loop.end()
