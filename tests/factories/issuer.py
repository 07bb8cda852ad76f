"""An OpenID Connect issuer on a socket of this machine."""

import functools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm


@functools.cache
def make_rsa_key(name: str) -> rsa.RSAPrivateKey:
    """Return the key of this name. It is made when a test needs it, because that takes a quarter of a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


AUDIENCE = "standfast"


class Issuer:
    """An issuer: its documents by path, and the paths that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {}
        self.redirects: dict[str, str] = {}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.answers["/.well-known/openid-configuration"] = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.publish("one")

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        if request.path in self.redirects:
            request.send_response(302)
            request.send_header("Location", self.redirects[request.path])
            request.end_headers()
        elif (answer := self.answers.get(request.path)) is None:
            request.send_error(500)
        else:
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            request.send_response(200)
            request.end_headers()
            request.wfile.write(body)

    def publish(self, *names: str) -> None:
        self.answers["/keys"] = {"keys": [make_jwk(name) for name in names]}

    def sign(self, *, key: Any = None, kid: str | None = "one", algorithm: str = "RS256", **changes: Any) -> str:
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "u1",
            "exp": time.time() + 600,
            "roles": ["user"],
            **changes,
        }
        present = {name: value for name, value in claims.items() if value is not None}
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(present, key or make_rsa_key("one"), algorithm=algorithm, headers=headers)


def make_jwk(name: str) -> dict[str, Any]:
    key = RSAAlgorithm.to_jwk(make_rsa_key(name).public_key(), as_dict=True)
    return {**key, "kid": name, "use": "sig", "alg": "RS256"}


@contextmanager
def open_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    thread = threading.Thread(target=issuer.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield issuer
    issuer.server.shutdown()
    thread.join()
    issuer.server.server_close()
