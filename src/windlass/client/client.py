"""`Client`: submit, find and list runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from windlass.client.answers import read
from windlass.client.endpoint import Endpoint, resolve_endpoint
from windlass.client.transport import Transport
from windlass.core.home import default_home

if TYPE_CHECKING:
    from windlass.client.annotations import Notes
    from windlass.client.artifacts import Artifacts
    from windlass.client.metrics import Metric
    from windlass.client.run import Run
    from windlass.client.savedviews import Views
    from windlass.client.snapshot import Snapshot
    from windlass.client.submission import Secrets, Submission
    from windlass.client.webhooks import Webhooks
    from windlass.wire.checks import CheckView
    from windlass.wire.cluster import AsideView, ClusterView, Health, Info
    from windlass.wire.comparison import Comparison
    from windlass.wire.lineage import Lineage
    from windlass.wire.queue import QueueView
    from windlass.wire.runs import MetricSummaries, RunSummary
    from windlass.wire.search import FoundPage, FoundRun
    from windlass.wire.spec import RunSpec

_SNAPSHOT_TRIES = 5


class Client:
    """A connection to a server, for any number of threads.

    The server is `url`, else WINDLASS_URL, else the embedded one of the home folder (`home`, WINDLASS_HOME or
    ~/.windlass). If that one does not run, the first submission starts it, unless `start=False`. Connects on first use.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, home: str | Path | None = None, start: bool = True
    ) -> None:
        self.home = Path(home).expanduser().absolute() if home is not None else default_home()
        self._url, self._token = url, token
        self._may_start = start and not (url or os.environ.get("WINDLASS_URL"))
        self.transport = Transport(self._resolve)

    def _resolve(self) -> Endpoint:
        return resolve_endpoint(self._url, self._token, self.home, os.environ)

    @property
    def url(self) -> str:
        return self.transport.endpoint.url

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        spec: str | Path | Mapping[str, Any] | RunSpec | None = None,
        *,
        command: str | Sequence[str] | None = None,
        script: str | None = None,
        args: Iterable[object] = (),
        code: str | Path | None = None,
        params: Mapping[str, Any] | None = None,
        secrets: Secrets | None = None,
        idempotency_key: str | None = None,
        **spec_keys: Any,
    ) -> Run:
        """Submit a run and return it at once; `run.wait()` waits for its end.

        `spec` is a spec file's path, a mapping or a RunSpec; the other arguments are keys of the spec and win over
        it. `code` is the folder to snapshot (default: the current one). `secrets` maps names to values, or lists
        names whose values are in the environment. Submitting twice with one `idempotency_key` makes one run.
        """
        from windlass.client.submission import assemble

        keys: dict[str, Any] = {
            "command": command if command is None or isinstance(command, str) else [str(word) for word in command],
            "script": script,
            "args": [str(word) for word in args] or None,
            "code": None if code is None else str(code),
            "params": None if params is None else dict(params),
            **spec_keys,
        }
        return self.send(assemble(spec, keys, secrets), idempotency_key=idempotency_key)

    def send(self, submission: Submission, *, idempotency_key: str | None = None) -> Run:
        """Send what `submission.assemble` made: the code's missing contents, then the request. Safe against lost
        connections: the key makes sure that there is one run in the end."""
        if self._may_start:
            from windlass.client.embedded import ensure_server

            ensure_server(self.home)
        made = self.post(submission, idempotency_key=idempotency_key)
        from windlass.client.run import Run
        from windlass.wire.runs import RunView

        return Run(self, read(RunView, made))

    def post(self, submission: Submission, *, idempotency_key: str | None = None) -> dict[str, Any]:
        """As `send`, to a server that runs; the new run as the server shows it. Loads no models: they take longer than
        all of the rest, and the server checks what it is sent."""
        from windlass.client.provenance import gather_origin

        digest = None if submission.code is None else self._send_code(submission.code, submission.files)
        origin = gather_origin(submission.code or Path(submission.spec.get("workdir") or "."))
        body = {
            "spec": dict(submission.spec),
            "code_digest": digest,
            "secrets": dict(submission.secrets),
            "origin": origin.as_json(),
        }
        made: dict[str, Any] = self.transport.post("/api/runs", body, key=idempotency_key or os.urandom(16).hex())
        return made

    def _send_code(self, folder: Path, only: Sequence[str] | None = None) -> str:
        from dataclasses import asdict

        from windlass.client.snapshot import Changed, take_files, take_snapshot, tar_of
        from windlass.core.errors import Unavailable

        def look() -> Snapshot:
            return take_snapshot(folder, home=self.home) if only is None else take_files(folder, only)

        snapshot = look()
        for tries_left in reversed(range(_SNAPSHOT_TRIES)):
            body = {"files": [asdict(entry) for entry in snapshot.entries]}
            receipt = self.transport.post("/api/snapshots", body, repeat=True)
            missing: list[str] = receipt["missing"]
            if not missing:
                return str(receipt["digest"])
            if not tries_left:
                break
            try:
                self.transport.send("/api/blobs", lambda now=snapshot, wanted=missing: tar_of(now, wanted))  # type: ignore[misc]
            except Changed:
                if tries_left == 1:
                    raise
                snapshot = look()
        raise Unavailable(f"the server still lacks {len(missing)} files of {folder} after they were sent")

    def get(self, ref: str) -> Run:
        """A run by id, by the unique beginning of one, or by name (the newest of that name). Raises NotFound with the
        nearest, or Ambiguous."""
        from windlass.client.run import Run
        from windlass.wire.runs import RunView

        return Run(self, read(RunView, self.transport.get(self.place_of(ref))))

    def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        project: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> Iterator[RunSummary]:
        """Runs, newest first, page by page as they are asked for. At most `limit` if given."""
        from windlass.wire.runs import RunPage

        states = [state] if isinstance(state, str) else state
        left, cursor = limit, None
        while left is None or left > 0:
            size = 100 if left is None else min(left, 100)
            query = {"state": states, "project": project, "name": name, "tag": tag, "cursor": cursor, "limit": size}
            page = read(RunPage, self.transport.get("/api/runs", query))
            yield from page.runs if left is None else page.runs[:left]
            left = None if left is None else left - len(page.runs)
            cursor = page.next_cursor
            if cursor is None:
                return

    def find(self, ref: str) -> FoundRun:
        """What is known of any run, also of one that an MLflow client made: by id, the beginning of one, or name."""
        from windlass.wire.search import FoundRun

        return read(FoundRun, self.transport.get(f"/api/search/{quote(ref, safe='')}"))

    def place_of(self, ref: str) -> str:
        """Where a run's routes begin. No address can carry a name with a slash in it between slashes: such a run is
        looked up, and goes by its id from there."""
        return f"/api/runs/{self.find(ref).id if '/' in ref else quote(ref, safe='')}"

    def metrics(
        self,
        ref: str,
        name: str | None = None,
        *,
        system: bool = False,
        limit: int | None = None,
        most: int | None = None,
    ) -> dict[str, Metric]:
        """What any run has logged, as `Run.metrics`."""
        from windlass.client.metrics import metrics_of
        from windlass.wire.runs import MetricsView

        query = {"name": name, "system": system, "limit": limit, "most": most}
        found = self.transport.get(f"{self.place_of(ref)}/metrics", query)
        return metrics_of(read(MetricsView, found))

    def metric_summaries(self, ref: str, *, system: bool = False) -> MetricSummaries:
        """The latest value, the least, the greatest and how many there are, of every metric of any run; with `system`
        also of those of its machines."""
        from windlass.wire.runs import MetricSummaries

        found = self.transport.get(f"{self.place_of(ref)}/metric-summaries", {"system": system})
        return read(MetricSummaries, found)

    def search(
        self,
        where: str | None = None,
        *,
        order: Sequence[str] = (),
        limit: int | None = None,
        group: str | None = None,
        view: str | None = None,
        project: str | None = None,
    ) -> Iterator[FoundRun]:
        """Runs that `where` holds for, such as `metrics.loss < 0.5 and state = 'succeeded' and submitted > '7d'`; those
        of a `group`; those of a saved `view`; those of a `project`, which may have views of its own."""
        pages = self.search_pages(where, order=order, limit=limit, group=group, view=view, project=project)
        return (run for page in pages for run in page.runs)

    def search_pages(
        self,
        where: str | None = None,
        *,
        order: Sequence[str] = (),
        limit: int | None = None,
        group: str | None = None,
        view: str | None = None,
        project: str | None = None,
    ) -> Iterator[FoundPage]:
        """The same by pages, one at least: the first says which columns the search is about, and which names in it no
        run has."""
        from windlass.client.annotations import both
        from windlass.wire.search import FoundPage

        cursor, left = None, limit
        while left is None or left > 0:
            query = {
                "where": both(where, group),
                "order": list(order),
                "cursor": cursor,
                "limit": min(1_000, left or 1_000),
                "view": view,
                "project": project,
            }
            page = read(FoundPage, self.transport.get("/api/search", query))
            yield page
            left = None if left is None else left - len(page.runs)
            cursor = page.next_cursor
            if cursor is None:
                return

    def runs_df(
        self,
        where: str | None = None,
        *,
        order: Sequence[str] = (),
        limit: int | None = None,
        group: str | None = None,
        view: str | None = None,
        project: str | None = None,
    ) -> Any:
        """What `search` finds, as a pandas DataFrame: a column for each of `params.lr`, `metrics.loss`, `tags.team`."""
        from windlass.client.tables import data_frame

        return data_frame(self.search(where, order=order, limit=limit, group=group, view=view, project=project))

    def compare(self, refs: Sequence[str], *, everything: bool = False) -> Comparison:
        """Runs side by side: what differs, or everything."""
        from windlass.wire.comparison import Comparison

        return read(Comparison, self.transport.get("/api/compare", {"run": list(refs), "everything": everything}))

    def lineage(self, of: str) -> Lineage:
        """What something came from and what came from it: a run, `models:/NAME/VERSION`, `dataset:NAME@DIGEST` …"""
        from windlass.wire.lineage import Lineage

        return read(Lineage, self.transport.get("/api/lineage", {"of": of}))

    def code_diff(self, first: str, second: str) -> str:
        """From the code of the first run to that of the second."""
        from urllib.parse import urlencode

        return self.transport.get_text(f"/api/compare/code?{urlencode({'run': [first, second]}, doseq=True)}")

    def artifacts(self, ref: str) -> Artifacts:
        """The files of a run, by anything that names it; runs that an MLflow client made have theirs here too. Or those
        of a logged model, by its id (`m-…`)."""
        from windlass.client.artifacts import Artifacts

        return Artifacts(self, ref)

    @property
    def notes(self) -> Notes:
        """What people write on runs and projects: notes, tags, groups."""
        from windlass.client.annotations import Notes

        return Notes(self)

    @property
    def views(self) -> Views:
        """Searches that have a name."""
        from windlass.client.savedviews import Views

        return Views(self)

    @property
    def webhooks(self) -> Webhooks:
        """Who is told of what happens to runs and models."""
        from windlass.client.webhooks import Webhooks

        return Webhooks(self)

    def cluster(self) -> ClusterView:
        from windlass.wire.cluster import ClusterView

        return read(ClusterView, self.transport.get("/api/cluster"))

    def queue(self, *, project: str | None = None, limit: int = 500) -> QueueView:
        """The runs that wait, in the order in which they would be served, and what projects have."""
        from windlass.wire.queue import QueueView

        return read(QueueView, self.transport.get("/api/queue", {"project": project, "limit": limit}))

    def set_aside(
        self, node: str, *, engine: str | None = None, for_s: float | None = None, reason: str = ""
    ) -> AsideView:
        """Have nothing placed on a node any more, until it is given back if `for_s` is None."""
        from windlass.wire.cluster import AsideView

        wanted = {"node": node, "engine": engine, "for_s": for_s, "reason": reason}
        return read(AsideView, self.transport.post("/api/cluster/set-aside", wanted))

    def give_back(self, node: str, *, engine: str | None = None) -> AsideView:
        """Have a node used again; what it was set aside for."""
        from windlass.wire.cluster import AsideView

        return read(AsideView, self.transport.post("/api/cluster/give-back", {"node": node, "engine": engine}))

    def info(self) -> Info:
        from windlass.wire.cluster import Info

        return read(Info, self.transport.get("/api/info"))

    def doctor(self) -> Sequence[CheckView]:
        """What the server finds when it looks at its database, blobs, engines and clocks."""
        from windlass.wire.checks import CheckView

        return [read(CheckView, item) for item in self.transport.get("/api/doctor")]

    def health(self) -> Health:
        from windlass.wire.cluster import Health

        return read(Health, self.transport.get("/health"))
