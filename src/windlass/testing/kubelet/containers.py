"""What a stand-in kubelet runs instead of containers: processes, or nothing but the reports that processes would send.

Volumes are folders of this machine; where the environment names a mount path, it gets the folder instead. Images are
not looked at, but for one whose name says that it is missing.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from windlass.agent import kernel
from windlass.engines.kubernetes.api import ClusterApi, Json, Refused
from windlass.engines.kubernetes.nodes import parse_quantity
from windlass.testing.kubelet.hollow import HollowAgent

MISSING_IMAGE = "missing"  # the beginning of the name of an image that cannot be pulled
_LAST_BYTES = 1000
_LOOK_AT_MEMORY_EVERY_S = 0.2


class CannotRun(Exception):
    """Why a container waits; the reason is Kubernetes's own word for it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Container(ABC):
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    out_of_memory = False

    @abstractmethod
    def look(self) -> None:
        """See whether it has ended."""

    @abstractmethod
    def terminate(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    def last_words(self) -> str:
        return ""

    def _end(self, code: int) -> None:
        self.exit_code = code
        self.ended_at = time.time()


class ProcessContainer(Container):
    def __init__(self, api: ClusterApi, seen: Json, folder: Path, address: str) -> None:
        spec = seen["spec"]["containers"][0]
        self._home = folder / "pods" / seen["metadata"]["uid"]
        env = resolve_environment(api, seen, address)
        mounts = _mounts(seen, self._home)
        self._log = self._home / "log"
        self._limit = _memory_limit(spec)
        self._next_look = 0.0
        clean = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        command = [*spec.get("command", []), *spec.get("args", [])]
        with self._log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    env={**clean, **{name: _rewrite(value, mounts) for name, value in env.items()}},
                    cwd=self._home,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    # A machine that dies takes its processes along.
                    preexec_fn=lambda: kernel.die_with_parent(signal.SIGKILL),
                )
            except OSError as error:
                raise CannotRun("RunContainerError", str(error)) from error
        self.started_at = time.time()

    def look(self) -> None:
        if self.exit_code is not None:
            return
        self._look_at_memory()
        code = self._process.poll()
        if code is not None:
            self._end(128 - code if code < 0 else code)

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """All of it: what is below the first process dies with it in a container, too."""
        below = kernel.descendants(self._process.pid)
        for pid in (self._process.pid, *below):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self.look()
        shutil.rmtree(self._home / "volumes", ignore_errors=True)

    def last_words(self) -> str:
        text: str = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
        return text.strip()

    def _look_at_memory(self) -> None:
        now = time.monotonic()
        if self._limit is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_AT_MEMORY_EVERY_S
        pids = (self._process.pid, *kernel.descendants(self._process.pid))
        if sum(state.rss_bytes for pid in pids if (state := kernel.stat(pid))) > self._limit:
            self.out_of_memory = True
            self.kill()


class HollowContainer(Container):
    """Starts nothing: says hello, reports that it ran and has completed, and ends."""

    def __init__(self, api: ClusterApi, seen: Json, folder: Path, address: str) -> None:  # noqa: ARG002
        self.started_at = time.time()
        self._agent = HollowAgent(resolve_environment(api, seen, address))

    def look(self) -> None:
        if self.exit_code is None and (code := self._agent.exit_code()) is not None:
            self._end(code)

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self.exit_code is None:
            self._end(137)


def resolve_environment(api: ClusterApi, seen: Json, address: str) -> dict[str, str]:
    """The first container's environment. Raises CannotRun if something that it names is not there."""
    spec, metadata = seen["spec"]["containers"][0], seen["metadata"]
    if spec["image"].startswith(MISSING_IMAGE):
        raise CannotRun("ImagePullBackOff", f'Back-off pulling image "{spec["image"]}"')
    env: dict[str, str] = {}
    for source in spec.get("envFrom", []):
        env |= _secret(api, metadata["namespace"], source["secretRef"]["name"])
    fields = {
        "status.podIP": address,
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        **{f"metadata.annotations['{key}']": value for key, value in (metadata.get("annotations") or {}).items()},
    }
    for item in spec.get("env", []):
        source = item.get("valueFrom") or {}
        if "secretKeyRef" in source:
            found = _secret(api, metadata["namespace"], source["secretKeyRef"]["name"])
            env[item["name"]] = found[source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            env[item["name"]] = fields.get(source["fieldRef"]["fieldPath"], "")  # empty, as a kubelet has it
        else:
            env[item["name"]] = item.get("value", "")
    return env


def _secret(api: ClusterApi, namespace: str, name: str) -> dict[str, str]:
    try:
        data = api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}").get("data") or {}
    except Refused as refusal:
        raise CannotRun("CreateContainerConfigError", refusal.told) from refusal
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def _mounts(seen: Json, home: Path) -> dict[str, Path]:
    """Mount paths and the folders that stand for them."""
    folders: dict[str, Path] = {}
    for volume in seen["spec"].get("volumes", []):
        if "hostPath" in volume:
            folders[volume["name"]] = Path(volume["hostPath"]["path"])
        else:
            folders[volume["name"]] = home / "volumes" / volume["name"]
            folders[volume["name"]].mkdir(parents=True, exist_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    mounts = seen["spec"]["containers"][0].get("volumeMounts", [])
    return {mount["mountPath"]: folders[mount["name"]] for mount in mounts}


def _rewrite(value: str, mounts: dict[str, Path]) -> str:
    for path, folder in mounts.items():
        if value == path or value.startswith(f"{path}/"):
            return f"{folder}{value[len(path) :]}"
    return value


def _memory_limit(spec: Json) -> int | None:
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
    return int(parse_quantity(limit)) if limit else None
