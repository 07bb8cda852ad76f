"""What is left of a deleted session does not belong to whoever creates the next one with its id."""

import pytest

from factories.server import open_server
from standfast.workers import PoolConfig, SessionPool

CREATIONS = {
    "create": ("/sessions", {"session_id": "talk"}),
    "start": ("/runs", {"agent": "desk", "input": "hi", "session_id": "talk"}),
    "add": ("/sessions/talk/items", {"items": [{"role": "user", "content": "hi"}]}),
    "fork": ("/sessions/other/fork", {"session_id": "talk"}),
    "import": ("/sessions/import", None),
}


async def export(person, session_id):
    return (await person.get(f"/sessions/{session_id}/export")).content


@pytest.mark.parametrize("way", CREATIONS)
async def test_the_id_of_a_session_whose_runs_were_kept_is_not_free(tmp_path, way):
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}") as server:
        ann, bob, olga = (server.sign_in(name) for name in ("ann", "bob", "olga"))
        run = (await ann.post("/runs", {"agent": "desk", "input": "hello", "session_id": "talk"})).json()["run_id"]
        await ann.read_events(run)
        exported = await export(ann, "talk")
        kept = await ann.http.delete("/sessions/talk", params={"runs": "keep"})
        assert kept.json()["kept_runs"] == [run]
        await bob.post("/sessions", {"session_id": "other"})
        path, body = CREATIONS[way]

        async def create(person):
            return await (person.http.post(path, content=exported) if body is None else person.post(path, body))

        refused = await create(bob)

        assert (refused.status_code, refused.json()["code"]) == (404, "not-found")
        for place in (f"/runs/{run}", f"/runs/{run}/state", f"/runs/{run}/events"):
            assert (await bob.get(place)).status_code == 404
        assert (await bob.get("/runs")).json()["items"] == []
        assert (await create(olga)).status_code == 201


async def test_cells_of_a_deleted_session_are_not_those_of_the_next_one(tmp_path):
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool,
        open_server(f"sqlite:///{tmp_path / 'app.db'}", python=pool) as server,
    ):
        ann, bob = server.sign_in("ann"), server.sign_in("bob")
        await ann.post("/sessions", {"session_id": "talk"})
        cells = "/sessions/talk/workspace/cells"
        cell = (await ann.post(cells, {"code": "secret = 1"})).json()["cell_id"]
        await ann.get(f"{cells}/{cell}/events")
        assert [one["cell_id"] for one in (await ann.get(cells)).json()] == [cell]

        await ann.http.delete("/sessions/talk")
        await bob.post("/sessions", {"session_id": "talk"})

        assert (await bob.get(cells)).json() == []
        for path in (f"{cells}/{cell}", f"{cells}/{cell}/events"):
            assert (await bob.get(path)).status_code == 404
        assert (await bob.post(f"{cells}/{cell}/interrupt")).status_code == 404
        mine = (await bob.post(cells, {"code": "2"})).json()["cell_id"]
        assert [one["cell_id"] for one in (await bob.get(cells)).json()] == [mine]
        await server.app.state.service.close()
