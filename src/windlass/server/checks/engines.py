"""Can the configured engines be used: what the controller last heard of each, and whether their tools are here."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

from sqlalchemy import func, select

from windlass.core.clock import Clock
from windlass.core.errors import WindlassError
from windlass.core.quantities import format_duration
from windlass.db.database import Database
from windlass.scheduling.engines import EngineState, load_engines
from windlass.scheduling.nodes import nodes
from windlass.server.settings import Role, Settings
from windlass.wire.checks import CheckView, Status
from windlass.wire.engines import EngineConfig
from windlass.wire.kubernetes import KubernetesConfig
from windlass.wire.ray import RayConfig
from windlass.wire.slurm import SlurmConfig

# Their nodes talk to the API.
NEED_URL = frozenset(("ray", "kubernetes"))
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_COMMAND_S = 10.0
_OLD_S = 120.0
# What the Kubernetes engine does in its namespace: verb, group, resource.
_RIGHTS = (
    ("create", "", "pods"),
    ("watch", "", "pods"),
    ("delete", "", "pods"),
    ("create", "", "services"),
    ("create", "", "secrets"),
    ("create", "networking.k8s.io", "networkpolicies"),
    ("list", "", "nodes"),
)


def check(settings: Settings, db: Database, clock: Clock) -> Iterator[CheckView]:
    with db.read() as tx:
        states = load_engines(tx)
        rows = tx.execute(select(nodes.c.engine, func.count().label("total")).group_by(nodes.c.engine))
        counts = {row.engine: int(row.total) for row in rows}
    for name, config in settings.engines.items():
        yield _reach(name, config, states.get(name), counts.get(name, 0), clock.now())
        if settings.role is not Role.API:  # which never speaks to an engine, and may not be able to
            try:
                yield from _tools(name, config)
            except WindlassError as error:
                yield _line("engine.tools", name, "fail", error.message, error.hint or "")
        if config.type in NEED_URL:
            yield _url(name, config, settings.url)


def _reach(name: str, config: EngineConfig, state: EngineState | None, count: int, now: float) -> CheckView:
    if state is None:
        advice = "is a controller running with the same settings? `engines` must be the same for all servers"
        return _line("engine.reach", name, "warn", f"{config.type}: no controller has opened it yet", advice)
    if state.unreachable_since is not None:
        since = format_duration(max(0.0, now - state.unreachable_since))
        advice = "its runs are shown as unknown and go on by themselves until it answers again"
        return _line("engine.reach", name, "fail", f"{config.type}: unreachable for {since}: {state.message}", advice)
    if not count:
        return _line("engine.reach", name, "warn", f"{config.type}: answers, but has no nodes", "nothing can run on it")
    age = now - (state.seen_at or 0.0)
    if age > _OLD_S:
        advice = "see whether a controller is active"
        return _line("engine.reach", name, "warn", f"{config.type}: not asked for {format_duration(age)}", advice)
    return _line("engine.reach", name, "ok", f"{config.type}, {count} node{'s' if count != 1 else ''}")


def _tools(name: str, config: EngineConfig) -> Iterator[CheckView]:
    if isinstance(config, RayConfig):
        yield _package(name, "ray", "ray")
    elif isinstance(config, SlurmConfig):
        for tool in ("sbatch", "squeue", "sinfo", "scancel"):
            yield _command(name, tool, config)
        yield _shared_folder(name, config)
    elif isinstance(config, KubernetesConfig):
        yield _package(name, "kubernetes", "kubernetes")
        yield from _cluster(name, config)


def _package(name: str, package: str, extra: str) -> CheckView:
    try:
        return _line("engine.tools", name, "ok", f"Python package {package} {importlib.metadata.version(package)}")
    except importlib.metadata.PackageNotFoundError:
        advice = f"pip install 'windlass[{extra}]' for the server"
        return _line("engine.tools", name, "fail", f"the Python package {package} is not installed", advice)


def _command(name: str, tool: str, config: SlurmConfig) -> CheckView:
    path = str(config.bin_dir / tool) if config.bin_dir else tool
    environ = {**os.environ, **({"SLURM_CONF": str(config.conf)} if config.conf else {})}
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
            env=environ,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        advice = "install Slurm's client commands on the server, or set `bin_dir`"
        return _line("engine.tools", name, "fail", f"{path}: {error}", advice)
    said = (done.stdout or done.stderr).strip().splitlines() or ["it says nothing"]
    return _line("engine.tools", name, "ok" if done.returncode == 0 else "fail", f"{tool}: {said[0]}")


def _shared_folder(name: str, config: SlurmConfig) -> CheckView:
    folder = config.shared_dir
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), None)
    fine = nearest is not None and os.access(nearest, os.W_OK | os.X_OK)
    advice = "" if fine else "it must be writable by the server, and seen by all nodes under the same path"
    found = f"shared folder {folder}" + ("" if fine else " cannot be written")
    return _line("engine.folder", name, "ok" if fine else "fail", found, advice)


def _cluster(name: str, config: KubernetesConfig) -> Iterator[CheckView]:
    from windlass.engines.kubernetes.api import open_api

    api = open_api(kubeconfig=config.kubeconfig, context=config.context)
    yield _line("engine.version", name, "ok", f"Kubernetes {api.get('/version').get('gitVersion', '?')}")
    refused = []
    for verb, group, resource in _RIGHTS:
        wanted = {"verb": verb, "group": group, "resource": resource}
        if resource != "nodes":
            wanted["namespace"] = config.namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not answer.get("status", {}).get("allowed"):
            refused.append(f"{verb} {resource}")
    if refused:
        found = f"may not {', '.join(refused)} in {config.namespace}"
        yield _line("engine.rights", name, "fail", found, "give its account the rights of the chart's role")
    else:
        yield _line("engine.rights", name, "ok", f"may do what it needs in {config.namespace}")


def _url(name: str, config: EngineConfig, server_url: str | None) -> CheckView:
    url = (config.server_url if isinstance(config, KubernetesConfig) else None) or server_url
    if url is None:
        advice = "set `server.url` to where nodes reach the API"
        return _line("engine.url", name, "fail", "its nodes do not know where this server is", advice)
    local = urlsplit(url).hostname in _LOOPBACK
    advice = "only nodes on this machine reach that: set `server.url` to an address of the network" if local else ""
    return _line("engine.url", name, "warn" if local else "ok", f"nodes report to {url}", advice)


def _line(code: str, name: str, status: Status, found: str, advice: str = "") -> CheckView:
    return CheckView(code=code, name=f"engine {name}", status=status, found=found, advice=advice)
