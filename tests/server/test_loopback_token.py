"""The token of a server on one's own machine."""

from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from standfast.server import LoopbackToken, Role


def test_the_url_carries_the_token() -> None:
    token = LoopbackToken()
    url = token.make_url("http://127.0.0.1:8000/")
    assert url.startswith("http://127.0.0.1:8000/?token=")
    assert token.accepts(parse_qs(urlsplit(url).query)["token"][0])


async def test_the_cookie_is_for_this_browser_and_this_site_only() -> None:
    token = LoopbackToken()
    cookie = SimpleCookie(token.make_cookie())[token.cookie_name]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert (cookie["secure"], cookie["domain"]) == ("", "")
    principal = await token.authenticate({"cookie": f"a=b; {token.cookie_name}={cookie.value}; c=d"})
    assert principal is not None
    assert (principal.role, principal.method) == (Role.ADMIN, "token")
    assert "Secure" in token.make_cookie(secure=True)


async def test_the_token_is_accepted_as_a_bearer() -> None:
    token = LoopbackToken(owner="me", role=Role.USER)
    principal = await token.authenticate({"authorization": f"bearer {token.token}"})
    assert principal is not None
    assert (principal.owner, principal.role) == ("me", Role.USER)


async def test_nothing_else_is_accepted() -> None:
    token, other = LoopbackToken(), LoopbackToken()
    assert token.token != other.token
    assert token.cookie_name != other.cookie_name
    for headers in (
        {},
        {"authorization": f"Bearer {other.token}"},
        {"authorization": f"Bearer {token.token[:-1]}"},
        {"authorization": token.token},
        {"cookie": f"{token.cookie_name}={other.token}"},
        {"cookie": f"{token.cookie_name}="},
        {"cookie": f"{token.cookie_name}=\udcff; x"},
        {"cookie": token.token},
    ):
        assert await token.authenticate(headers) is None


def test_the_token_is_in_no_representation() -> None:
    token = LoopbackToken()
    assert token.token not in repr(token)
