"""What runs want, once for all that want the same: in the pool's numbers, with the kinds of nodes that suit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windlass.core.accelerators import resource_of
from windlass.scheduling.core.types import Health, Want

if TYPE_CHECKING:
    from windlass.scheduling.core.pool import Pool


class Form:
    """One alternative of a shape."""

    __slots__ = ("cpus", "gpus", "groups", "memory", "most", "nodes", "part", "types", "want")

    def __init__(self, want: Want) -> None:
        self.want = want
        whole = want.gpus >= 1 or not want.gpus
        self.gpus = int(want.gpus) if whole else 1
        self.part = 0 if whole else round(want.gpus * 1000)
        self.cpus = round(want.cpus * 1000)
        self.memory = want.memory_bytes
        self.nodes = want.nodes
        self.most = max(want.nodes, want.most)
        self.groups: list[list[int]] = []  # of kinds; a gang stays within one of them, the first that has room
        self.types: frozenset[str] = frozenset()  # of all that it could get, as `gpu:h100`


class Shape:
    """All alternatives, in order of preference."""

    __slots__ = ("forms", "is_blocked", "is_possible", "share", "soon_changes", "wants")

    def __init__(self, wants: tuple[Want, ...], pool: Pool, *, by_type: bool = False) -> None:
        """`by_type`: where amounts of types are guaranteed or limited, a want that names no type is one alternative for
        each, so that what one type leaves is had without the others."""
        self.wants = wants
        self.share = 0.0  # dominant, of the cluster
        self.soon_changes = 0  # when it was last seen that what comes back soon is not enough
        self.is_blocked = False  # there is no room now, and in this pass there will not be
        self.forms = []
        for sound_only in (True, False):
            self.forms = [form for want in wants for form in _forms(want, pool, sound_only, by_type)]
            if self.forms:
                break
        self.is_possible = bool(self.forms)  # were the cluster idle


def _forms(want: Want, pool: Pool, sound_only: bool, by_type: bool) -> list[Form]:
    whole = Form(want)
    kinds = pool.kinds
    suited = [
        at for at, kind in enumerate(kinds) if kind.suits(whole) and (kind.health is Health.SOUND or not sound_only)
    ]
    whole.groups = _groups(whole, suited, pool)
    found = [whole]
    types = list(dict.fromkeys(kinds[at].gpu_type for at in suited)) if by_type and want.gpus else []
    if len(types) > 1:
        whole.groups = [group for group in whole.groups if len({kinds[at].gpu_type for at in group}) > 1]
        found = []
        for gpu_type in types:
            form = Form(want)
            form.groups = _groups(form, [at for at in suited if kinds[at].gpu_type == gpu_type], pool)
            found.append(form)
        if want.most > 1:
            found.append(whole)  # a gang of several types
    for form in found:
        form.types = frozenset(
            resource_of(kinds[at].gpu_type) for group in form.groups for at in group if kinds[at].gpu_type
        )
    return [form for form in found if form.groups]


def _groups(form: Form, suited: Sequence[int], pool: Pool) -> list[list[int]]:
    """A single node may be of any kind, in the order of kinds. A gang is on nodes of one engine and one type of GPU, or
    of several types where one has too few: it goes at the pace of its slowest."""
    by_type: dict[tuple[str, str, bool], list[int]] = {}
    by_engine: dict[str, list[int]] = {}
    for at in suited:
        kind = pool.kinds[at]
        sound = kind.health is Health.SOUND
        by_type.setdefault((kind.engine, kind.gpu_type if form.gpus else "", sound), []).append(at)
        by_engine.setdefault(kind.engine, []).append(at)
    able = {at: pool.able(form, at) for at in suited}
    if form.nodes == 1 and form.most == 1:
        kinds = [at for at in suited if able[at]]
        return [kinds] if kinds else []
    groups = [*by_type.values(), *by_engine.values()]
    distinct = [group for at, group in enumerate(groups) if group not in groups[:at]]
    return [group for group in distinct if sum(able[at] for at in group) >= form.nodes]
