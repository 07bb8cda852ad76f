"""The workspace of a run whose agents work in a sandbox: opened before the first step, closed after the last."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from standfast.agents.agent import Agent
from standfast.agents.errors import UserError
from standfast.agents.graph import AgentGraph
from standfast.runs.active_run import ActiveRun
from standfast.runs.sandbox_memory import forget_pending_memories

if TYPE_CHECKING:
    from standfast.sandbox.agent import RunSandbox
    from standfast.sandbox.config import SandboxRunConfig
    from standfast.sandbox.sessions import BaseSandboxSession, SandboxSessionState
    from standfast.sandbox.stored_workspace import StoredSandbox


def get_default_snapshot_directory() -> Path:
    """Return where workspaces of paused runs are kept if the program names no place."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "standfast" / "sandboxes"


def has_sandbox_agent(graph: AgentGraph) -> bool:
    """Return whether one of the agents works in a sandbox."""
    from standfast.sandbox.agent import SandboxAgent

    return any(isinstance(agent, SandboxAgent) for _, agent in graph)


@asynccontextmanager
async def use_sandbox(run: ActiveRun) -> AsyncIterator[None]:
    """Keep the sandbox of the run open in the block, if its configuration has one and it is not open already."""
    if run.config.sandbox is None:
        yield
        return
    sandbox = await open_sandbox(run)
    try:
        yield
    finally:
        await close_sandbox(run, sandbox)


async def open_sandbox(run: ActiveRun) -> "RunSandbox | None":
    """Give the run the workspace that its configuration asks for, and return it unless it is that of an outer run.

    A session of the program is used and left as it is. Otherwise one is resumed or created. The workspace of a durable
    run is that in the store of its runtime.
    """
    config: Any = run.config.sandbox
    outer = run.context.sandbox
    if outer is not None and outer.config is config:
        return None
    from standfast.sandbox.agent import RunSandbox
    from standfast.sandbox.workspace_paths import SandboxWorkspaceScope

    scope = SandboxWorkspaceScope.from_cwd(config.cwd)
    stored = None if run.recorder is None or config.session is not None else run.recorder.open_sandbox(run)
    session = config.session or await _create_session(run, config, stored)
    sandbox = RunSandbox(session, scope, config, outer=outer, stored=stored, model=run.config.model)
    try:
        await session.start()
        if stored is not None:
            sandbox.snapshot, session.state.snapshot = session.state.snapshot, stored.snapshot
        if scope.cwd is not None:
            await session.ls(str(scope.cwd))  # it must exist
    except BaseException:
        await close_sandbox(run, sandbox)
        raise
    run.context.sandbox = sandbox
    return sandbox


async def close_sandbox(run: ActiveRun, sandbox: "RunSandbox | None") -> None:
    """Close what :func:`open_sandbox` opened.

    The workspace of a run that ended is kept only if the program requested it. That of another run is kept, and the
    state of the session becomes part of the run's state. Those of durable runs are kept in the store.
    """
    if sandbox is None:
        return
    run.context.sandbox, session, client = sandbox.outer, sandbox.session, sandbox.config.client
    if sandbox.config.session is not None or client is None:
        return
    if not run.state.ended:
        forget_pending_memories(session)
    if sandbox.stored is None and run.state.ended and sandbox.config.snapshot is None:
        _forget_snapshot(session)
    try:
        if sandbox.stored is not None and run.state.ended and sandbox.config.snapshot is not None:
            await session.run_pre_stop_hooks()
            with await session.persist_workspace() as archive:
                await sandbox.snapshot.persist(archive, dependencies=session.dependencies)
        await session.aclose()
    finally:
        await client.delete(session)
    if sandbox.stored is not None:
        return
    saved: dict[str, Any] | None = None
    if not run.state.ended:
        saved = client.describe_session(session)
    run.state = replace(run.state, sandbox=saved)


@asynccontextmanager
async def add_sandbox_version(run: ActiveRun, recorded_call: Any, call_id: str) -> AsyncIterator[None]:
    """Let the block record the outcome of a call together with the workspace that it left."""
    sandbox: RunSandbox | None = run.context.sandbox
    if sandbox is None or sandbox.stored is None or recorded_call is None:
        yield
        return
    async with sandbox.stored.lock:
        path = ":".join((*run.route, call_id))
        version = await sandbox.stored.add_version(recorded_call, path)
        yield
        if version is not None:
            version.finish(committed=recorded_call.committed)


def _forget_snapshot(session: "BaseSandboxSession") -> None:
    """Keep nothing of a workspace, and delete what an earlier part of the run left at the default place."""
    from standfast.sandbox.snapshot import LocalSnapshot, NoopSnapshot

    snapshot = session.state.snapshot
    if isinstance(snapshot, LocalSnapshot) and snapshot.base_path == get_default_snapshot_directory():
        session.state.snapshot = NoopSnapshot(id=snapshot.id)
        snapshot.path.unlink(missing_ok=True)


def check_saved_session(state: "SandboxSessionState", run: ActiveRun, config: "SandboxRunConfig") -> None:
    """Refuse a saved session that has more of this machine than the program gives, as a forged one might."""
    from standfast.sandbox.agent import process_manifest
    from standfast.sandbox.snapshot import LocalSnapshot, LocalSnapshotSpec

    agents = [run.current_agent, *(agent for _, agent in run.graph if isinstance(agent, Agent))]
    given = set[str]().union(*(process_manifest(agent, config.manifest).list_host_access() for agent in agents))
    if added := sorted(state.manifest.list_host_access() - given):
        raise UserError(
            f"the saved sandbox {added[0]}, unlike the manifest of this program: resume it with its manifest"
        )
    directories = {get_default_snapshot_directory()}
    if isinstance(config.snapshot, (LocalSnapshot, LocalSnapshotSpec)):
        directories.add(config.snapshot.base_path)
    if isinstance(state.snapshot, LocalSnapshot) and state.snapshot.base_path not in directories:
        place = state.snapshot.base_path
        raise UserError(
            f"the saved sandbox keeps its files in {place}: resume it with that snapshot= in its configuration"
        )


async def _create_session(
    run: ActiveRun, config: "SandboxRunConfig", stored: "StoredSandbox | None"
) -> "BaseSandboxSession":
    from standfast.sandbox.agent import process_manifest
    from standfast.sandbox.snapshot import LocalSnapshotSpec, NoopSnapshotSpec

    client = config.client
    if client is None:
        raise UserError("SandboxRunConfig needs a client or a session: UnixLocalSandboxClient() works on this machine")
    manifest = process_manifest(run.current_agent, config.manifest)
    saved = run.state.sandbox if stored is None else await stored.load()
    if saved is not None:
        if saved["backend_id"] != client.backend_id:
            raise UserError(f"this run belongs to a sandbox of {saved['backend_id']!r}, not of {client.backend_id!r}")
        state = client.deserialize_session_state(saved["session_state"])
        check_saved_session(state, run, config)
        state.manifest = state.manifest.with_ephemeral_environment(manifest)
        session = await client.resume(state)
    elif config.session_state is not None:
        session = await client.resume(config.session_state)
    else:
        default = (
            NoopSnapshotSpec() if stored is not None else LocalSnapshotSpec(base_path=get_default_snapshot_directory())
        )
        if config.options is None and not client.supports_default_options:
            raise UserError(f"{type(client).__name__} needs options: pass SandboxRunConfig(options=...)")
        session = await client.create(snapshot=config.snapshot or default, manifest=manifest, options=config.options)
    if stored is not None:
        stored.bind(session, client, config.archive_limits)
    return session
