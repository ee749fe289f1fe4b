"""`client.views`: searches that have a name, for everybody who uses the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from windlass.client.answers import read

if TYPE_CHECKING:
    from windlass.client.client import Client
    from windlass.wire.savedviews import SavedView


class Views:
    def __init__(self, client: Client) -> None:
        self._transport = client.transport

    def list(self, *, project: str | None = None) -> Sequence[SavedView]:
        """With `project` those of it, and those of all runs."""
        from windlass.wire.savedviews import ViewList

        return read(ViewList, self._transport.get("/api/views", {"project": project})).views

    def get(self, name: str, *, project: str | None = None) -> SavedView:
        from windlass.wire.savedviews import SavedView

        return read(SavedView, self._transport.get(_place(name, project)))

    def save(
        self,
        name: str,
        where: str | None = None,
        *,
        order: Sequence[str] = (),
        columns: Sequence[str] = (),
        project: str | None = None,
        description: str | None = None,
    ) -> SavedView:
        """In place of one of that name. With `project` it is about that project's runs only."""
        from windlass.wire.savedviews import SavedView

        body = {"where": where, "order": list(order), "columns": list(columns), "description": description}
        return read(SavedView, self._transport.post(_place(name, project), body, repeat=True))

    def remove(self, name: str, *, project: str | None = None) -> None:
        self._transport.delete(_place(name, project))


def _place(name: str, project: str | None) -> str:
    path = f"/api/views/{quote(name, safe='')}"
    return f"{path}?{urlencode({'project': project})}" if project else path
