"""Clients that follow no redirects, which would carry a conversation or credentials to another address."""

from functools import cache
from typing import Any

from standfast.base.log import hide_in_logs


def create_openai_client(library: Any, **options: Any) -> Any:
    """Return an asynchronous client of the openai package. A redirect raises the package's error with its status."""
    client = library.AsyncOpenAI(http_client=library.DefaultAsyncHttpxClient(follow_redirects=False), **options)
    hide_in_logs(client.api_key)
    return client


def make_websocket_connector(library: Any) -> Any:
    """Return ``connect`` of the websockets package, for which a redirect is a failed handshake."""

    class Connect(library.asyncio.client.connect):  # type: ignore[misc]
        def process_redirect(self, exc: Exception) -> Exception:
            return exc

    return Connect


@cache
def get_url_opener() -> Any:
    """Return an opener of ``urllib``. A redirect raises ``urllib.error.HTTPError`` with its status."""
    import urllib.request

    class RefuseRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return urllib.request.build_opener(RefuseRedirects)
