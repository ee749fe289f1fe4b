"""Speaking to a Kubernetes API server in plain JSON.

Addresses, certificates and credentials (in-cluster, tokens, exec plugins) are the official client's affair; its models
are not used, since turning every pod into Python objects costs more than everything else that is done with it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from windlass.core.errors import Unavailable, WindlassError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Json = dict[str, Any]
_TIMEOUT_S = 10.0
_CONNECT_S = 3.0
_MERGE_PATCH = "application/merge-patch+json"
# Worth trying again: too many requests, time-outs and everything that is the server's own trouble.
_PASSING = (408, 429)


class Refused(WindlassError):
    """The API server has answered, and the answer is no."""

    code = "cluster_refused"

    def __init__(self, status: int, reason: str, told: str) -> None:
        super().__init__(f"{status} {reason}: {told}")
        self.status = status
        self.told = told


class EventStream:
    """The events of a watch as they come, until the server ends it or another thread closes it."""

    def __init__(self, response: Any, host: str) -> None:
        self._response = response
        self._host = host

    def __iter__(self) -> Iterator[Json]:
        rest = b""
        try:
            while part := self._response.read1():
                *lines, rest = (rest + part).split(b"\n")
                yield from (json.loads(line) for line in lines if line.strip())
        except Exception as error:  # whatever a connection can die of
            raise Unavailable(f"the API server at {self._host} went away: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """Whoever reads finds the end at once."""
        with contextlib.suppress(Exception):  # it may have ended by itself
            self._response.shutdown()


class ClusterApi:
    """Safe to use from several threads."""

    def __init__(self, client: ApiClient) -> None:
        self._configuration = client.configuration
        self._pool = client.rest_client.pool_manager
        self._host = str(client.configuration.host).rstrip("/")

    def get(self, path: str, **query: str | int) -> Json:
        return self._call("GET", path, query)

    def create(self, path: str, manifest: Mapping[str, Any]) -> Json:
        return self._call("POST", path, {}, manifest)

    def ensure(self, path: str, manifest: Mapping[str, Any]) -> Json | None:
        """Created now, then as the server took it; or before, then None. Needs no right to read what is there."""
        try:
            return self.create(path, manifest)
        except Refused as refusal:
            if refusal.status != 409:
                raise
        return None

    def create_or_get(self, path: str, manifest: Mapping[str, Any]) -> Json:
        """What is there under the manifest's name counts as created: names tell what they are of."""
        try:
            return self.create(path, manifest)
        except Refused as refusal:
            if refusal.status != 409:
                raise
        return self.get(f"{path}/{manifest['metadata']['name']}")

    def replace(self, path: str, manifest: Mapping[str, Any]) -> Json:
        return self._call("PUT", path, {}, manifest)

    def patch(self, path: str, change: Mapping[str, Any]) -> Json:
        return self._call("PATCH", path, {}, change, content_type=_MERGE_PATCH)

    def delete(self, path: str, *, grace_s: int | None = None, **query: str | int) -> None:
        """Gone already is as good."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._call("DELETE", path, query, options)
        except Refused as refusal:
            if refusal.status != 404:
                raise

    def has(self, group_version: str, kind: str) -> bool:
        """Whether the cluster serves this kind of object."""
        try:
            served = self.get(f"/apis/{group_version}")
        except Refused:
            return False
        return any(resource["kind"] == kind for resource in served.get("resources", []))

    def stream(self, path: str, query: Mapping[str, str | int], *, read_timeout_s: float) -> EventStream:
        """A watch, once the server has agreed to it. Raises Unavailable, Refused."""
        response = self._send("GET", path, query, timeout_s=read_timeout_s)
        if response.status != 200:
            with contextlib.closing(response):
                raise _refusal(response.status, response.read())
        return EventStream(response, self._host)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        response = self._send(method, path, query, body, content_type)
        try:
            data = response.read()
        except Exception as error:
            raise Unavailable(f"the API server at {self._host} went away: {error}") from error
        finally:
            response.release_conn()
        if 200 <= response.status < 300:
            found: Json = json.loads(data)
            return found
        refusal = _refusal(response.status, data)
        if response.status >= 500 or response.status in _PASSING:
            raise Unavailable(f"the API server at {self._host} cannot do it now: {refusal}")
        raise refusal

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_s: float = _TIMEOUT_S,
    ) -> Any:
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json", "User-Agent": "windlass"}
        for setting in self._configuration.auth_settings().values():
            if setting["value"]:
                headers[setting["key"]] = setting["value"]
        if body is not None:
            headers["Content-Type"] = content_type
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            return self._pool.request(
                method,
                url,
                body=json.dumps(body) if body is not None else None,
                headers=headers,
                preload_content=False,
                retries=False,
                timeout=Timeout(connect=_CONNECT_S, read=timeout_s),
            )
        except HTTPError as error:
            raise Unavailable(f"the API server at {self._host} does not answer: {error}") from error


def open_api(*, kubeconfig: str | None, context: str | None) -> ClusterApi:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise Unavailable(
            "the Kubernetes engine needs the official Python client, which is not installed",
            hint="pip install 'windlass[kubernetes]'",
        ) from error
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                kubeconfig, context=context, client_configuration=configuration
            )
    except config.ConfigException as error:
        where = f"kubeconfig '{kubeconfig}'" if kubeconfig else "no kubeconfig is set and this is not a pod"
        raise Unavailable(f"how to reach the cluster cannot be told: {where}: {error}") from error
    return ClusterApi(client.ApiClient(configuration))


def _refusal(status: int, data: bytes) -> Refused:
    try:
        told = json.loads(data)
        return Refused(status, str(told.get("reason", "")), str(told.get("message", "")))
    except ValueError:
        return Refused(status, "", data[:200].decode(errors="replace"))
