"""Checkpoints of Transformers' Trainer as the run's: `Trainer(…, callbacks=[RunCallback()])`.

    trainer.train(resume_from_checkpoint=resume_path())

The Trainer saves and loads as ever; each folder it has written is then copied into the catalogue, and the store.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from windlass.job.integrations.registration import registration, resume_path

__all__ = ["RunCallback", "resume_path"]


class RunCallback(TrainerCallback):  # type: ignore[misc]
    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """All ranks come here, after the first has written."""
        if state.is_world_process_zero:
            path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            registration().register(path, state.global_step, state.log_history[-1] if state.log_history else {})

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            registration().close()
