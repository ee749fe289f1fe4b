"""Which checkpoint of a folder goes to the store next: `decide_upload`, pure."""

from __future__ import annotations

from collections.abc import Collection

from windlass.core.manifest import Manifest, SaveReason
from windlass.job.checkpoint.interval import Interval

# Saved because something ends, or because the script wanted it: worth a place whatever the interval says.
_ALWAYS = frozenset((SaveReason.FINAL, SaveReason.WARNED, SaveReason.ASKED, SaveReason.RESCUED))


def decide_upload(there: Collection[Manifest], stored: Collection[Manifest], every: Interval | None) -> Manifest | None:
    """The newest that is wanted and newer than all that are stored; None: nothing is to be sent.

    Older ones are left out: while a slow store takes one, the next is made. `every`: None sends whichever is the
    newest at the time; steps, those at multiples of it; a time, one that much younger than the last.
    """
    last = max(stored, key=_age, default=None)
    wanted = [
        manifest
        for manifest in there
        if (last is None or _age(manifest) > _age(last)) and _is_wanted(manifest, last, every)
    ]
    return max(wanted, key=_age, default=None)


def _is_wanted(manifest: Manifest, last: Manifest | None, every: Interval | None) -> bool:
    if every is None or manifest.reason in _ALWAYS:
        return True
    if every.steps is not None:
        return manifest.step % every.steps == 0
    return last is None or every.is_due(manifest.step, since_last_s=manifest.created_at - last.created_at)


def _age(manifest: Manifest) -> tuple[int, float]:
    return manifest.step, manifest.created_at
