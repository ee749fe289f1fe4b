"""`client.notes`: what people write on runs and projects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from windlass.client.answers import read
from windlass.core.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from windlass.client.client import Client
    from windlass.wire.annotations import GroupView


def both(where: str | None, group: str | None) -> str | None:
    """A search among the runs of a group."""
    if group is None:
        return where
    if "'" in group and '"' in group:
        raise InvalidInput(f"a search takes quotes of one kind only in the name of a group: {group!r}")
    quote = '"' if "'" in group else "'"
    mine = f"group = {quote}{group}{quote}"
    return f"{mine} and {where}" if where and where.strip() else mine


class Notes:
    def __init__(self, client: Client) -> None:
        self._transport = client.transport
        self._place_of = client.place_of

    def get(self, ref: str) -> str | None:
        """Of a run, by anything that names it; of one that an MLflow client made by its id."""
        text: str | None = self._transport.get(f"{self._place_of(ref)}/note")["text"]
        return text

    def set(self, ref: str, text: str) -> str:
        """In place of what was there; no text removes it. The run's id."""
        run_id: str = self._transport.post(f"{self._place_of(ref)}/note", {"text": text}, repeat=True)["of"]
        return run_id

    def get_project(self, project: str) -> str | None:
        text: str | None = self._transport.get(f"/api/projects/{quote(project, safe='')}/note")["text"]
        return text

    def set_project(self, project: str, text: str) -> None:
        self._transport.post(f"/api/projects/{quote(project, safe='')}/note", {"text": text}, repeat=True)

    def set_tags(self, ref: str, tags: Mapping[str, str | None]) -> dict[str, str]:
        """None removes one. All that the run has then."""
        left: dict[str, str] = self._transport.post(f"{self._place_of(ref)}/tags", {"tags": dict(tags)}, repeat=True)[
            "tags"
        ]
        return left

    def put_in_group(self, group: str | None, refs: Iterable[str]) -> None:
        """A run is in one group at a time; None takes it out of its own."""
        for ref in refs:
            self.set_tags(ref, {"group": group})

    def take_out_of_group(self, group: str, refs: Iterable[str]) -> list[str]:
        """Those of the runs that were not in it; they stay where they are."""
        others = []
        for ref in refs:
            try:
                body = {"tags": {"group": None}, "where": {"group": group}}
                self._transport.post(f"{self._place_of(ref)}/tags", body, repeat=True)
            except Conflict:
                others.append(ref)
        return others

    def groups(self, *, project: str | None = None) -> Sequence[GroupView]:
        """Those with the newest runs first."""
        from windlass.wire.annotations import GroupList

        return read(GroupList, self._transport.get("/api/groups", {"project": project})).groups
