"""A copy of some of a cluster's objects, kept current by a watch: listed once, then told of every change.

The thread never gives up. While the API server is away the copy stands still, and `is_current` says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from windlass.core.errors import Unavailable
from windlass.engines.kubernetes.api import ClusterApi, EventStream, Json, Refused

log = logging.getLogger(__name__)
State = TypeVar("State")

PAGE = 500
# The server ends a watch after this; a connection that died without a word is noticed a little later.
WATCH_S = 240
_SILENCE_S = WATCH_S + 30.0
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_REMEMBERED_DELETIONS = 10_000
_CLOSE_S = 3.0
_EXPIRED = 410


class Watched(Generic[State]):
    """Objects of one path and selector by `namespace/name`, each as `parse` reads it (None: not of interest).

    What was deleted is remembered for a while as it was seen last: that often says why it was.
    """

    def __init__(
        self,
        api: ClusterApi,
        path: str,
        parse: Callable[[Json], State | None],
        *,
        query: Mapping[str, str] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._path = path
        self._parse = parse
        self._query = dict(query or {})
        self._changed = changed
        self._lock = threading.Lock()
        self._objects: dict[str, State] = {}
        self._versions: dict[str, int] = {}
        self._deleted: dict[str, tuple[str, State | None]] = {}  # by uid: key and last state, the oldest first
        self._listed = threading.Event()
        self._current = False
        self._problem = "it has not been asked yet"
        self._stopping = threading.Event()
        self._version: str | None = None  # up to where changes are known
        self._stream: EventStream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._stream is not None:
            self._stream.close()
        self._thread.join(_CLOSE_S)

    def wait_listed(self, timeout_s: float) -> bool:
        return self._listed.wait(timeout_s)

    @property
    def is_current(self) -> bool:
        return self._current

    @property
    def problem(self) -> str:
        """Why it is not current."""
        return self._problem

    def snapshot(self) -> dict[str, State]:
        with self._lock:
            return dict(self._objects)

    def deleted(self) -> dict[str, State]:
        """What has gone, by key. Not complete: what goes while the API server is away goes unseen."""
        with self._lock:
            return {key: state for key, state in self._deleted.values() if state is not None}

    def put(self, seen: Json) -> None:
        """What a request of ours has just answered, so that nobody waits for the watch to say it too."""
        with self._lock:
            if seen["metadata"]["uid"] not in self._deleted:
                self._keep(seen)

    # ---- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = _SHORTEST_PAUSE_S
        while not self._stopping.is_set():
            try:
                if self._version is None:
                    self._version = self._list()
                self._watch(self._version)
                pause_s = _SHORTEST_PAUSE_S
                continue
            except _Expired:
                self._version = None
                continue
            except (Unavailable, Refused) as error:
                self._lose(str(error))
            except Exception:
                # The loop is a boundary: an object of a shape we did not foresee must not end the watch.
                log.exception("watching %s failed; trying again", self._path)
                self._lose("watching it failed; the server's log says how")
                self._version = None
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _list(self) -> str:
        found: list[Json] = []
        query: dict[str, str | int] = {**self._query, "limit": PAGE}
        while True:
            page = self._api.get(self._path, **query)
            found += page.get("items") or []
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        with self._lock:
            self._objects.clear()
            self._versions.clear()
            for item in found:
                self._keep(item)
        self._current = True
        self._listed.set()
        self._changed()
        return str(page["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        """Follow changes from `version` on until the server ends the watch."""
        query: dict[str, str | int] = {
            **self._query,
            "watch": "1",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_S,
            "allowWatchBookmarks": "true",
        }
        try:
            self._stream = self._api.stream(self._path, query, read_timeout_s=_SILENCE_S)
        except Refused as refusal:
            if refusal.status == _EXPIRED:
                raise _Expired from refusal
            raise
        if self._stopping.is_set():
            return  # whoever closed this may not have seen the stream
        self._current = True
        for event in self._stream:
            if self._stopping.is_set():
                return
            if event["type"] == "ERROR":
                status = event["object"]
                if status.get("code") == _EXPIRED:
                    raise _Expired
                raise Unavailable(f"the watch ended: {status.get('message')}")
            self._take(event["type"], event["object"])
            self._version = str(event["object"]["metadata"]["resourceVersion"])

    def _take(self, kind: str, seen: Json) -> None:
        if kind == "BOOKMARK":
            return
        with self._lock:
            if kind == "DELETED":
                self._bury(seen)
                changed = True
            else:
                changed = self._keep(seen)
        if changed:
            self._changed()

    def _keep(self, seen: Json) -> bool:
        """Whether that changed anything that is looked at."""
        key, version = _key(seen), int(seen["metadata"]["resourceVersion"])
        if self._versions.get(key, -1) > version:
            return False
        state, before = self._parse(seen), self._objects.get(key)
        if state is None:
            self._objects.pop(key, None)
            self._versions.pop(key, None)
        else:
            self._objects[key] = state
            self._versions[key] = version
        return state != before

    def _bury(self, seen: Json) -> None:
        key = _key(seen)
        self._objects.pop(key, None)
        self._versions.pop(key, None)
        self._deleted[seen["metadata"]["uid"]] = key, self._parse(seen)
        if len(self._deleted) > _REMEMBERED_DELETIONS:
            del self._deleted[next(iter(self._deleted))]

    def _lose(self, problem: str) -> None:
        self._current = False
        self._problem = problem


class _Expired(Exception):
    """The server no longer knows the version to go on from: list again."""


def _key(seen: Json) -> str:
    metadata = seen["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
