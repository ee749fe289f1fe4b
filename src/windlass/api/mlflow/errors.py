"""Our errors in MLflow's words: its clients go by `error_code` and by the status."""

from __future__ import annotations

import json
import logging

from fastapi import Response

from windlass.core import errors

log = logging.getLogger(__name__)

# MLflow's codes that answers of ours use, and their HTTP status.
STATUS = {
    "INVALID_PARAMETER_VALUE": 400,
    "BAD_REQUEST": 400,
    "RESOURCE_ALREADY_EXISTS": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "RESOURCE_DOES_NOT_EXIST": 404,
    "ENDPOINT_NOT_FOUND": 404,
    "NOT_FOUND": 404,
    "RESOURCE_CONFLICT": 409,
    "REQUEST_LIMIT_EXCEEDED": 429,
    "INTERNAL_ERROR": 500,
    "INVALID_STATE": 500,
    "NOT_IMPLEMENTED": 501,
    "TEMPORARILY_UNAVAILABLE": 503,
}

# The nearest ancestor in the tree decides.
_CODES: dict[type[errors.WindlassError], str] = {
    errors.WindlassError: "INTERNAL_ERROR",
    errors.InvalidInput: "INVALID_PARAMETER_VALUE",
    errors.NotFound: "RESOURCE_DOES_NOT_EXIST",
    errors.Gone: "RESOURCE_DOES_NOT_EXIST",
    errors.Ambiguous: "RESOURCE_CONFLICT",
    errors.Conflict: "RESOURCE_CONFLICT",
    errors.AlreadyExists: "RESOURCE_ALREADY_EXISTS",
    errors.InvalidTransition: "INVALID_STATE",
    errors.QueueFull: "REQUEST_LIMIT_EXCEEDED",
    errors.Unauthorized: "UNAUTHENTICATED",
    errors.Unavailable: "TEMPORARILY_UNAVAILABLE",
}


class MlflowError(errors.WindlassError):
    """For the few answers whose code no error of ours stands for."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: errors.WindlassError) -> str:
    if isinstance(error, MlflowError):
        return error.code
    return next(_CODES[ancestor] for ancestor in type(error).__mro__ if ancestor in _CODES)


def answer_error(error: Exception) -> Response:
    if isinstance(error, errors.WindlassError):
        code, message = code_of(error), error.message
        if error.hint and code in ("UNAUTHENTICATED", "TEMPORARILY_UNAVAILABLE"):
            message += f" ({error.hint})"
    else:
        log.error("a call of MLflow's API failed", exc_info=error)
        code, message = "INTERNAL_ERROR", "something went wrong in the server; its log says what"
    status = 413 if isinstance(error, errors.TooLarge) else STATUS[code]
    return Response(
        json.dumps({"error_code": code, "message": message}), status_code=status, media_type="application/json"
    )
