"""Signing in with a browser: the token in the printed URL is exchanged for a cookie."""

from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from standfast.server.auth.loopback import LoopbackToken
from standfast.server.auth.principals import Authenticator, Unauthenticated
from standfast.server.problems import make_problem, make_response


class SignIn:
    """``/?token=...``: sets the cookie and redirects to the start page, so that the token leaves the address bar."""

    def __init__(self, authenticators: Sequence[Authenticator], start_page: str) -> None:
        self.tokens = [one for one in authenticators if isinstance(one, LoopbackToken)]
        self.start_page = start_page

    async def __call__(self, request: Request) -> Response:
        root = request.scope.get("root_path", "")
        given = request.query_params.get("token")
        if given is None:
            return RedirectResponse(f"{root}{self.start_page}", HTTPStatus.SEE_OTHER)
        accepted = next((one for one in self.tokens if one.accepts(given)), None)
        if accepted is None:
            return make_response(make_problem(Unauthenticated("this token is not valid: the server was started anew")))
        response = RedirectResponse(f"{root}{self.start_page}", HTTPStatus.SEE_OTHER)
        response.headers["set-cookie"] = accepted.make_cookie(secure=request.url.scheme == "https")
        return response
