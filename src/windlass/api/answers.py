"""Answers that are asked for all the time, written as JSON straight from their model: FastAPI would validate them once
more and go through dictionaries, which takes longer than everything else about them.
"""

from __future__ import annotations

from fastapi import Response
from pydantic import BaseModel


def json_of(model: BaseModel) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")
