"""How providers of models know their customers: which fields a secret of each has. Any other provider takes a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEY = ("api_key", "API key")
_BASE = ("api_base", "address of the API, if it is not the provider's own")
_AWS_REGION = ("aws_region_name", "region, for instance us-east-1")


def _mode(mode: str, secret: list[tuple[str, str]], config: list[tuple[str, str]], needed: tuple[str, ...]) -> Any:
    def fields(listed: list[tuple[str, str]]) -> list[dict[str, Any]]:
        return [{"name": name, "description": told, "required": name in needed} for name, told in listed]

    return {
        "mode": mode,
        "display_name": mode.replace("_", " "),
        "secret_fields": fields(secret),
        "config_fields": fields(config),
    }


def _key(*config: tuple[str, str], needed: tuple[str, ...] = ()) -> Any:
    return _mode("api_key", [_KEY], list(config) or [_BASE], ("api_key", *needed))


_PLAIN = ("anthropic", "cohere", "deepseek", "gemini", "groq", "mistral", "openai", "openrouter", "together_ai", "xai")
_MODES: Mapping[str, list[Any]] = {
    **{name: [_key()] for name in _PLAIN},
    "azure": [
        _key(("api_base", "address of the deployment"), ("api_version", "version of the API"), needed=("api_base",))
    ],
    "bedrock": [
        _key(_AWS_REGION),
        _mode(
            "access_keys",
            [("aws_access_key_id", "id of the access key"), ("aws_secret_access_key", "the access key")],
            [_AWS_REGION],
            ("aws_access_key_id", "aws_secret_access_key"),
        ),
        _mode("iam_role", [], [("aws_role_name", "ARN of the role"), _AWS_REGION], ("aws_role_name",)),
    ],
    "databricks": [_key(("api_base", "address of the workspace"), needed=("api_base",))],
    "vertex_ai": [
        _mode(
            "service_account",
            [("vertex_credentials", "JSON of the service account")],
            [("vertex_project", "project"), ("vertex_location", "region")],
            ("vertex_credentials",),
        )
    ],
}


def known_providers() -> list[str]:
    return sorted(_MODES)


def modes_of(provider: str) -> list[Any]:
    """The first is the usual one."""
    return _MODES.get(provider, [_key()])
