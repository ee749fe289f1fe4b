"""What is sent to the server, in which parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.imports.destination import Destination
from windlass.imports.records import LoggedModel, ModelPoint, Owner, Point

MODEL = "m-0123456789abcdef0123456789abcdef"


class Transport:
    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []

    def post(self, _path: str, body: Mapping[str, Any], **_: object) -> dict[str, Any]:
        self.bodies.append(body)
        return {"created": len(self.bodies) == 1, "location": "here"}


def model(points: int) -> LoggedModel:
    metrics = [ModelPoint(key="loss", point=Point(step, 1, 0.5), run_id="a") for step in range(points)]
    return LoggedModel(
        id=MODEL, name="m", status="READY", created_ms=1, updated_ms=1, metrics=metrics, files=Owner("model", MODEL)
    )


def test_points_of_a_logged_model_go_in_parts() -> None:
    for points, sizes in ((0, [0]), (3, [3]), (10_001, [5_000, 5_000, 1])):
        transport = Transport()
        taken = Destination(transport).put_logged_model(model(points), "1")  # type: ignore[arg-type]
        assert taken.created
        assert [len(body["metrics"]) for body in transport.bodies] == sizes
