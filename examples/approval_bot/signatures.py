"""Signatures of webhooks, which prove that a request is recent and comes from the chat service."""

import hashlib
import hmac
from collections.abc import Mapping

MAX_AGE = 300.0
"""Seconds after which a signature expires, so that recorded requests cannot be replayed."""


def make_headers(secret: str, body: bytes, *, now: float) -> dict[str, str]:
    """Return the signature headers of a body."""
    timestamp = str(int(now))
    return {"X-Chat-Request-Timestamp": timestamp, "X-Chat-Signature": compute_signature(secret, timestamp, body)}


def is_valid(secret: str, body: bytes, headers: Mapping[str, str], *, now: float) -> bool:
    timestamp, received = headers.get("X-Chat-Request-Timestamp", ""), headers.get("X-Chat-Signature", "")
    fresh = timestamp.isdecimal() and abs(now - int(timestamp)) <= MAX_AGE
    return fresh and hmac.compare_digest(compute_signature(secret, timestamp, body).encode(), received.encode())


def compute_signature(secret: str, timestamp: str, body: bytes) -> str:
    return "v0=" + hmac.new(secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()
