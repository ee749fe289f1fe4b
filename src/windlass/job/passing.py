"""Data without a position: what goes on reads it from its beginning and passes over the batches of steps that are done.

Which they were may have been drawn from the random generators when the epoch began, as a DataLoader with `shuffle`
does. So a checkpoint has the generators as they were then, and the same batches are drawn once more.
"""

from __future__ import annotations

import pickle

from windlass.job.randomness import random_state, set_random_state
from windlass.job.session import session


def drawn_from() -> bytes:
    """The random generators, as a checkpoint has them: made once an epoch, and saved with every copy of the state."""
    return pickle.dumps(random_state())


class Passing:
    """`epoch`: the one that the checkpoint was made in; `began`: the generators as it began, None: nobody knows."""

    def __init__(self, epoch: int, began: bytes | None) -> None:
        self._epoch, self._began = epoch, began
        self._now = random_state()  # training goes on with these, whatever is drawn until then

    def begins(self, epoch: int) -> None:
        if epoch == self._epoch and self._began is not None:
            set_random_state(pickle.loads(self._began))

    def is_over(self, step: int, drew_from: bytes | None) -> None:
        """The batches of `step` steps are passed over. `drew_from`: the generators as the last of the epochs began."""
        has_drawn = drawn_from() != drew_from
        set_random_state(self._now)
        if has_drawn and self._began is None and session().is_main:
            session().alert(
                "data-position",
                f"the first {step} batches were passed over, but the data draws its order from the random generators, "
                "and how they were when the epoch began is not known (the checkpoint is of an earlier version, or of "
                "another number of readers): samples of this epoch may come twice, or not at all; a DataLoader with "
                "batch_sampler=job.order(...) knows its position",
                step=step,
            )
