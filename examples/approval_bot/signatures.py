"""Signed webhooks: how a bot knows that a request comes from its chat service, and was made just now."""

import hashlib
import hmac
from collections.abc import Mapping

LONGEST_AGE = 300.0
"""Seconds after which a request that somebody has recorded is worth nothing."""


def signed(secret: str, body: bytes, *, now: float) -> dict[str, str]:
    """The headers that go with a body."""
    moment = str(int(now))
    return {"X-Chat-Request-Timestamp": moment, "X-Chat-Signature": signature(secret, moment, body)}


def is_genuine(secret: str, body: bytes, headers: Mapping[str, str], *, now: float) -> bool:
    moment, given = headers.get("X-Chat-Request-Timestamp", ""), headers.get("X-Chat-Signature", "")
    fresh = moment.isdecimal() and abs(now - int(moment)) <= LONGEST_AGE
    return fresh and hmac.compare_digest(signature(secret, moment, body).encode(), given.encode())


def signature(secret: str, moment: str, body: bytes) -> str:
    return "v0=" + hmac.new(secret.encode(), f"v0:{moment}:".encode() + body, hashlib.sha256).hexdigest()
