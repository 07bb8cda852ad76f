"""Event streams: how many an owner may have open, and how they end."""

import asyncio
import contextlib

from factories.server import Names, Person, make_agent, serve
from standfast import Runtime
from standfast.server import Limits, create_app


@contextlib.asynccontextmanager
async def open_server(**limits):
    async with Runtime.open("memory://", agents=[make_agent()]) as runtime:
        app = create_app(runtime, auth=Names(), limits=Limits(**limits))
        async with serve(app) as url, contextlib.AsyncExitStack() as stack:

            async def sign_in(name):
                return await stack.enter_async_context(Person(url, name).http)

            yield app.state.service, sign_in


async def test_an_owner_has_a_limit_of_open_streams_and_a_refused_request_starts_nothing():
    async with open_server(open_streams=1) as (service, sign_in):
        ann, viewer, bob = [await sign_in(name) for name in ("ann", "ann-viewer", "bob")]
        run_id = (await ann.post("/runs", json={"agent": "desk", "input": "refund, please"})).json()["run_id"]
        async with ann.stream("GET", f"/runs/{run_id}/events") as open_stream:
            await anext(open_stream.aiter_bytes())
            refused = await viewer.get(f"/runs/{run_id}/events")
            assert (refused.status_code, refused.json()["code"]) == (429, "too-many-streams")
            headers = {"accept": "text/event-stream"}
            refused = await ann.post("/runs", json={"agent": "desk", "input": "hi"}, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (429, "too-many-streams")
            assert [info["run_id"] for info in (await ann.get("/runs")).json()["items"]] == [run_id]
            started = await bob.post("/runs", json={"agent": "desk", "input": "hi"}, headers=headers)
            assert (started.status_code, started.text.count("event: end")) == (201, 1)
        while service.metrics.open_streams:  # the server notices that the client went away
            await asyncio.sleep(0.01)
        started = await ann.post("/runs", json={"agent": "desk", "input": "hi"}, headers=headers)
        assert started.status_code == 201


async def test_a_silent_stream_gets_comments_and_ends_with_a_hint_when_the_server_stops():
    async with open_server(heartbeat=0.05) as (service, sign_in):
        ann = await sign_in("ann")
        run_id = (await ann.post("/runs", json={"agent": "desk", "input": "refund, please"})).json()["run_id"]
        received = b""
        async with ann.stream("GET", f"/runs/{run_id}/events") as stream:
            async for part in stream.aiter_bytes():
                received += part
                if received.count(b": alive\n\n") == 3:
                    service.draining.set()
        assert received.endswith(b": the server is stopping, reconnect\nretry: 1000\n\n")
        assert not service.metrics.open_streams
        again = await ann.get(f"/runs/{run_id}/events")  # opened while the server stops
        assert again.text.endswith(": the server is stopping, reconnect\nretry: 1000\n\n")


async def test_the_head_of_a_stream_is_answered_without_its_events():
    async with open_server() as (service, sign_in):
        ann = await sign_in("ann")
        run_id = (await ann.post("/runs", json={"agent": "desk", "input": "refund, please"})).json()["run_id"]
        answer = await ann.head(f"/runs/{run_id}/events")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert not service.metrics.open_streams
