"""Cells that people run in the workspaces of sessions, over real sockets."""

import asyncio

import pytest

from factories.server import open_server, parse_events
from standfast import NotFound
from standfast.base.errors import InvalidInput, Unsupported
from standfast.client import Client
from standfast.server import Limits
from standfast.workers import PoolConfig, SessionConfig, SessionPool


@pytest.fixture
async def pool():
    async with SessionPool(PoolConfig(session=SessionConfig(grace=5.0), min_idle=0, max_sessions=3)) as opened:
        yield opened


@pytest.fixture
async def server(tmp_path, pool):
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", python=pool, pools=[pool]) as opened:
        await opened.sign_in("ann").post("/sessions", {"session_id": "talk"})
        yield opened
        await opened.app.state.service.close()


@pytest.fixture
async def python(server):
    async with Client(server.url, token="ann") as client:
        yield client.python("talk")


async def test_cells_share_variables_and_their_results_arrive(python):
    first = await python.run("x = 20\nprint('hello')")
    second = await python.run("x + 1")
    assert (first.status, first.result["stdout"]) == ("done", "hello\n")
    assert second.result["repr"] == "21"


async def test_output_is_streamed_while_the_cell_runs(python):
    """The cell ends only after the reader, who has seen its output, has answered it."""
    cell = await python.start("print('before')\nname = input('who? ')\nprint('hi', name)", allow_input=True)
    seen = []
    async for event in cell.events():
        seen.append((event["type"], event.get("data", event.get("prompt"))))
        if event["type"] == "input":
            assert (await cell.info()).status == "waiting"
            assert await cell.answer(event["id"], "Ann")
    assert seen[:2] == [("output", "before\n"), ("input", "who? ")]
    assert ("output", "hi Ann\n") in seen
    assert (await cell.info()).status == "done"


async def test_a_reader_that_comes_back_continues_after_what_it_has(server, python):
    cell = await python.start("for n in range(5):\n    print(n, flush=True)")
    await cell.wait()
    path = f"/sessions/talk/workspace/cells/{cell.cell_id}/events"
    async with server.sign_in("ann").http.stream("GET", path) as answer:
        everything = [event async for event in parse_events(answer.aiter_lines())]
    assert [int(number) for number, _, _ in everything] == list(range(1, len(everything) + 1))
    assert everything[-1][1] == "end"
    async with server.sign_in("ann").http.stream("GET", path, headers={"last-event-id": everything[0][0]}) as answer:
        rest = [event async for event in parse_events(answer.aiter_lines())]
    assert rest == everything[1:]


async def test_a_cell_is_interrupted_and_keeps_its_variables(python):
    await python.run("x = 1")
    cell = await python.start("print('on', flush=True)\nwhile True: pass", timeout=600)
    async for event in cell.events():
        if event["type"] == "output":
            stopped = await cell.interrupt()
    assert (stopped.stopped, stopped.state) == (True, "preserved")
    assert (await cell.info()).result["error"]["exception_type"] == "KeyboardInterrupt"
    assert (await python.run("x")).result["repr"] == "1"


async def test_a_cell_that_waits_for_another_can_be_withdrawn(python):
    running = await python.start("input()", allow_input=True, timeout=600)
    events = running.events()
    assert (await anext(events))["type"] == "input"
    waiting = await python.start("y = 1")
    assert not (await waiting.interrupt()).stopped
    assert (await waiting.wait()).status == "failed"
    await running.interrupt()
    await events.aclose()
    assert (await python.run("'y' in globals()")).result["repr"] == "False"


async def test_files_are_uploaded_used_and_downloaded(server, python):
    await python.write_files({"in/a.txt": b"\x00\xff", "b.txt": b"b"})
    await python.run("open('out.txt', 'wb').write(open('in/a.txt', 'rb').read() * 2)")
    await python.restart()
    async with Client(server.url, token="ann") as client:
        workspace = await client.workspace("talk")
        assert {file.path for file in workspace.files} == {"in/a.txt", "b.txt", "out.txt"}
        assert await workspace.read("out.txt") == b"\x00\xff\x00\xff"
        await python.remove_file("b.txt")
        with pytest.raises(NotFound):
            await python.remove_file("b.txt")
        await python.restart()
        assert {file.path for file in (await client.workspace("talk")).files} == {"in/a.txt", "out.txt"}


async def test_a_restarted_worker_has_the_variables_of_the_one_before(python):
    await python.run("import os; os.environ['MARK'] = 'of the process'; x = [1, 2]")
    await python.restart()
    assert (await python.run("x, 'MARK' in os.environ")).result["repr"] == "([1, 2], False)"


async def test_a_version_can_be_restored_and_the_later_one_again(server, python):
    await python.run("x = 1")
    await python.run("x = 2")
    async with Client(server.url, token="ann") as client:
        versions = [version.version async for version in (await client.workspace("talk")).history()]
    assert versions == [1, 2]
    assert await python.restore(1) == 3
    assert (await python.run("x")).result["repr"] == "1"
    await python.restore(2)
    assert (await python.run("x")).result["repr"] == "2"
    await python.restore(0)
    assert (await python.run("'x' in globals()")).result["repr"] == "False"
    with pytest.raises(InvalidInput):
        await python.restore(99)


async def test_a_cell_over_http_and_the_runtime_use_the_same_variables(server, python, pool):
    await python.run("x = 41")
    local = server.runtime.python("talk", pool)
    assert (await local.run("x + 1")).result.repr == "42"


async def test_cells_are_refused_unless_the_server_allows_them(tmp_path):
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}") as server:
        await server.sign_in("ann").post("/sessions", {"session_id": "talk"})
        async with Client(server.url, token="ann") as client:
            with pytest.raises(Unsupported):
                await client.python("talk").start("1")


async def test_an_owner_has_a_limited_number_of_open_cells(tmp_path, pool):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with open_server(url, python=pool, limits=Limits(open_cells=1)) as server:
        ann = server.sign_in("ann")
        await ann.post("/sessions", {"session_id": "talk"})
        cell = (await ann.post("/sessions/talk/workspace/cells", {"code": "input()", "allow_input": True})).json()
        refused = await ann.post("/sessions/talk/workspace/cells", {"code": "1"})
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-cells")
        await server.app.state.service.close()
        service = server.app.state.service
        tape = (await server.runtime.store.require_record("talk")).tape
        assert service.cells.get("talk", tape, cell["cell_id"]).info.status == "failed"


async def test_what_ended_cells_keep_is_limited_and_listings_are_short(tmp_path, pool):
    limits = Limits(ended_cell_bytes=1_000_000)
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", python=pool, limits=limits) as server:
        await server.sign_in("ann").post("/sessions", {"session_id": "talk"})
        async with Client(server.url, token="ann") as client:
            python = client.python("talk")
            cells = [await python.run("print('x' * 150_000)") for _ in range(5)]
            cells.append(await python.run("'short'"))
            kept = await python.cells()
            assert [cell.cell_id for cell in kept] == [cell.cell_id for cell in cells[-len(kept) :]]
            assert 1 < len(kept) < 6
            assert [cell.result and cell.result["repr"] for cell in kept] == [None] * (len(kept) - 1) + ["'short'"]
            assert (
                len(
                    (await server.sign_in("ann").get(f"/sessions/talk/workspace/cells/{kept[0].cell_id}")).json()[
                        "result"
                    ]["stdout"]
                )
                == 150_001
            )
            large = await python.run("print('x' * 2_000_000) #" + "c" * 100_000)
            (only,) = await python.cells()
            assert (only.cell_id, only.result, len(only.source)) == (large.cell_id, None, 5000)
        await server.app.state.service.close()


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"x", "text/plain", 415),
        (b"x", "multipart/form-data", 400),
        (b"x", "multipart/form-data; boundary=b", 400),
        (
            b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            400,
        ),
        (
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="../x"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            422,
        ),
        (b"--b\r\ncontent-disposition: form-data\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b", 400),
        (  # a version keeps directories of 64 levels
            b'--b\r\ncontent-disposition: form-data; name="f"; filename="' + b"d/" * 65 + b'x"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            422,
        ),
    ],
)
async def test_malformed_uploads_are_refused(server, content, kind, status):
    answer = await server.sign_in("ann").http.post(
        "/sessions/talk/workspace/files", content=content, headers={"content-type": kind}
    )
    assert answer.status_code == status, answer.text
    assert (await server.sign_in("ann").get("/sessions/talk/workspace")).status_code == 404


async def test_an_upload_above_the_limit_is_refused(tmp_path, pool):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with open_server(url, python=pool, limits=Limits(upload_bytes=1000)) as server:
        ann = server.sign_in("ann")
        await ann.post("/sessions", {"session_id": "talk"})
        answer = await ann.http.post("/sessions/talk/workspace/files", files={"file": ("a", b"x" * 1000)})
        assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")


async def test_a_late_reader_is_sent_the_number_of_dropped_messages(server, python):
    cell = await python.start("for n in range(4):\n    print(n, 'x' * 900_000, flush=True)")
    await cell.wait()
    path = f"/sessions/talk/workspace/cells/{cell.cell_id}/events"
    async with server.sign_in("ann").http.stream("GET", path) as answer:
        events = [event async for event in parse_events(answer.aiter_lines())]
    numbers = [int(number) for number, _, _ in events]
    first, kind, data = events[0]
    assert kind == "dropped"
    assert data["count"] == int(first) >= 1
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert events[-1][1] == "end"


async def test_many_readers_see_the_same(python):
    cell = await python.start("input()\nprint('done')", allow_input=True)

    async def read():
        found = []
        async for event in cell.events():
            found.append(event)
            if event["type"] == "input" and len(found) == 1:
                await cell.answer(event["id"], "x")
        return found

    first, *others = await asyncio.gather(*(read() for _ in range(5)))
    assert all(one == first for one in others)


async def test_cells_of_a_deleted_session_are_not_those_of_another_with_its_id(server, python):
    await python.run("secret = 'of-ann'\nopen('f', 'w').write('of-ann')\nsecret")
    cell = await python.start("name = input()\nprint(name)", allow_input=True, timeout=600)
    events = cell.events()
    while (event := await anext(events))["type"] != "input":
        pass
    ann, bob = server.sign_in("ann"), server.sign_in("bob")
    assert (await ann.http.delete("/sessions/talk")).status_code == 200
    async with asyncio.timeout(60):  # what it would have changed is gone
        assert [event async for event in events] == []
    assert (await bob.post("/sessions", {"session_id": "talk"})).status_code == 201
    path = "/sessions/talk/workspace/cells"
    assert (await bob.get(path)).json() == []
    for answer in (
        await bob.get(f"{path}/{cell.cell_id}"),
        await bob.get(f"{path}/{cell.cell_id}/events"),
        await bob.post(f"{path}/{cell.cell_id}/input", {"input_id": event["id"], "data": "1"}),
        await bob.post(f"{path}/{cell.cell_id}/interrupt"),
    ):
        assert answer.status_code == 404
    async with Client(server.url, token="bob") as client:
        seen = await client.python("talk").run("import os; ('secret' in globals(), os.listdir())")
    assert seen.result["repr"] == "(False, [])"


async def test_another_process_shows_no_cells_of_a_session_that_was_deleted_elsewhere(server, python):
    await python.run("'of-ann'")
    await server.runtime.store.delete("talk")
    bob = server.sign_in("bob")
    assert (await bob.post("/sessions", {"session_id": "talk"})).status_code == 201
    assert (await bob.get("/sessions/talk/workspace/cells")).json() == []


async def test_a_cleared_session_has_no_cells(server, python):
    await python.run("'of-ann'")
    ann = server.sign_in("ann")
    assert (await ann.http.delete("/sessions/talk/items")).status_code == 204
    assert (await ann.get("/sessions/talk/workspace/cells")).json() == []
