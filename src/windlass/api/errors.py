"""The one place where errors become HTTP: a status for every branch of the error tree, one body for all."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from windlass.core import errors
from windlass.wire.cluster import ErrorBody

log = logging.getLogger(__name__)

# The nearest ancestor in the tree decides.
STATUS: dict[type[errors.WindlassError], int] = {
    errors.WindlassError: 500,
    errors.InvalidInput: 422,
    errors.TooLarge: 413,
    errors.NotFound: 404,
    errors.Ambiguous: 409,
    errors.Conflict: 409,
    errors.Gone: 410,
    errors.Unauthorized: 401,
    errors.Unavailable: 503,
    errors.StorageFull: 507,
    errors.BadSeal: 503,
}
_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}


def status_of(error: errors.WindlassError) -> int:
    return next(STATUS[ancestor] for ancestor in type(error).__mro__ if ancestor in STATUS)


def install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(errors.WindlassError)
    async def _ours(_request: Request, error: errors.WindlassError) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, errors.Unauthorized) else None
        return _response(status_of(error), error.code, error.message, error.hint, headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        return _response(422, "invalid_input", "; ".join(problems)[:2_000], "the schema is at /docs")

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "http_error")
        return _response(error.status_code, code, str(error.detail), "the routes are at /docs", error.headers)

    @app.exception_handler(Exception)
    async def _unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _response(500, "internal_error", "something went wrong in the server", "its log says what")


def _response(status: int, code: str, message: str, hint: str | None, headers: object = None) -> JSONResponse:
    body = ErrorBody(code=code, message=message, hint=hint)
    return JSONResponse(body.model_dump(), status_code=status, headers=headers)  # type: ignore[arg-type]
