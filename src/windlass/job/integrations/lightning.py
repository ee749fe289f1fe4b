"""Lightning's checkpoints as the run's: `Trainer(plugins=[RunCheckpointIO()])`.

    trainer.fit(model, ckpt_path=resume_path())

Lightning saves and loads as ever; each file it has written is then copied into the catalogue, and the store.
"""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from windlass.job.integrations.registration import registration, resume_path

__all__ = ["RunCheckpointIO", "resume_path"]


class RunCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Lightning calls it on the rank that writes."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        registration().register(path, int(checkpoint.get("global_step", 0)), _scores(checkpoint))

    def teardown(self) -> None:
        registration().close()
        super().teardown()


def _scores(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What Lightning's own callbacks judge by, by its name."""
    found = {}
    for state in (checkpoint.get("callbacks") or {}).values():
        if isinstance(state, dict) and state.get("monitor") and state.get("current_score") is not None:
            found[str(state["monitor"])] = state["current_score"]
    return found
