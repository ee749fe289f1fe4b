"""Reads an MLflow server, 2.x or 3.x, by its REST API."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from windlass.core.artifactnames import keeps_its_name
from windlass.core.errors import InvalidInput, ServerUnreachable, Unauthorized, WindlassError
from windlass.imports import answers
from windlass.imports.histories import MOST_POINTS, Histories, together
from windlass.imports.records import Experiment, File, LoggedModel, Owner, Point, RegisteredModel, Run

_WAITS_S = (0.2, 0.5, 1.0, 2.0)
_PIECE_BYTES = 1 << 20
_WORTH_ASKING = 20  # metrics of a run: of fewer, many runs are asked for together
_PROMPTS = "tags.`mlflow.prompt.is_prompt` = 'true'"
_RENAME = "rename it there, or copy it by hand"
_LOCAL = ("localhost", "127.0.0.1", "::1")


def _trust(environ: Mapping[str, str]) -> ssl.SSLContext | bool:
    """Whose certificates count, and which is ours, as MLflow's client has it. Raises InvalidInput."""
    if environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        return False
    trusted = environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or environ.get("REQUESTS_CA_BUNDLE")
    own = environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH")
    if not trusted and not own:
        return True
    try:
        is_folder = bool(trusted) and os.path.isdir(trusted or "")
        context = ssl.create_default_context(
            cafile=None if is_folder else trusted, capath=trusted if is_folder else None
        )
        if own:
            context.load_cert_chain(own)
    except OSError as error:  # also what is no certificate
        raise InvalidInput(f"the certificates in '{trusted or own}' cannot be used: {error}") from error
    return context


class RestSource:
    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        """The token, or name and password, are those that MLflow's client would send."""
        self._url = url.rstrip("/")
        self._histories = Histories(self._history_of_many)
        self._is_windlass: bool | None = None
        self._lists_are_whole: bool | None = None  # MLflow's do not say which models runs have read
        token = environ.get("MLFLOW_TRACKING_TOKEN")
        user = environ.get("MLFLOW_TRACKING_USERNAME")
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=(user, environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user and not token else None,
            timeout=httpx.Timeout(120.0, connect=10.0),
            verify=_trust(environ),
            follow_redirects=True,
            # A proxy for the outside world has no business between us and a server of this machine.
            trust_env=(urlsplit(url).hostname or "") not in _LOCAL,
        )

    @property
    def address(self) -> str:
        split = urlsplit(self._url)
        return split._replace(netloc=split.netloc.rpartition("@")[2]).geturl()  # no password in tags and messages

    def close(self) -> None:
        self._http.close()

    def is_windlass(self) -> bool:
        if self._is_windlass is None:
            answer = self._send("GET", "/api/info", {})
            try:
                self._is_windlass = answer.status_code == 200 and "pass_ms" in answer.json()
            except ValueError:
                self._is_windlass = False
        return self._is_windlass

    # ---- records -----------------------------------------------------------------------------------------------------

    def experiments(self, *, deleted: bool) -> Iterator[Experiment]:
        asked = {"view_type": "ALL" if deleted else "ACTIVE_ONLY", "max_results": 500}
        for found in self._pages("POST", "experiments/search", asked, "experiments"):
            yield answers.read_experiment(found)

    def runs(self, experiment: Experiment, *, deleted: bool) -> Iterator[Run]:
        asked = {
            "experiment_ids": [experiment.id],
            "run_view_type": "ALL" if deleted else "ACTIVE_ONLY",
            "max_results": 200,
            "order_by": ["attributes.start_time ASC"],  # runs that begin meanwhile come after all pages
        }
        if self._lists_are_whole is None:
            self._lists_are_whole = self.is_windlass() or not self._has_models()
        for page in self._whole_pages("POST", "runs/search", asked):
            runs = [answers.read_run(found) for found in page.get("runs") or ()]
            self._histories.announce(runs)
            yield from runs

    def whole(self, run: Run) -> Run:
        if self._lists_are_whole:
            return run
        found = answers.read_run(self._call("GET", "runs/get", {"run_id": run.id})["run"])
        return replace(run, datasets=found.datasets, model_inputs=found.model_inputs, model_outputs=found.model_outputs)

    def histories(self, run: Run) -> Iterator[tuple[str, Iterable[Point]]]:
        def fetch(keys: Sequence[str]) -> Mapping[str, Sequence[Point]]:
            answer = self._send("POST", f"/api/imports/runs/{quote(run.id)}/points", {"names": list(keys)})
            return answers.read_histories(answer.json()) if answer.status_code == 200 else {}  # of the version before

        if len(run.metrics) >= _WORTH_ASKING and self.is_windlass():
            return together(run.metrics, fetch, lambda key: self.history(run, key))
        return ((key, self.history(run, key)) for key in run.metrics)

    def history(self, run: Run, key: str) -> Iterator[Point]:
        together = self._histories.take(run.id, key)
        if together is not None:
            yield from together
            return
        asked = {"run_id": run.id, "metric_key": key, "max_results": 25_000}
        for found in self._pages("GET", "metrics/get-history", asked, "metrics"):
            yield answers.read_point(found)

    def _history_of_many(self, run_ids: Sequence[str], key: str) -> dict[str, list[Point]] | None:
        asked = {"run_id": list(run_ids), "metric_key": key, "max_results": MOST_POINTS}
        answer = self._send("GET", "/ajax-api/2.0/mlflow/metrics/get-history-bulk", asked)
        found = answer.json().get("metrics") or () if answer.status_code == 200 else None
        if found is None or len(found) >= MOST_POINTS:
            return None  # a server that has no such call, or more points than it tells at once
        points: dict[str, list[Point]] = {run_id: [] for run_id in run_ids}
        for one in found:
            points[str(one["run_id"])].append(answers.read_point(one))
        return points

    def logged_models(self, experiment: Experiment) -> Iterator[LoggedModel]:
        asked = {"experiment_ids": [experiment.id], "max_results": 50}
        for found in self._pages("POST", "logged-models/search", asked, "models", absent_is_empty=True):
            yield answers.read_logged_model(found)

    def _has_models(self) -> bool:
        """Without any no run has read one, and asking for each run takes as long as much of its copying."""
        ids = [experiment.id for experiment in self.experiments(deleted=True)]
        asked = {"experiment_ids": ids, "max_results": 1}
        found = self._pages("POST", "logged-models/search", asked, "models", absent_is_empty=True)
        return next(found, None) is not None

    def registered_models(self) -> Iterator[RegisteredModel]:
        seen: set[str] = set()
        for only in ("", _PROMPTS):  # prompts are listed only if they are asked for
            asked = {"max_results": 100, **({"filter": only} if only else {})}
            for found in self._pages("GET", "registered-models/search", asked, "registered_models"):
                name = str(found["name"])
                if name in seen:
                    continue
                seen.add(name)
                mark = '"' if "'" in name else "'"
                wanted = f"name = {mark}{name}{mark}" + (f" AND {only}" if only else "")
                versions = self._pages(
                    "GET", "model-versions/search", {"filter": wanted, "max_results": 1_000}, "model_versions"
                )
                yield answers.read_registered_model(found, versions)

    # ---- files -------------------------------------------------------------------------------------------------------

    def files(self, owner: Owner) -> Iterator[File]:
        """A folder whose name the server would decode is told as a file that cannot be read."""
        left = [""]
        while left:
            for entry in self._listed(owner, left.pop()):
                path = str(entry["path"])
                if not entry.get("is_dir"):
                    size = entry.get("file_size")
                    yield File(path, None if size is None else int(size))
                elif self._can_ask_for(path):
                    left.append(path)
                else:
                    yield File(path, None)

    def _listed(self, owner: Owner, path: str) -> Iterator[dict[str, Any]]:
        if not keeps_its_name(path):
            found = self._call("GET", self._native(owner), {"path": path})
            yield from ({**one, "file_size": one.get("size_bytes")} for one in found.get("files") or ())
        elif owner.kind == "run":
            asked: dict[str, Any] = {"run_id": owner.id, **({"path": path} if path else {})}
            yield from self._pages("GET", "artifacts/list", asked, "files")
        else:
            asked = {"artifact_directory_path": path} if path else {}
            yield from self._pages("GET", f"logged-models/{quote(owner.id)}/artifacts/directories", asked, "files")

    @contextmanager
    def reading(self, owner: Owner, path: str) -> Iterator[Iterator[bytes]]:
        if not self._can_ask_for(path):
            raise InvalidInput("MLflow's servers decode such a name, and give another file or none", hint=_RENAME)
        if not keeps_its_name(path):
            where, asked = f"{self._native(owner)}/{quote(path)}", {}
        elif owner.kind == "run":
            where, asked = "/get-artifact", {"run_uuid": owner.id, "path": path}
        else:
            where = f"/ajax-api/2.0/mlflow/logged-models/{quote(owner.id)}/artifacts/files"
            asked = {"artifact_file_path": path}
        try:
            with self._http.stream("GET", where, params=asked) as answer:
                if answer.status_code >= 300:
                    answer.read()
                    self._refuse(answer, f"file '{path}' of {owner.kind} {owner.id}")
                yield answer.iter_bytes(_PIECE_BYTES)
        except httpx.TransportError as error:
            raise self._away(error) from error

    def _can_ask_for(self, path: str) -> bool:
        return keeps_its_name(path) or self.is_windlass()

    def _native(self, owner: Owner) -> str:
        return f"/api/runs/{quote(owner.id)}/artifacts"

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _pages(
        self, method: str, call: str, asked: Mapping[str, Any], name: str, *, absent_is_empty: bool = False
    ) -> Iterator[dict[str, Any]]:
        for page in self._whole_pages(method, call, asked, absent_is_empty=absent_is_empty):
            yield from page.get(name) or ()

    def _whole_pages(
        self, method: str, call: str, asked: Mapping[str, Any], *, absent_is_empty: bool = False
    ) -> Iterator[dict[str, Any]]:
        token = None
        while True:
            page = self._call(method, call, {**asked, **({"page_token": token} if token else {})}, absent_is_empty)
            yield page
            following = page.get("next_page_token")
            if not following or following == token:
                return
            token = following

    def _call(self, method: str, call: str, asked: Mapping[str, Any], absent_is_empty: bool = False) -> dict[str, Any]:
        """`call` is one of MLflow's, or a path of ours."""
        answer = self._send(method, call if call.startswith("/") else f"/api/2.0/mlflow/{call}", asked)
        if answer.status_code == 404 and absent_is_empty:
            return {}
        if answer.status_code >= 300:
            self._refuse(answer, call)
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._stranger(answer)
        return found

    def _send(self, method: str, path: str, asked: Mapping[str, Any]) -> httpx.Response:
        """All calls read, so all may be repeated."""
        waits = iter(_WAITS_S)
        while True:
            wait_s = next(waits, None)
            try:
                if method == "GET":
                    answer = self._http.get(path, params=dict(asked))
                else:
                    answer = self._http.request(method, path, json=dict(asked))
            except httpx.TransportError as error:
                if wait_s is None or isinstance(error, httpx.ConnectError):
                    raise self._away(error) from error
            else:
                if wait_s is None or (answer.status_code != 429 and answer.status_code < 502):
                    return answer
            time.sleep(wait_s)

    def _refuse(self, answer: httpx.Response, what: str) -> None:
        if answer.status_code in (401, 403):
            raise Unauthorized(
                f"the MLflow server at {self.address} does not let us in ({answer.status_code})",
                hint="set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
            )
        try:
            said = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            if answer.status_code in (404, 405):
                raise self._stranger(answer) from None
            said = answer.text[:200].strip()
        raise WindlassError(f"the MLflow server at {self.address} answered {answer.status_code} to {what}: {said}")

    def _stranger(self, answer: httpx.Response) -> InvalidInput:
        return InvalidInput(
            f"{self.address} does not answer as an MLflow server does ({answer.status_code} to {answer.url.path})",
            hint="give the address that MLFLOW_TRACKING_URI has, with its path if there is one",
        )

    def _away(self, error: Exception) -> ServerUnreachable:
        reason = str(error) or type(error).__name__
        return ServerUnreachable(
            f"the MLflow server at {self.address} cannot be reached: {reason}",
            hint="is the address right, and does it run? What was copied stays; the same command goes on",
        )
