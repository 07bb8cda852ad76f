"""The errors of a server, raised as the exceptions that the library raises; they are found by their codes."""

from collections.abc import Iterator

import msgspec

import standfast.agents.errors
import standfast.runtime.errors
import standfast.server.auth.principals  # noqa: F401 - their exceptions are found by their codes
from standfast.base.errors import StandfastError
from standfast.server.types import Problem


class ServerError(StandfastError):
    """The server refused the request, or failed. ``code`` and ``status`` are those of its answer."""

    code = "server-error"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.code = problem.code  # type: ignore[misc]
        self.status, self.request_id = problem.status, problem.request_id


class ServerUnreachable(StandfastError):
    """The server cannot be reached, or did not answer. A request with a key can be sent again."""

    code = "server-unreachable"


def make_error(problem: Problem) -> StandfastError:
    """Return the exception with the code of the problem, or a :class:`ServerError` for an unknown code."""
    kind = next((one for one in iter_errors(StandfastError) if one.__dict__.get("code") == problem.code), None)
    if kind is None or kind is ServerError:
        return ServerError(problem)
    error = kind.__new__(kind)
    Exception.__init__(error, problem.detail)
    # Not what every exception has, such as its notes and its traceback: a server could rewrite what is printed.
    error.__dict__.update(
        (name, value) for name, value in problem.facts.items() if not name.startswith("_") and not hasattr(kind, name)
    )
    return error


def iter_errors(kind: type[StandfastError]) -> Iterator[type[StandfastError]]:
    for one in kind.__subclasses__():
        yield one
        yield from iter_errors(one)


def parse_problem(status: int, content: bytes) -> Problem:
    """Return the problem document of an answer; a proxy in between may send something else."""
    try:
        return msgspec.json.decode(content, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = content[:200].decode("utf-8", "replace")
        return Problem(
            title="", status=status, code="server-error", detail=f"the answer has the status {status}: {text}"
        )
