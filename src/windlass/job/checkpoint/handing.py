"""The numbers that `ckpt.steps` hands out: whether the last one was trained on, if the loop was left before it came
back for the next."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class Handed:
    """From its beginning to `close` it sees every step of every optimizer of torch's."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._is_trained = False
        self._hook = register_optimizer_step_post_hook(self._after_update)

    def out(self, number: int) -> None:
        self._number, self._is_trained = number, False

    def back(self) -> None:
        """The loop has asked for the next: whoever asks tells this one."""
        self._number = None

    @property
    def done(self) -> int:
        """How many steps are done with the number that is out; 0: there is none, or its step came to nothing."""
        return self._number + 1 if self._number is not None and self._is_trained else 0

    def close(self) -> None:
        self._hook.remove()

    def _after_update(self, *_: Any) -> None:
        self._is_trained = True
