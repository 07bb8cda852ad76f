"""``/workspaces``: the variables and files of sessions and runs, without starting a worker."""

from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from standfast.base.errors import NotFound
from standfast.server.endpoints import OPERATE, READ_RUNS, EndpointTable
from standfast.server.exchange import Exchange, make_page, validate_page_size
from standfast.server.types import Input, Listing, Page
from standfast.store.records import WorkspaceRecord
from standfast.workspaces.retention import RetentionReport
from standfast.workspaces.view import VersionInfo, Workspace

endpoints = EndpointTable()


class VersionQuery(Input, frozen=True, kw_only=True):
    """The version of a workspace; by default the latest."""

    at: int | None = None


class FileQuery(VersionQuery, frozen=True, kw_only=True):
    """A file of a workspace."""

    path: str


class WorkspacePruneRequest(Input, frozen=True, kw_only=True):
    """Which checkpoints to drop: older ones, in seconds, those not among the latest ``keep``, or over a size."""

    older_than: float | None = None
    keep: int | None = None
    max_mb: float | None = None


@endpoints.add("GET", "/workspaces", OPERATE, query=Listing, result=Page[WorkspaceRecord])
async def list_workspaces(exchange: Exchange) -> Page[WorkspaceRecord]:
    """List the workspaces of all owners by key; that of a session is `session:` and its id."""
    size = validate_page_size(exchange, exchange.query.limit)
    found = await exchange.runtime.store.backend.list_workspaces(limit=size + 1, after=exchange.query.after or "")
    return make_page(found, size, lambda record: record.key)


@endpoints.add("POST", "/workspaces/prune", OPERATE, body=WorkspacePruneRequest, result=RetentionReport)
async def prune_workspaces(exchange: Exchange) -> RetentionReport:
    """Drop old checkpoints of all workspaces, never the latest of one, and delete what nothing refers to."""
    body = exchange.body
    report = await exchange.runtime.prune_workspaces(older_than=body.older_than, keep=body.keep, max_mb=body.max_mb)
    await exchange.service.record_audit("workspaces pruned", exchange.principal, asdict(report))
    return report


@endpoints.add("GET", "/sessions/{session_id}/workspace", READ_RUNS, query=VersionQuery, result=dict[str, Any])
async def get_workspace(exchange: Exchange) -> dict[str, Any]:
    """Show the variables (names, types, sizes; never values) and files of a session as of a version."""
    return describe_workspace(await open_workspace(exchange))


@endpoints.add("GET", "/sessions/{session_id}/workspace/versions", READ_RUNS, result=list[VersionInfo])
async def list_versions(exchange: Exchange) -> list[VersionInfo]:
    """List the versions of a workspace, oldest first, with the runs and calls that made them."""
    found = await exchange.reads.workspace(exchange.session_id)
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


def describe_workspace(found: Workspace) -> dict[str, Any]:
    """Return the public fields of a workspace."""
    shown = {name: value for name, value in vars(found).items() if not name.startswith("_")}
    return shown | {"files": [asdict(file) for file in found.files]}


async def open_workspace(exchange: Exchange) -> Workspace:
    found: Workspace = await exchange.reads.workspace(exchange.session_id, at=exchange.query.at)
    if found.version == 0:
        raise NotFound("workspace", exchange.session_id)
    return found
