"""The workspace of a run whose agents work in a sandbox: opened before the first step, closed after the last."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from standfast.agents.errors import UserError
from standfast.runs.active_run import ActiveRun

if TYPE_CHECKING:
    from standfast.sandbox.agent import RunSandbox
    from standfast.sandbox.config import SandboxRunConfig
    from standfast.sandbox.sessions import BaseSandboxSession


def get_default_snapshot_directory() -> Path:
    """Return where workspaces of paused runs are kept if the program names no place."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "standfast" / "sandboxes"


async def open_sandbox(run: ActiveRun) -> "RunSandbox | None":
    """Give the run the workspace that its configuration asks for, and return it unless it is that of an outer run.

    A session of the program is used and left as it is. Otherwise one is resumed or created.
    """
    config: Any = run.config.sandbox
    outer = run.context.sandbox
    if outer is not None and outer.config is config:
        return None
    from standfast.sandbox.agent import RunSandbox
    from standfast.sandbox.workspace_paths import SandboxWorkspaceScope

    scope = SandboxWorkspaceScope.from_cwd(config.cwd)
    session = config.session or await _create_session(run, config)
    sandbox = RunSandbox(session, scope, config, outer=outer)
    try:
        await session.start()
        if scope.cwd is not None:
            await session.ls(str(scope.cwd))  # it must exist
    except BaseException:
        await close_sandbox(run, sandbox)
        raise
    run.context.sandbox = sandbox
    return sandbox


async def close_sandbox(run: ActiveRun, sandbox: "RunSandbox | None") -> None:
    """Close what :func:`open_sandbox` opened.

    The workspace of a run that ended is kept only if the program asked for it. That of another run is kept, and the
    state of the session becomes part of the run's state.
    """
    if sandbox is None:
        return
    run.context.sandbox, session, client = sandbox.outer, sandbox.session, sandbox.config.client
    if sandbox.config.session is not None or client is None:
        return
    if run.state.ended and sandbox.config.snapshot is None:
        _forget_snapshot(session)
    try:
        await session.aclose()
    finally:
        await client.delete(session)
    saved: dict[str, Any] | None = None
    if not run.state.ended:
        saved = {"backend_id": client.backend_id, "session_state": client.serialize_session_state(session.state)}
    run.state = replace(run.state, sandbox=saved)


def _forget_snapshot(session: "BaseSandboxSession") -> None:
    """Keep nothing of a workspace, and delete what an earlier part of the run left at the default place."""
    from standfast.sandbox.snapshot import LocalSnapshot, NoopSnapshot

    snapshot = session.state.snapshot
    if isinstance(snapshot, LocalSnapshot) and snapshot.base_path == get_default_snapshot_directory():
        session.state.snapshot = NoopSnapshot(id=snapshot.id)
        snapshot.path.unlink(missing_ok=True)


async def _create_session(run: ActiveRun, config: "SandboxRunConfig") -> "BaseSandboxSession":
    from standfast.sandbox.agent import process_manifest
    from standfast.sandbox.snapshot import LocalSnapshotSpec

    client = config.client
    if client is None:
        raise UserError("SandboxRunConfig needs a client or a session: UnixLocalSandboxClient() works on this machine")
    saved = run.state.sandbox
    if saved is not None:
        if saved["backend_id"] != client.backend_id:
            raise UserError(f"this run belongs to a sandbox of {saved['backend_id']!r}, not of {client.backend_id!r}")
        return await client.resume(client.deserialize_session_state(saved["session_state"]))
    if config.session_state is not None:
        return await client.resume(config.session_state)
    manifest = process_manifest(run.current_agent, config.manifest)
    snapshot = config.snapshot or LocalSnapshotSpec(base_path=get_default_snapshot_directory())
    if config.options is None and not client.supports_default_options:
        raise UserError(f"{type(client).__name__} needs options: pass SandboxRunConfig(options=...)")
    return await client.create(snapshot=snapshot, manifest=manifest, options=config.options)
