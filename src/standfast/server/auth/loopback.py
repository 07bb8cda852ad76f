"""The token of a server on one's own machine: made when the server starts, and printed as part of its URL."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import quote

from standfast.server.auth.principals import MAX_CREDENTIAL_LENGTH, Principal, Role, get_bearer_token


class LoopbackToken:
    """Accepts one token, as ``Authorization: Bearer TOKEN`` or as a cookie, for a principal who may do everything.

    The token is random unless one is given, so that it ends with the process. It stands for the person at this
    machine: use it for servers that only this machine can reach.
    """

    def __init__(self, token: str | None = None, *, owner: str = "local", role: Role = Role.ADMIN) -> None:
        self.token = secrets.token_urlsafe(32) if token is None else token
        self.principal = Principal(subject="local", role=role, owner=owner, method="token")
        # Browsers send the cookies of a host to all of its ports: servers side by side need names of their own.
        self.cookie_name = f"standfast-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def __repr__(self) -> str:
        return f"LoopbackToken({self.principal!r})"

    def make_url(self, base_url: str) -> str:
        """Return the URL to print, such as ``http://127.0.0.1:8000/?token=...``."""
        return f"{base_url.rstrip('/')}/?token={quote(self.token, safe='')}"

    def make_cookie(self, *, secure: bool = False) -> str:
        """Return the value of the header ``Set-Cookie`` that a browser gets in exchange for the token in the URL.

        Scripts cannot read the cookie, and requests that other sites cause do not carry it.
        """
        attributes = ["Path=/", "HttpOnly", "SameSite=Strict", *(["Secure"] if secure else [])]
        return "; ".join([f"{self.cookie_name}={quote(self.token, safe='')}", *attributes])

    def accepts(self, token: str) -> bool:
        """Return whether this is the token. The time that it takes does not depend on how much of it is right."""
        return len(token) <= MAX_CREDENTIAL_LENGTH and hmac.compare_digest(digest(token), digest(self.token))

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """Return the principal if the token is in ``headers``. Any other token may be for another authenticator."""
        for token in (get_bearer_token(headers), get_cookie(headers, self.cookie_name)):
            if token is not None and self.accepts(token):
                return self.principal
        return None


def digest(token: str) -> bytes:
    """Return bytes of one length: a comparison of texts would tell the length of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def get_cookie(headers: Mapping[str, str], name: str) -> str | None:
    """Return the value of a cookie of the request. The first one counts, as browsers send the most specific first."""
    for part in headers.get("cookie", "").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return None
