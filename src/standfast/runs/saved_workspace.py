"""The workspace of a saved run: load what is embedded, and report what is missing."""

import warnings
from collections.abc import Awaitable, Collection, Sequence
from typing import Any, TypedDict

import msgspec

from standfast.agents.graph import AgentGraph
from standfast.base.errors import InvalidInput
from standfast.base.validation import is_integer
from standfast.history.encryption.keys import Keyring
from standfast.history.encryption.workspace_seal import WorkspaceSeal, find_seal
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.context import ContextSerializer, SavedContext
from standfast.runs.core.serialization import SavedRun, encode_run
from standfast.runs.core.state import State
from standfast.workspaces.bundles import check_header
from standfast.workspaces.run_workspace import RunWorkspace

DEFAULT_EMBEDDED_MB = 64
"""Megabytes of compressed content that a saved run may carry."""


class SaveOptions(TypedDict, total=False):
    """The options of :meth:`RunState.to_json`, other than ``embed_workspace``."""

    context_serializer: ContextSerializer | None
    strict_context: bool
    include_tracing_api_key: bool
    max_workspace_mb: int


async def load_workspace(
    saved: SavedRun, graph: AgentGraph, encryption_key: str | Sequence[str] | None, tolerate: Collection[str]
) -> RunWorkspace:
    """Return the workspace of a saved run. Its ``problem``, which is a warning, too, says why it is not available.

    An embedded workspace that is foreign, damaged, too new or of another run raises :class:`WorkspaceRefused`. If
    ``"workspace"`` is tolerated, the run is loaded without it.
    """
    state = saved.run
    if "workspace" in tolerate:
        return RunWorkspace(state.run_id)
    seal = None if encryption_key is None else WorkspaceSeal(Keyring(encryption_key))
    workspace = RunWorkspace(state.run_id, state.workspace, embedded=saved.embedded_workspace, seal=seal)
    if saved.embedded_workspace is not None:
        check_header(saved.embedded_workspace)
        workspace.unpack()
    workspace.problem = await workspace.find_problem(list_python_stores(graph))
    if workspace.problem is not None:
        warnings.warn(workspace.problem, UserWarning, stacklevel=4)
    return workspace


def continue_workspace(run: ActiveRun, state: State) -> RunWorkspace:
    """Return the workspace for a state of a run. If the session of the run is encrypted, it is embedded encrypted."""
    workspace = run.workspace.continue_from(state.workspace)
    workspace.seal = find_seal(run.session) or workspace.seal
    return workspace


async def encode_portable(
    state: State, graph: AgentGraph, context: SavedContext | None, workspace: RunWorkspace, *, max_mb: int
) -> dict[str, Any]:
    """Return the run as JSON values with the version of the workspace that it refers to."""
    if not is_integer(max_mb) or max_mb <= 0:
        raise InvalidInput(f"max_workspace_mb must be a positive integer, not {max_mb!r}")
    return encode_run(state, graph, context, await workspace.embed(state.workspace, max_bytes=max_mb << 20))


async def encode_text(values: Awaitable[dict[str, Any]]) -> str:
    """Return the awaited values as JSON text."""
    return msgspec.json.encode(await values).decode()


def list_python_stores(graph: AgentGraph) -> list[Any]:
    """Return the stores in which the Python tools of the agents keep workspaces."""
    found = [
        tool.python_sessions
        for _, agent in graph
        for tool in getattr(agent, "tools", ())
        if getattr(tool, "python_sessions", None) is not None
    ]
    return [sessions.store for sessions in found if sessions.store is not None and sessions.durability != "off"]
