"""Sandbox agents, and their binding to the workspace of a run."""

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from standfast.agents.agent import Agent, Instructions
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidDeclaration, UserError
from standfast.agents.model_settings import ModelSettings, get_default_model
from standfast.agents.tools import Tool, filter_enabled
from standfast.agents.types import TContext, maybe_await
from standfast.base.items import Item
from standfast.sandbox.capabilities.capabilities import Capabilities
from standfast.sandbox.capabilities.capability import Capability
from standfast.sandbox.config import SandboxRunConfig
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.sessions import BaseSandboxSession
from standfast.sandbox.snapshot import SnapshotBase
from standfast.sandbox.stored_workspace import StoredSandbox
from standfast.sandbox.types import User
from standfast.sandbox.workspace_paths import SandboxWorkspaceScope

BASE_INSTRUCTIONS = """\
You work in a sandbox: a workspace with files, in which you can run commands and change files with your tools.
- Look at the files before you answer questions about them or change them.
- Keep changes small and check them, for example by running the tests that exist.
- Use paths relative to the workspace. Nothing outside of it is yours to change.
- Say what you did, what you checked, and what is left."""


@dataclass(eq=False, repr=False)
class SandboxAgent(Agent[TContext]):
    """An agent that works in the sandbox of its run, ``RunConfig(sandbox=SandboxRunConfig(...))``.

    The model gets ``base_instructions``, then ``instructions``, then those of the capabilities, then the files that the
    workspace started with. ``default_manifest`` describes new workspaces, ``run_as`` the account of its commands.
    """

    default_manifest: Manifest | None = None
    base_instructions: Instructions | None = None
    capabilities: list[Capability] = field(default_factory=Capabilities.default)
    run_as: User | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.capabilities, list) or not all(isinstance(c, Capability) for c in self.capabilities):
            raise InvalidDeclaration("SandboxAgent", f"capabilities must be a list of them, got {self.capabilities!r}")
        present = {capability.type for capability in self.capabilities}
        for capability in self.capabilities:
            if missing := capability.required_capability_types() - present:
                raise InvalidDeclaration("SandboxAgent", f"{capability.type} needs {', '.join(sorted(missing))}")
        if isinstance(self.default_manifest, dict):
            self.default_manifest = Manifest.model_validate(self.default_manifest)
        if isinstance(self.run_as, str):
            self.run_as = User(name=self.run_as)

    async def get_all_tools(self, run_context: RunContextWrapper[TContext]) -> list[Tool]:
        """Return the agent's own tools, then those of its capabilities."""
        bound = await get_sandbox(run_context, self).bind(self)
        tools = [tool for capability in bound for tool in capability.tools()]
        return [*await super().get_all_tools(run_context), *await filter_enabled(tools, run_context, self)]

    async def get_system_prompt(self, run_context: RunContextWrapper[TContext]) -> str | None:
        sandbox = get_sandbox(run_context, self)
        bound, manifest = await sandbox.bind(self), sandbox.session.state.manifest
        base = self.base_instructions if self.base_instructions is not None else BASE_INSTRUCTIONS
        parts = [base if isinstance(base, str) else await maybe_await(base(run_context, self))]
        own = await super().get_system_prompt(run_context)
        if own:
            parts.append(f"# Agent instructions\n\n{own}")
        texts = [text for capability in bound if (text := await capability.instructions(manifest))]
        if texts:
            parts.append("# Sandbox capability instructions\n\n" + "\n\n".join(texts))
        listing = sandbox.session.describe().rstrip()
        parts.append(f"# Filesystem\nThe workspace started with these files:\n\n{listing}")
        if sandbox.stored is not None:
            parts.append(sandbox.stored.describe_loss() or "")
        return "\n\n".join(part for part in parts if part)

    async def prepare_request(
        self, run_context: RunContextWrapper[TContext], items: list[Item], settings: ModelSettings
    ) -> tuple[list[Item], ModelSettings]:
        """Let the capabilities change the input and add arguments of the request."""
        arguments, sandbox = dict(settings.extra_args or {}), get_sandbox(run_context, self)
        model = self.model if sandbox.model is None else sandbox.model
        name = (
            get_default_model() if model is None else model if isinstance(model, str) else getattr(model, "model", None)
        )
        for capability in await sandbox.bind(self):
            items = capability.process_context(items)
            arguments = {**capability.sampling_params({"model": name, **arguments}), **arguments}
        return items, replace(settings, extra_args=arguments or None)


class RunSandbox:
    """The session of a run, and the capabilities of its agents, bound to it."""

    def __init__(
        self,
        session: BaseSandboxSession,
        scope: SandboxWorkspaceScope,
        config: SandboxRunConfig,
        *,
        outer: Any = None,
        stored: StoredSandbox | None = None,
        model: Any = None,
    ) -> None:
        self.session, self.scope, self.config, self.outer, self.stored = session, scope, config, outer, stored
        self.model = model
        """The model of all agents of the run, if its configuration has one."""
        self.snapshot: SnapshotBase = session.state.snapshot
        """Where the program wants the workspace, beside the store of a runtime."""
        self._bound: dict[int, tuple[SandboxAgent[Any], list[Capability]]] = {}

    async def bind(self, agent: SandboxAgent[Any]) -> list[Capability]:
        """Return clones of the agent's capabilities for this session, the same ones for the whole run."""
        known = self._bound.get(id(agent))
        if known is not None and known[0] is agent:
            return known[1]
        clones = [capability.clone() for capability in agent.capabilities]
        manifest = self.session.state.manifest
        if agent.default_manifest is not None and self._is_new:
            manifest = manifest.with_additions(agent.default_manifest)
        for clone in clones:
            clone.bind(self.session)
            clone.bind_workspace_scope(self.scope)
            clone.bind_run_as(agent.run_as if isinstance(agent.run_as, User) else None)
            manifest = clone.process_manifest(manifest)
        await self._add_entries(manifest)
        self._bound[id(agent)] = (agent, clones)
        return clones

    @property
    def _is_new(self) -> bool:
        """Whether the run made the workspace, and its agents say what is in it."""
        config = self.config
        return config.session is None and config.session_state is None and config.manifest is None

    async def _add_entries(self, manifest: Manifest) -> None:
        """Create the entries that agents and capabilities added to the manifest of a running session."""
        present = {PurePosixPath(Path(name).as_posix()) for name in self.session.state.manifest.entries}
        for name, entry in manifest.validated_entries().items():
            path = PurePosixPath(Path(name).as_posix())
            if path not in present:
                await entry.apply(self.session, Path(self.session.state.manifest.root) / path, Path.cwd())
        self.session.state.manifest = manifest


def process_manifest(agent: Agent[Any], manifest: Manifest | None) -> Manifest:
    """Return the manifest of a new workspace for this agent, with what its capabilities add."""
    if not isinstance(agent, SandboxAgent):
        return manifest or Manifest()
    processed = manifest or agent.default_manifest or Manifest()
    for capability in agent.capabilities:
        processed = capability.clone().process_manifest(processed)
    return processed


def get_sandbox(run_context: RunContextWrapper[Any], agent: Agent[Any]) -> RunSandbox:
    sandbox = run_context.sandbox
    if not isinstance(sandbox, RunSandbox):
        raise UserError(
            f"the agent {agent.name!r} works in a sandbox: pass run_config=RunConfig(sandbox=SandboxRunConfig("
            "client=UnixLocalSandboxClient()))"
        )
    return sandbox
