"""Taking what a framework has saved into the run's checkpoints, on the first rank, while training goes on.

Frameworks keep few of their own, and remove one as soon as the next is written: what is to be copied is held first.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from windlass.core.manifest import SaveReason
from windlass.job.checkpoint.adopting import Adopter, Unsteady
from windlass.job.session import session


class Registration:
    """One thread, one after another: the copy must not keep the training waiting."""

    def __init__(self) -> None:
        self._adopter = Adopter(session().checkpoint_dir, session().wanted_checkpoints)
        self._asked_at: float | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="windlass-adopting")

    def newest(self) -> str | None:
        """Where the framework can go on from: a file or a folder."""
        self._asked_at = time.monotonic()
        found = self._adopter.newest()
        return None if found is None else str(found)

    def since_asked_s(self) -> float:
        """How long ago somebody asked for the newest one: the framework has loaded it since."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    def register(
        self,
        path: str | os.PathLike[str],
        step: int,
        metrics: Mapping[str, Any],
        reason: SaveReason = SaveReason.INTERVAL,
    ) -> None:
        """It may be removed as soon as this is over."""
        values = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        try:
            held = self._adopter.hold(Path(path), step)
        except OSError:  # on another file system, say: then it is copied at once
            self._take(Path(path), None, step, values, reason)
        else:
            self._thread.submit(self._take, Path(path), held, step, values, reason)

    def settle(self) -> None:
        """All that was registered is here."""
        self._thread.submit(bool).result()

    def close(self, *, wait_s: float | None = None) -> None:
        """All is here, and in the store if there is one and it takes it within that time (None: however long)."""
        self._thread.shutdown()
        self._adopter.close(wait_s=wait_s)

    def _take(self, path: Path, held: Path | None, step: int, metrics: Mapping[str, float], reason: SaveReason) -> None:
        try:
            self._adopter.take(held or path, step=step, metrics=metrics, reason=reason)
        except (Unsteady, OSError) as error:
            session().alert("checkpoint-failed", f"{path} was not taken into the catalogue: {error}", step)
        finally:
            if held is not None:
                self._adopter.let_go(held)


@functools.cache
def registration() -> Registration:
    """This process's. One a process, since its folder has one uploader."""
    return Registration()


def close_registration(*, wait_s: float | None = None) -> None:
    """If there is one; who registers something later has another."""
    if registration.cache_info().currsize:
        mine = registration()
        registration.cache_clear()
        mine.close(wait_s=wait_s)


def resume_path() -> str | None:
    """Where the newest good checkpoint is that was registered, here or in the run's store; None if there is none.
    Every rank may ask where all see the same folder."""
    return registration().newest()


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, RuntimeError):
        return False
