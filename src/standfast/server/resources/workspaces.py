"""``/workspaces``: the variables and files of sessions and runs, without starting a worker."""

from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from standfast.base.errors import NotFound
from standfast.server.access import READ_RUNS
from standfast.server.endpoints import EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import Input
from standfast.workspaces.view import VersionInfo, Workspace

endpoints = EndpointTable()


class VersionQuery(Input, frozen=True, kw_only=True):
    """The version of a workspace; by default the latest."""

    at: int | None = None


class FileQuery(VersionQuery, frozen=True, kw_only=True):
    """A file of a workspace."""

    path: str


@endpoints.add("GET", "/sessions/{session_id}/workspace", READ_RUNS, query=VersionQuery, result=dict[str, Any])
async def get_workspace(exchange: Exchange) -> dict[str, Any]:
    """Show the variables (names, types, sizes; never values) and files of a session as of a version."""
    found = await open_workspace(exchange)
    shown = {name: value for name, value in vars(found).items() if not name.startswith("_")}
    return shown | {"files": [asdict(file) for file in found.files]}


@endpoints.add("GET", "/sessions/{session_id}/workspace/versions", READ_RUNS, result=list[VersionInfo])
async def list_versions(exchange: Exchange) -> list[VersionInfo]:
    """List the versions of a workspace, oldest first, with the runs and calls that made them."""
    found = await exchange.runtime.workspace(exchange.session_id)
    return [version async for version in found.history()]


@endpoints.add(
    "GET",
    "/sessions/{session_id}/workspace/file",
    READ_RUNS,
    query=FileQuery,
    media_type="application/octet-stream",
)
async def download_file(exchange: Exchange) -> Response:
    """Download a file as of a version."""
    content = await (await open_workspace(exchange)).read(exchange.query.path)
    # Never shown by a browser: what code wrote must not run as a page of this server.
    headers = {"content-disposition": "attachment", "content-security-policy": "sandbox"}
    return Response(content, media_type="application/octet-stream", headers=headers)


async def open_workspace(exchange: Exchange) -> Workspace:
    found: Workspace = await exchange.runtime.workspace(exchange.session_id, at=exchange.query.at)
    if found.version == 0:
        raise NotFound("workspace", exchange.session_id)
    return found
