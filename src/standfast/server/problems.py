"""Errors as ``application/problem+json`` (RFC 9457): each has the ``code`` of its exception."""

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from standfast.agents.errors import UncertainCall, UserError
from standfast.base import errors
from standfast.base.log import get_logger
from standfast.runs.core.context import ContextNotSaved
from standfast.runtime.errors import ApprovalSettled, RunActive, RunEnded, RunTampered, SessionEncrypted
from standfast.server.auth.principals import IssuerUnavailable, Unauthenticated
from standfast.server.endpoints import Forbidden
from standfast.server.types import Problem
from standfast.store.operations import LeaseHeld
from standfast.workers.errors import WorkerError, WorkspaceRefused
from standfast.workspaces.ownership import WorkspaceBusy

_log = get_logger(__name__)


class RequestError(errors.StandfastError):
    """A request that is not understood or not accepted, with the status to answer with."""

    code = "bad-request"
    status: HTTPStatus = HTTPStatus.BAD_REQUEST


class UnknownMediaType(RequestError):
    code = "unsupported-media-type"
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class BodyTooLarge(RequestError):
    code = "body-too-large"
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class BodyTooSlow(RequestError):
    code = "body-too-slow"
    status = HTTPStatus.REQUEST_TIMEOUT


class WrongHost(RequestError):
    """The Host or the Origin header names another site."""

    code = "wrong-host"
    status = HTTPStatus.MISDIRECTED_REQUEST


class WrongOrigin(RequestError):
    code = "wrong-origin"
    status = HTTPStatus.FORBIDDEN


class RateLimited(RequestError):
    """Too many requests; ``retry_after`` is the number of seconds after which one is accepted again."""

    code = "rate-limited"
    status = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests: try again in {retry_after:.0f} seconds")
        self.retry_after = retry_after


class TooManyCells(RequestError):
    """The owner has as many cells under way as are allowed."""

    code = "too-many-cells"
    status = HTTPStatus.TOO_MANY_REQUESTS


class TooManyStreams(RequestError):
    """The owner has as many open event streams as are allowed."""

    code = "too-many-streams"
    status = HTTPStatus.TOO_MANY_REQUESTS


class Draining(RequestError):
    """The server is shutting down and starts nothing new."""

    code = "draining"
    status = HTTPStatus.SERVICE_UNAVAILABLE


# The first class that fits decides.
STATUS_BY_ERROR: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (Unauthenticated, HTTPStatus.UNAUTHORIZED),
    (IssuerUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (errors.OutsideScope, HTTPStatus.FORBIDDEN),
    (errors.NotFound, HTTPStatus.NOT_FOUND),
    (errors.AlreadyExists, HTTPStatus.CONFLICT),
    (errors.Conflict, HTTPStatus.CONFLICT),
    (errors.KeyReused, HTTPStatus.CONFLICT),
    (errors.SessionBusy, HTTPStatus.CONFLICT),
    (errors.RunShared, HTTPStatus.CONFLICT),
    (errors.SessionDamaged, HTTPStatus.CONFLICT),
    (errors.WrongKey, HTTPStatus.CONFLICT),
    (errors.HistoryTampered, HTTPStatus.CONFLICT),
    (RunEnded, HTTPStatus.CONFLICT),
    (RunActive, HTTPStatus.CONFLICT),
    (ApprovalSettled, HTTPStatus.CONFLICT),
    (UncertainCall, HTTPStatus.CONFLICT),
    (SessionEncrypted, HTTPStatus.CONFLICT),
    (WorkspaceBusy, HTTPStatus.CONFLICT),
    (WorkspaceRefused, HTTPStatus.CONFLICT),
    (WorkerError, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.InvalidInput, HTTPStatus.UNPROCESSABLE_ENTITY),
    (ContextNotSaved, HTTPStatus.UNPROCESSABLE_ENTITY),
    (UserError, HTTPStatus.CONFLICT),  # the stored run and the agents of this server do not fit together
    (RunTampered, HTTPStatus.CONFLICT),
    (errors.BlobsMissing, HTTPStatus.CONFLICT),
    (LeaseHeld, HTTPStatus.CONFLICT),
    (errors.NotAdopted, HTTPStatus.CONFLICT),
    (errors.Unsupported, HTTPStatus.NOT_IMPLEMENTED),
    (errors.MissingExtra, HTTPStatus.NOT_IMPLEMENTED),
    (errors.StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.StoreRefused, HTTPStatus.CONFLICT),
    (errors.Closed, HTTPStatus.SERVICE_UNAVAILABLE),
)


def get_status(error: Exception, *, is_conditional: bool = False) -> HTTPStatus:
    """Return the status of an error; a conflict of a request with If-Match is a failed precondition."""
    if isinstance(error, RequestError):
        return error.status
    if is_conditional and isinstance(error, errors.Conflict):
        return HTTPStatus.PRECONDITION_FAILED
    found = (status for kind, status in STATUS_BY_ERROR if isinstance(error, kind))
    return next(found, HTTPStatus.INTERNAL_SERVER_ERROR)


def make_problem(error: Exception, *, request_id: str | None = None, is_conditional: bool = False) -> Problem:
    """Return the problem document for an error. Of an unexpected error it has only the id under which it is logged."""
    status = get_status(error, is_conditional=is_conditional)
    code = getattr(error, "code", "internal") if isinstance(error, errors.StandfastError) else "internal"
    detail = str(error)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("request %s failed", request_id, exc_info=error)
        detail = f"the server failed to answer; its log has the reason, with request id {request_id}"
    return Problem(
        title=status.phrase, status=status, detail=detail, code=code, request_id=request_id, facts=get_facts(error)
    )


def get_facts(error: Exception) -> dict[str, Any]:
    """Return the plain attributes of an exception, for a client that raises it again."""
    if not isinstance(error, errors.StandfastError):
        return {}
    return {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}


def make_response(problem: Problem, error: Exception | None = None) -> Response:
    """Return the response for a problem."""
    headers: dict[str, Any] = {}
    if isinstance(error, RateLimited):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["retry-after"] = "1"
    return Response(
        msgspec.json.encode(problem), problem.status, headers=headers, media_type="application/problem+json"
    )
