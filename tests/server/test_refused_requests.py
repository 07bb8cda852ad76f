"""Requests of the wrong shape, made from the table of endpoints: each is refused, and a refused one changes nothing."""

import json
import re
import types
import typing

import msgspec
import pytest
from test_server_access import BODIES, QUERIES, make_data

from factories.server import open_server
from standfast.server import Limits
from standfast.server.app import ENDPOINTS

WRONG = (None, True, -1, 1.5, "x" * 3, [], {}, [[]], {"a": 1}, "\x00", 10**30)
CHANGING = [one for one in ENDPOINTS if one.method not in ("GET", "WEBSOCKET")]


@pytest.fixture
async def server(tmp_path):
    limits = Limits(requests_per_second=1e6, body_bytes=10_000)
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", limits=limits) as opened:
        yield opened


async def describe_everything(server):
    """Return what the store has, without the audit log, where denied requests are noted."""
    runtime = server.runtime
    sessions = await runtime.store.sessions(limit=None)
    items = [await runtime.session(info.session_id).get_items() for info in sessions]
    runs, approvals = await runtime.runs(limit=None), await runtime.approvals(limit=None)
    keys = await runtime.store.backend.list_documents("api-key", limit=100, after="")
    return sessions, items, runs, approvals, keys


def has_type(value, kind):
    """Return whether JSON decodes to this type."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def list_wrong_bodies(endpoint, good):
    """Yield bodies that cannot be decoded as the type of the endpoint."""
    kind = endpoint.body
    yield from (value for value in WRONG if not has_type(value, kind))
    is_list = isinstance(good, list)
    entry, inner = (good[0], typing.get_args(kind)[0]) if is_list else (good, kind)
    hints = typing.get_type_hints(inner)
    for field in msgspec.structs.fields(inner):
        for value in WRONG:
            if not has_type(value, hints[field.name]):
                yield [entry | {field.name: value}] if is_list else entry | {field.name: value}
        if field.required:
            left = {name: one for name, one in entry.items() if name != field.name}
            yield [left] if is_list else left
    yield [entry | {"owner_of_all": "x"}] if is_list else entry | {"owner_of_all": "x"}


def make_path(endpoint, names):
    return re.sub(r"{(\w+?)(_id)?}", lambda found: names[found[1]], endpoint.path)


def list_requests(endpoint, names):
    """Yield the headers and the contents of requests that must be refused."""
    as_json = {"content-type": "application/json"}
    if endpoint.name in BODIES:
        good = BODIES[endpoint.name](names)
        for body in list_wrong_bodies(endpoint, good):
            yield as_json, json.dumps(body).encode()
        text = json.dumps(good).encode()
        yield {"content-type": "text/plain"}, text
        yield {}, text
        yield as_json, text[:-1]
        yield as_json, b"\xff" + text
        yield as_json, text + b" " * 10_000
        yield as_json, b""


@pytest.mark.parametrize("endpoint", CHANGING, ids=lambda endpoint: endpoint.name)
async def test_a_request_of_the_wrong_shape_is_refused_and_changes_nothing(endpoint, server):
    root = server.sign_in("root")
    names = await make_data(server, "root")
    before = await describe_everything(server)
    path = make_path(endpoint, names)
    for headers, content in list_requests(endpoint, names):
        answer = await root.http.request(endpoint.method, path, content=content, headers=headers)
        assert 400 <= answer.status_code < 500, (content[:200], answer.status_code, answer.text)
        assert answer.json()["code"], answer.text
    answer = await root.http.request(endpoint.method, path, params={"no_such_parameter": "1"}, json={})
    assert answer.status_code == 422, answer.text
    assert await describe_everything(server) == before


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one.query], ids=lambda endpoint: endpoint.name)
async def test_a_query_of_the_wrong_shape_is_refused(endpoint, server):
    if endpoint.method == "WEBSOCKET":
        pytest.skip("sockets are refused in their handshake, see the tests of access")
    root = server.sign_in("root")
    path = make_path(endpoint, await make_data(server, "root"))
    good = QUERIES.get(endpoint.name, {})
    hints = typing.get_type_hints(endpoint.query)
    for field in msgspec.structs.fields(endpoint.query):
        kind = hints[field.name]
        if (isinstance(kind, types.UnionType) and str in typing.get_args(kind)) or kind is str:
            continue  # every text is one
        answer = await root.http.request(endpoint.method, path, params=good | {field.name: "no such value"})
        assert (field.name, answer.status_code) == (field.name, 422), answer.text
    if any(field.required for field in msgspec.structs.fields(endpoint.query)):
        assert (await root.http.request(endpoint.method, path)).status_code == 422
