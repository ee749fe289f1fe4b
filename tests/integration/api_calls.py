"""What tests ask of the API, and the one shape of its errors."""

from __future__ import annotations

from typing import Any

from httpx import Client, Response

SPEC = {"command": "python train.py", "code": None, "name": "gpt-small"}


def error_of(response: Response, status: int, code: str) -> dict[str, Any]:
    body = response.json()
    assert response.status_code == status, body
    assert set(body) == {"code", "message", "hint"}
    assert body["code"] == code
    assert body["message"]
    return dict(body)


def submit(api: Client, key: str | None = None, **spec: Any) -> dict[str, Any]:
    headers = {"Idempotency-Key": key} if key else {}
    response = api.post("/api/runs", json={"spec": {**SPEC, **spec}}, headers=headers)
    assert response.status_code == 201, response.text
    return dict(response.json())
