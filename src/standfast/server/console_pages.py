"""The pages of the console: files that ``make console`` builds into ``console/`` beside this module."""

import mimetypes
from html import escape
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from standfast.base.errors import NotFound
from standfast.server.auth.loopback import LoopbackToken
from standfast.server.auth.principals import Unauthenticated
from standfast.server.problems import make_problem, make_response
from standfast.server.service import Service

CONSOLE = Path(__file__).parent / "console"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "media-src blob:",
        "frame-src blob:",  # what code has made, in frames without scripts
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        # No text ever becomes markup: browsers refuse scripts that try.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
ONE_YEAR = "public, max-age=31536000, immutable"

MISSING = """<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>
<title>standfast</title><h1>standfast</h1>
<p>The API is here: <a href="{docs}">its endpoints</a>. The pages of the console are not part of this installation.</p>
<p>Released wheels have them. In a clone of the repository, run <code>make console</code>, then
<code>pip install '.[cli,server,workers]'</code> again, unless the installation is editable, and restart the server.</p>
</html>"""


class ConsolePages:
    """``/`` and the files that it loads. They hold no data: everything on a page comes from the API.

    ``/?token=...`` exchanges the token that the server printed for a cookie and redirects, so that the token leaves the
    address bar. The name of a file contains a digest of its content, so that browsers keep it.
    """

    def __init__(self, service: Service, directory: Path = CONSOLE) -> None:
        self.service, self.directory = service, directory
        self.tokens = [one for one in service.authenticators if isinstance(one, LoopbackToken)]

    @property
    def routes(self) -> list[BaseRoute]:
        return [Route("/", self.show_start), Route("/console/{name}", self.show_file)]

    async def show_start(self, request: Request) -> Response:
        root = request.scope.get("root_path", "")
        if (given := request.query_params.get("token")) is not None:
            return await self.sign_in(request, given, f"{root}/")
        start = self.directory / "index.html"
        if not start.is_file():
            return HTMLResponse(MISSING.format(docs=escape(f"{root}/docs")))
        headers = {"content-security-policy": POLICY, "permissions-policy": "microphone=(self), camera=()"}
        return HTMLResponse(start.read_bytes(), headers=headers | {"cache-control": "no-cache"})

    async def sign_in(self, request: Request, given: str, start_page: str) -> Response:
        accepted = next((one for one in self.tokens if one.accepts(given)), None)
        if accepted is None:
            refusal = Unauthenticated("this token is not valid: the server was started anew")
            await self.service.record_denial(refusal, request)
            return make_response(make_problem(refusal))
        response = RedirectResponse(start_page, HTTPStatus.SEE_OTHER)
        response.headers["set-cookie"] = accepted.make_cookie(secure=request.url.scheme == "https")
        return response

    async def show_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = self.directory / "console" / name
        # The name is one segment of a path, still percent-encoded: it cannot lead out of the directory.
        if name.startswith(".") or not path.is_file():
            return make_response(make_problem(NotFound("path", request.scope["path"])))
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(path.read_bytes(), media_type=kind, headers={"cache-control": ONE_YEAR})
