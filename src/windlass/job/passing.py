"""Data without a position: what goes on reads it from its beginning and passes over the batches of steps that are done.

Which they were may have been drawn from the random generators when the epoch began, as a DataLoader with `shuffle`
does. So a checkpoint has the generators as they were then, and the same batches are drawn once more. Workers that
outlive an epoch go on with what they have drawn in those before: then it has the generators of these as well.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from windlass.job.randomness import random_state, set_random_state
from windlass.job.session import session

_MOST_EPOCHS = 100  # whose generators a checkpoint has: they are 12 kB each


def has_lasting_workers(source: Any) -> bool:
    """They are seeded when the first epoch begins, and not again."""
    return bool(getattr(source, "num_workers", 0)) and bool(getattr(source, "persistent_workers", False))


def one_more(before: tuple[bytes, ...], began: bytes | None) -> tuple[bytes, ...]:
    return before if began is None or len(before) >= _MOST_EPOCHS else (*before, began)


def drawn_from() -> bytes:
    """The random generators, as a checkpoint has them: made once an epoch, and saved with every copy of the state."""
    return pickle.dumps(random_state())


class Passing:
    """`epoch`: the one that the checkpoint was made in; `began`: the generators as it began, None: nobody knows;
    `before`: as those before it began, if workers last from one to the next."""

    def __init__(self, epoch: int, began: bytes | None, before: Sequence[bytes] = (), *, is_lasting: bool) -> None:
        self._epoch, self._began = epoch, began
        self._before = before if is_lasting else ()
        self._lacks_some = is_lasting and len(before) < epoch
        self._now = random_state()  # training goes on with these, whatever is drawn until then

    def begins(self, epoch: int) -> None:
        began = self._before[epoch] if epoch < len(self._before) else None
        if epoch == self._epoch:
            began = self._began
        if began is not None:
            set_random_state(pickle.loads(began))

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
        elif self._lacks_some and session().is_main:
            session().alert(
                "data-position",
                f"the first {step} batches were passed over, but with persistent_workers=True the workers draw from "
                "what they were seeded with in the first epoch, and how the generators were then is not known (the "
                "checkpoint is of an earlier version, of another number of readers, or of one of more than "
                f"{_MOST_EPOCHS} epochs): what they draw themselves, such as augmentation, is drawn anew; without "
                "persistent_workers it goes on exactly",
                step=step,
            )
