"""The copy that a watch keeps: what it holds after every turn that a watch can take."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.integration.away import await_that
from windlass.core.errors import Unavailable
from windlass.engines.kubernetes.api import ClusterApi, Json, Refused
from windlass.engines.kubernetes.watching import Watched


class FakeApi(ClusterApi):
    """An API server with one kind of object: lists what there is, and tells of changes from any version on."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.events: list[tuple[int, str, Json]] = []
        self.version = 100
        self.compacted = 0  # changes up to here are not known any more
        self.away = False
        self.lists = 0
        self.changed = threading.Condition()
        self.cut = 0  # how often streams were cut off

    def put(self, name: str, value: str) -> Json:
        with self.changed:
            self.version += 1
            found = self.objects.get(name)
            uid = found["metadata"]["uid"] if found else f"uid-{name}-{self.version}"
            seen = {"metadata": {"name": name, "uid": uid, "resourceVersion": str(self.version)}, "value": value}
            self.events.append((self.version, "MODIFIED" if found else "ADDED", seen))
            self.objects[name] = seen
            self.changed.notify_all()
            return seen

    def remove(self, name: str) -> Json:
        with self.changed:
            self.version += 1
            seen = self.objects.pop(name)
            seen = {**seen, "metadata": {**seen["metadata"], "resourceVersion": str(self.version)}}
            self.events.append((self.version, "DELETED", seen))
            self.changed.notify_all()
            return seen

    def break_off(self, *, away: bool = False, compact: bool = False) -> None:
        with self.changed:
            self.cut += 1
            self.away = away
            if compact:
                self.compacted = self.version
            self.changed.notify_all()

    def get(self, path: str, **query: str | int) -> Json:  # noqa: ARG002
        with self.changed:
            if self.away:
                raise Unavailable("it is away")
            self.lists += 1
            names = sorted(self.objects)
            at = int(str(query.get("continue", "0")))
            page, rest = names[at : at + 2], names[at + 2 :]
            metadata: Json = {"resourceVersion": str(self.version)}
            if rest:
                metadata["continue"] = str(at + 2)
            return {"items": [self.objects[name] for name in page], "metadata": metadata}

    def stream(self, path: str, query: Mapping[str, str | int], *, read_timeout_s: float) -> Any:  # noqa: ARG002
        with self.changed:
            if self.away:
                raise Unavailable("it is away")
            if int(query["resourceVersion"]) < self.compacted:
                raise Refused(410, "Expired", "too old")
            return FakeStream(self, int(query["resourceVersion"]), self.cut)


class FakeStream:
    def __init__(self, api: FakeApi, version: int, cut: int) -> None:
        self._api = api
        self._version = version
        self._cut = cut
        self._closed = False

    def __iter__(self) -> Iterator[Json]:
        while True:
            with self._api.changed:
                self._api.changed.wait_for(lambda: self._closed or self._api.cut > self._cut or self._news(), 10)
                if self._closed:
                    return
                if self._api.cut > self._cut:
                    raise Unavailable("cut off")
                news = self._news()
            for version, kind, seen in news:
                self._version = version
                yield {"type": kind, "object": seen}

    def _news(self) -> list[tuple[int, str, Json]]:
        return [event for event in self._api.events if event[0] > self._version]

    def close(self) -> None:
        with self._api.changed:
            self._closed = True
            self._api.changed.notify_all()


@pytest.fixture
def api() -> FakeApi:
    found = FakeApi()
    for name in "abc":
        found.put(name, "old")
    return found


@pytest.fixture
def watched(api: FakeApi) -> Iterator[Watched[str]]:
    found = Watched(api, "/things", lambda seen: None if seen["value"] == "hidden" else str(seen["value"]))
    found.start()
    assert found.wait_listed(10)
    yield found
    found.close()
    assert not found._thread.is_alive()


def values(watched: Watched[str]) -> str:
    return " ".join(f"{key[1:]}={value}" for key, value in sorted(watched.snapshot().items()))


def test_all_pages_are_listed_and_changes_followed(api: FakeApi, watched: Watched[str]) -> None:
    assert values(watched) == "a=old b=old c=old"
    api.put("d", "new")
    api.put("a", "new")
    api.put("c", "hidden")
    gone = api.remove("b")
    await_that(lambda: values(watched) == "a=new d=new")
    assert watched.deleted() == {"/b": "old"}
    watched.put(gone)  # an answer that was overtaken by the deletion
    assert values(watched) == "a=new d=new"


def test_what_a_request_answered_is_there_at_once_and_never_older(api: FakeApi, watched: Watched[str]) -> None:
    first = {"metadata": {"name": "x", "uid": "u", "resourceVersion": "5"}, "value": "first"}
    watched.put({"metadata": {"name": "x", "uid": "u", "resourceVersion": "7"}, "value": "second"})
    watched.put(first)
    assert watched.snapshot()["/x"] == "second"


def test_a_cut_watch_goes_on_where_it_was(api: FakeApi, watched: Watched[str]) -> None:
    lists = api.lists
    api.break_off()
    api.put("a", "new")
    await_that(lambda: values(watched) == "a=new b=old c=old")
    assert api.lists == lists


def test_a_watch_that_is_too_old_lists_again(api: FakeApi, watched: Watched[str]) -> None:
    api.break_off(away=True)
    await_that(lambda: not watched.is_current)
    api.remove("a")
    api.put("b", "new")
    api.break_off(compact=True)
    await_that(lambda: values(watched) == "b=new c=old")
    await_that(lambda: watched.is_current)
    assert watched.deleted() == {}  # went unseen


def test_while_the_server_is_away_the_copy_stands_still_and_says_so(api: FakeApi, watched: Watched[str]) -> None:
    await_that(lambda: watched.is_current)
    api.break_off(away=True)
    await_that(lambda: not watched.is_current)
    await_that(lambda: watched.problem == "it is away")
    assert values(watched) == "a=old b=old c=old"
    api.put("a", "new")
    assert values(watched) == "a=old b=old c=old"
    api.break_off()
    await_that(lambda: watched.is_current and values(watched) == "a=new b=old c=old")


def test_an_object_that_cannot_be_read_does_not_end_the_watch(api: FakeApi) -> None:
    seen: list[str] = []

    def parse(thing: Json) -> str:
        seen.append(thing["value"])
        if seen.count("odd") == 1 and thing["value"] == "odd":
            raise KeyError("shape")
        return str(thing["value"])

    watched = Watched(api, "/things", parse)
    watched.start()
    assert watched.wait_listed(10)
    api.put("a", "odd")
    await_that(lambda: values(watched) == "a=odd b=old c=old")
    watched.close()


def test_only_changes_that_matter_are_told(api: FakeApi) -> None:
    told = threading.Semaphore(0)
    watched = Watched(api, "/things", lambda seen: str(seen["value"]), changed=told.release)
    watched.start()
    assert told.acquire(timeout=10)  # listed
    api.put("a", "old")  # a heartbeat
    api.put("b", "new")
    await_that(lambda: watched.snapshot()["/b"] == "new")
    assert told.acquire(timeout=10)
    assert not told.acquire(blocking=False)
    watched.close()
