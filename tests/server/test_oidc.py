"""Bearer tokens of an issuer of our own, on a socket of this machine."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from factories.issuer import AUDIENCE, Issuer, make_jwk, make_rsa_key
from standfast import InvalidInput
from standfast.server import IssuerUnavailable, Oidc, Role, Unauthenticated
from standfast.server.auth.oidc import COOLDOWN_SECONDS, MAX_KEY_AGE, MAX_RESPONSE_BYTES, REFRESH_SECONDS
from standfast.server.auth.principals import RoleMissing, TokenExpired
from standfast.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture
def oidc(issuer: Issuer, clock: FakeClock) -> Oidc:
    return Oidc(issuer.url, AUDIENCE, monotonic=clock)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_a_token_stands_for_its_owner_and_role(oidc: Oidc, issuer: Issuer) -> None:
    principal = await oidc.authenticate(bearer(issuer.sign(roles=["user", "approver", "dancer"])))
    assert principal is not None
    assert (principal.subject, principal.owner, principal.role, principal.method) == (
        "oidc:u1",
        "u1",
        Role.APPROVER,
        "oidc",
    )


@pytest.mark.parametrize("headers", [{}, bearer("sf_a_b"), bearer("a.b"), {"authorization": "Basic a.b.c"}])
async def test_other_credentials_are_left_to_other_authenticators(
    oidc: Oidc, issuer: Issuer, headers: dict[str, str]
) -> None:
    assert await oidc.authenticate(headers) is None
    assert issuer.asked == []


@pytest.mark.parametrize("iss", [None, "https://elsewhere.example", "", ["x"], 5])
async def test_a_token_of_another_issuer_is_left_to_other_authenticators(oidc: Oidc, issuer: Issuer, iss: Any) -> None:
    claims = {"iss": iss, "aud": AUDIENCE, "sub": "u1", "exp": time.time() + 600, "roles": ["admin"]}
    header, signature = {"alg": "RS256", "kid": "one"}, issuer.sign().rpartition(".")[2]
    assert await oidc.authenticate(bearer(f"{encode_part(header)}.{encode_part(claims)}.{signature}")) is None
    assert issuer.asked == []


@pytest.mark.parametrize("token", ["a.b.c", "..", "e30.W10.", "\x00.\x00.\x00", "eyJhbGciOiJub25lIn0.NQ."])
async def test_a_token_that_cannot_be_read_is_refused(oidc: Oidc, issuer: Issuer, token: str) -> None:
    with pytest.raises(Unauthenticated):
        await oidc.authenticate(bearer(token))
    assert issuer.asked == []


def encode_part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def forge(header: dict[str, Any], claims: dict[str, Any], signature: bytes | None = None) -> str:
    return f"{encode_part(header)}.{encode_part(claims)}.{encode_part(signature or b'')}"


async def test_a_token_without_a_signature_is_refused(oidc: Oidc, issuer: Issuer) -> None:
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "u1", "exp": time.time() + 600, "roles": ["admin"]}
    for algorithm in ("none", "None", "", "HS256", "RS1", None, ["RS256"], {}):
        with pytest.raises(Unauthenticated):
            await oidc.authenticate(bearer(forge({"alg": algorithm, "kid": "one"}, claims)))
    assert issuer.asked == []
    with pytest.raises(Unauthenticated):
        await oidc.authenticate(bearer(forge({"alg": "RS256", "kid": "one"}, claims)))


async def test_a_public_key_is_no_secret_to_sign_with(oidc: Oidc, issuer: Issuer) -> None:
    public = make_rsa_key("one").public_key()
    encodings = [
        public.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
        for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER)
    ]
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "u1", "exp": time.time() + 600, "roles": ["admin"]}
    for secret in encodings:
        unsigned = f"{encode_part({'alg': 'HS256', 'kid': 'one'})}.{encode_part(claims)}"
        signature = hmac.new(secret, unsigned.encode(), hashlib.sha256).digest()
        with pytest.raises(Unauthenticated):
            await oidc.authenticate(bearer(f"{unsigned}.{encode_part(signature)}"))


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "another"},
        {"aud": None},
        {"aud": []},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"exp": None},
        {"exp": "soon"},
        {"exp": float("inf")},
        {"nbf": float("nan")},
        {"nbf": []},
        {"nbf": time.time() + 3600},
        {"key": "two"},
        {"algorithm": "RS384"},
    ],
    ids=lambda changes: next(iter(changes)),  # the same in every process
)
async def test_a_token_that_is_not_for_this_server_is_refused(
    oidc: Oidc, issuer: Issuer, changes: dict[str, Any]
) -> None:
    key = make_rsa_key(changes["key"]) if "key" in changes else None
    token = issuer.sign(**{**changes, "key": key})
    with pytest.raises(Unauthenticated) as refused:
        await oidc.authenticate(bearer(token))
    assert refused.value.code == "unauthenticated"
    assert token.rpartition(".")[2] not in str(refused.value)


@given(parts=st.lists(st.binary(max_size=200) | st.from_regex(r"\{.*\}", fullmatch=True), min_size=3, max_size=3))
async def test_any_other_text_is_refused_or_left_to_other_authenticators(parts: list[bytes | str]) -> None:
    oidc = Oidc("http://127.0.0.1:1", AUDIENCE)
    token = ".".join(encode_part(part.encode() if isinstance(part, str) else part) for part in parts)
    with contextlib.suppress(Unauthenticated):
        assert await oidc.authenticate(bearer(token)) is None


async def test_an_expired_token_is_refused_as_such(oidc: Oidc, issuer: Issuer) -> None:
    with pytest.raises(TokenExpired) as expired:
        await oidc.authenticate(bearer(issuer.sign(exp=time.time() - 3600)))
    assert expired.value.code == "token-expired"


async def test_clocks_may_differ_a_little(issuer: Issuer) -> None:
    oidc = Oidc(issuer.url, AUDIENCE, leeway=1000)
    token = issuer.sign(exp=time.time() - 500, nbf=time.time() + 500, iat=time.time() + 500)
    assert await oidc.authenticate(bearer(token)) is not None


async def test_headers_of_a_token_choose_no_key(oidc: Oidc, issuer: Issuer) -> None:
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "u1", "exp": time.time() + 600, "roles": ["admin"]}
    for headers in (
        {"jwk": make_jwk("two")},
        {"jku": f"{issuer.url}/evil", "kid": "one"},
        {"x5u": f"{issuer.url}/evil", "kid": "one"},
        {"kid": "one", "crit": ["exp"]},
    ):
        with pytest.raises(Unauthenticated):
            await oidc.authenticate(bearer(jwt.encode(claims, make_rsa_key("two"), algorithm="RS256", headers=headers)))
    assert "/evil" not in issuer.asked


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "EdDSA", "PS256"])
async def test_other_signatures_with_a_private_key_are_accepted(oidc: Oidc, issuer: Issuer, algorithm: str) -> None:
    key: Any
    match algorithm:
        case "ES256" | "ES384":
            key = ec.generate_private_key(ec.SECP256R1() if algorithm == "ES256" else ec.SECP384R1())
            jwk = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
            jwk = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case _:
            key, jwk = make_rsa_key("two"), {**make_jwk("two"), "alg": "PS256"}
    issuer.answers["/keys"] = {"keys": [{**jwk, "kid": "other"}]}
    principal = await oidc.authenticate(bearer(issuer.sign(key=key, kid="other", algorithm=algorithm)))
    assert principal is not None


async def test_only_public_keys_for_signatures_are_used(oidc: Oidc, issuer: Issuer, clock: FakeClock) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    symmetric = {"kty": "oct", "k": encode_part(b"x" * 32), "kid": "oct", "alg": "HS256"}
    private = RSAAlgorithm.to_jwk(make_rsa_key("two"), as_dict=True)
    useless = [
        symmetric,
        {**make_jwk("two"), "use": "enc"},
        {**private, "kid": "two"},
        {**RSAAlgorithm.to_jwk(weak.public_key(), as_dict=True), "kid": "weak"},
        {"kty": "RSA", "kid": "broken"},
        "nothing",
    ]
    issuer.answers["/keys"] = {"keys": [*useless, make_jwk("one")]}
    assert await oidc.authenticate(bearer(issuer.sign())) is not None
    tokens = [
        issuer.sign(key=make_rsa_key("two"), kid="two"),
        issuer.sign(key="x" * 32, kid="oct", algorithm="HS256"),
    ]
    for token in tokens:
        with pytest.raises(Unauthenticated):
            await oidc.authenticate(bearer(token))


async def test_a_new_key_of_the_issuer_is_accepted(oidc: Oidc, issuer: Issuer, clock: FakeClock) -> None:
    assert await oidc.authenticate(bearer(issuer.sign())) is not None
    issuer.publish("one", "two")
    clock.advance(COOLDOWN_SECONDS)
    assert await oidc.authenticate(bearer(issuer.sign(key=make_rsa_key("two"), kid="two"))) is not None
    assert await oidc.authenticate(bearer(issuer.sign())) is not None
    assert issuer.asked.count("/keys") == 2


async def test_a_withdrawn_key_is_refused_after_some_minutes(oidc: Oidc, issuer: Issuer, clock: FakeClock) -> None:
    token = issuer.sign()
    assert await oidc.authenticate(bearer(token)) is not None
    issuer.publish("two")
    clock.advance(REFRESH_SECONDS)
    with pytest.raises(Unauthenticated):
        await oidc.authenticate(bearer(token))


async def test_invented_key_ids_cause_few_requests(oidc: Oidc, issuer: Issuer, clock: FakeClock) -> None:
    async def attempt(kid: str) -> None:
        with pytest.raises(Unauthenticated):
            await oidc.authenticate(bearer(issuer.sign(kid=kid)))

    await asyncio.gather(*(attempt(f"kid{number}") for number in range(20)))
    assert issuer.asked.count("/keys") == 1
    clock.advance(COOLDOWN_SECONDS)
    await asyncio.gather(*(attempt(f"kid{number}") for number in range(20)))
    assert issuer.asked.count("/keys") == 2


async def test_a_token_without_a_key_id_needs_an_issuer_with_one_key(
    oidc: Oidc, issuer: Issuer, clock: FakeClock
) -> None:
    token = issuer.sign(kid=None)
    assert await oidc.authenticate(bearer(token)) is not None
    issuer.publish("one", "two")
    clock.advance(REFRESH_SECONDS)
    with pytest.raises(Unauthenticated):
        await oidc.authenticate(bearer(token))


async def test_a_token_is_neither_accepted_nor_refused_while_there_are_no_keys(
    oidc: Oidc, issuer: Issuer, clock: FakeClock
) -> None:
    keys = issuer.answers.pop("/keys")
    with pytest.raises(IssuerUnavailable) as unavailable:
        await oidc.authenticate(bearer(issuer.sign()))
    assert unavailable.value.code == "issuer-unavailable"
    issuer.answers["/keys"] = keys
    clock.advance(COOLDOWN_SECONDS)
    assert await oidc.authenticate(bearer(issuer.sign())) is not None


async def test_known_keys_outlive_a_short_outage_of_the_issuer(oidc: Oidc, issuer: Issuer, clock: FakeClock) -> None:
    token = issuer.sign()
    assert await oidc.authenticate(bearer(token)) is not None
    issuer.answers.clear()
    clock.advance(REFRESH_SECONDS)
    assert await oidc.authenticate(bearer(token)) is not None
    clock.advance(MAX_KEY_AGE)
    with pytest.raises(IssuerUnavailable):
        await oidc.authenticate(bearer(token))


async def test_documents_that_cannot_be_trusted_are_not_used(issuer: Issuer) -> None:
    discovery = issuer.answers["/.well-known/openid-configuration"]
    keys = issuer.answers["/keys"]
    for documents in (
        {"/.well-known/openid-configuration": {**discovery, "issuer": f"{issuer.url}/other"}},
        {"/.well-known/openid-configuration": {**discovery, "jwks_uri": "http://keys.example/"}},
        {"/.well-known/openid-configuration": {**discovery, "jwks_uri": "file:///etc/passwd"}},
        {"/.well-known/openid-configuration": b"<html>"},
        {"/.well-known/openid-configuration": b"[]"},
        {"/keys": {**keys, "padding": "x" * MAX_RESPONSE_BYTES}},
        {"/keys": {"keys": []}},
        {"/keys": {"keys": "none"}},
        {"/keys": {"keys": [make_jwk("one")] * 1000}},
    ):
        issuer.answers = {"/.well-known/openid-configuration": discovery, "/keys": keys, **documents}
        with pytest.raises(IssuerUnavailable):
            await Oidc(issuer.url, AUDIENCE).authenticate(bearer(issuer.sign()))


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys"])
async def test_redirects_are_not_followed(oidc: Oidc, issuer: Issuer, path: str) -> None:
    issuer.answers["/elsewhere"] = issuer.answers[path]
    issuer.redirects[path] = f"{issuer.url}/elsewhere"
    with pytest.raises(IssuerUnavailable):
        await oidc.authenticate(bearer(issuer.sign()))
    assert "/elsewhere" not in issuer.asked


async def test_roles_are_those_of_the_program(issuer: Issuer) -> None:
    oidc = Oidc(
        issuer.url,
        ["other", AUDIENCE],
        owner_claim="org.id",
        role_claim="realm_access.roles",
        roles={"staff": "operator", "all": Role.VIEWER},
    )
    token = issuer.sign(realm_access={"roles": ["all", "staff", "admin", 5]}, org={"id": "acme"})
    principal = await oidc.authenticate(bearer(token))
    assert principal is not None
    assert (principal.role, principal.owner, principal.subject) == (Role.OPERATOR, "acme", "oidc:u1")
    with pytest.raises(Unauthenticated):
        await oidc.authenticate(bearer(issuer.sign(realm_access={"roles": ["all"]})))


@pytest.mark.parametrize("roles", [None, [], "dancer", ["dancer"], {"admin": True}, 5])
async def test_a_token_without_a_role_is_refused_or_gets_the_default(issuer: Issuer, roles: Any) -> None:
    with pytest.raises(RoleMissing) as refused:
        await Oidc(issuer.url, AUDIENCE).authenticate(bearer(issuer.sign(roles=roles)))
    assert refused.value.code == "role-missing"
    principal = await Oidc(issuer.url, AUDIENCE, default_role="viewer").authenticate(bearer(issuer.sign(roles=roles)))
    assert principal is not None
    assert principal.role is Role.VIEWER


async def test_an_unverified_address_is_no_owner(issuer: Issuer) -> None:
    oidc = Oidc(issuer.url, AUDIENCE, owner_claim="email")
    for verified, accepted in ((True, True), (None, True), (False, False), ("true", False)):
        token = issuer.sign(email="ann@example.com", email_verified=verified)
        if accepted:
            principal = await oidc.authenticate(bearer(token))
            assert principal is not None
            assert principal.owner == "ann@example.com"
        else:
            with pytest.raises(Unauthenticated):
                await oidc.authenticate(bearer(token))


@pytest.mark.parametrize(
    "issuer_url",
    [
        "http://login.example",
        "ftp://login.example",
        "login.example",
        "",
        "https://",
        "https://a:b@c.example",
        "https://[",
    ],
)
def test_an_issuer_needs_a_secure_address(issuer_url: str) -> None:
    with pytest.raises(InvalidInput):
        Oidc(issuer_url, AUDIENCE)


def test_an_audience_and_known_roles_are_required() -> None:
    for options in ({"audience": ""}, {"audience": []}, {"audience": "a", "roles": {"x": "root"}}):
        with pytest.raises(InvalidInput):
            Oidc("https://login.example", **options)
