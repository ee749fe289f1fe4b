"""What a spec's `kubernetes:` section comes to on a given engine, and what it may not ask for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from windlass.core.errors import LaunchFailed
from windlass.wire.kubernetes import KubernetesConfig, KubernetesOptions, KubernetesSecurity


def decide_options(config: KubernetesConfig, given: Mapping[str, Any]) -> KubernetesOptions:
    """The engine's defaults and the spec's section together: the spec's values win, its lists come on top. Raises
    LaunchFailed for what the engine's operator has not allowed."""
    asked = KubernetesOptions.model_validate(given)
    _check(asked, config.defaults, config.security)
    merged: dict[str, Any] = {}
    for name in KubernetesOptions.model_fields:
        default, own = getattr(config.defaults, name), getattr(asked, name)
        if isinstance(default, dict):
            merged[name] = {**default, **own}
        elif name == "volumes":
            merged[name] = tuple({volume.name: volume for volume in (*default, *own)}.values())
        elif isinstance(default, tuple):
            merged[name] = tuple(dict.fromkeys((*default, *own)))
        else:
            merged[name] = default if own is None else own
    return KubernetesOptions(**merged)


def _check(asked: KubernetesOptions, defaults: KubernetesOptions, security: KubernetesSecurity) -> None:
    """Folders of machines, accounts and other people's secrets are the operator's to give."""
    account = asked.service_account
    if account and account not in (*security.service_accounts, defaults.service_account):
        raise _not_allowed("service account", account, security.service_accounts, "service_accounts")
    in_files = [volume.secret for volume in asked.volumes if volume.secret]
    for secret in (*asked.secrets, *asked.image_pull_secrets, *in_files):
        if secret not in (*security.secrets, *defaults.secrets, *defaults.image_pull_secrets):
            raise _not_allowed("Secret", secret, security.secrets, "secrets")
    for volume in asked.volumes:
        if volume.host_path and not _is_below(volume.host_path, security.host_paths):
            raise _not_allowed("folder of nodes", volume.host_path, security.host_paths, "host_paths")


def _is_below(path: str, allowed: tuple[str, ...]) -> bool:
    wanted = PurePosixPath(path)
    return ".." not in wanted.parts and any(wanted.is_relative_to(folder) for folder in allowed)


def _not_allowed(what: str, value: str, allowed: tuple[str, ...], setting: str) -> LaunchFailed:
    known = ", ".join(allowed) or "none"
    return LaunchFailed(
        f"{what} '{value}' may not be used by specs; allowed: {known}",
        hint=f"the engine's setting `security.{setting}` lists what may be used",
    )
