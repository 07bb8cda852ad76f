"""Agent switches: executes the commands of :mod:`standfast.realtime._session.agent_transitions`."""

import asyncio
from collections.abc import Iterable
from typing import Any, Literal

from standfast.agents.context import AgentHooksBase
from standfast.base.errors import Closed
from standfast.realtime._session.agent_transitions import (
    AgentTransitions,
    CommitSwitch,
    ResolveAgent,
    RestoreSettings,
    SendSettings,
    SkipSwitch,
    SwitchCommand,
    SwitchRequest,
)
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.resolved_agent import AgentResolver, ResolvedAgent
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import NotConnected, SettingsRejected
from standfast.realtime.events import RealtimeAgentChanged, RealtimeHandoffEvent
from standfast.realtime.model import RealtimeModelSendSessionUpdate

RESTORE_TIMEOUT = 30.0
"""Seconds that restoring the old settings may take before the next switch starts."""


class AgentSwitcher:
    """Owns the current agent. Each switch runs in the task that requested it, which waits for its turn."""

    def __init__(self, ctx: SessionContext, connection: SessionConnection, resolver: AgentResolver) -> None:
        self._ctx, self._connection, self._resolver = ctx, connection, resolver
        self._transitions = AgentTransitions()
        self._command_queues: dict[
            SwitchRequest, asyncio.Queue[ResolveAgent | SendSettings | CommitSwitch | SkipSwitch]
        ] = {}
        self._restore_task: asyncio.Task[None] | None = None
        self._switch_tasks: set[asyncio.Task[Any] | None] = set()
        self._closed = False

    @property
    def current(self) -> ResolvedAgent:
        """The agent whose settings the model has acknowledged. Set by :meth:`start_with`."""
        return self._transitions.current

    @property
    def has_current(self) -> bool:
        return hasattr(self._transitions, "current")

    @property
    def in_progress(self) -> bool:
        """Whether a switch waits for the model to acknowledge settings."""
        return bool(self._command_queues) or self._restore_task is not None

    async def start_with(
        self, agent: RealtimeAgent[Any], *, overrides: RealtimeSessionModelSettings | None
    ) -> ResolvedAgent:
        """Resolve the first agent and make it the current one."""
        self._transitions.current = await self._resolver.resolve(agent, overrides=overrides)
        return self._transitions.current

    async def switch_to(
        self,
        agent: RealtimeAgent[Any],
        *,
        reason: Literal["handoff", "update"],
        expected_current: ResolvedAgent | None = None,
    ) -> bool:
        """Make ``agent`` the current one. If it raises, the old agent stays.

        Returns False, without a switch, if ``expected_current`` is given and is no longer the current agent.
        """
        transitions, request = self._transitions, SwitchRequest(agent, reason, expected_current)
        commands = self._command_queues[request] = asyncio.Queue()
        self._switch_tasks.add(task := asyncio.current_task())
        try:
            self._dispatch(transitions.submit(request))
            while True:
                match await commands.get():
                    case ResolveAgent():
                        new = await self._resolver.resolve(agent)
                        self._dispatch(transitions.on_resolved(request, new))
                    case SendSettings(new=new):
                        await self._connection.send(RealtimeModelSendSessionUpdate(new.settings))
                        self._dispatch(transitions.on_acknowledged(request, new))
                    case command:
                        return isinstance(command, CommitSwitch)
        except BaseException as error:
            # Unless it rejected the settings, the model may have applied them before the error.
            self._dispatch(transitions.on_failed(request, uncertain=not isinstance(error, SettingsRejected)))
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise Closed("the session was closed before the agent could take over") from None
            if self._restore_task is not None and isinstance(error, Exception):
                await asyncio.wait({self._restore_task})
            raise
        finally:
            del self._command_queues[request]
            self._switch_tasks.discard(task)

    def close(self) -> None:
        """Cancel the switches that are waiting, because the session is over."""
        self._closed = True
        for task in self._switch_tasks:
            if task is not None:
                task.cancel()

    def _dispatch(self, commands: Iterable[SwitchCommand]) -> None:
        for command in commands:
            match command:
                case RestoreSettings(old):
                    self._restore_settings(old)
                case _:
                    if isinstance(command, CommitSwitch):
                        self._announce(command)
                    self._command_queues[command.request].put_nowait(command)

    def _announce(self, command: CommitSwitch) -> None:
        ctx, old, new = self._ctx, command.old.agent, command.new.agent
        ctx.emit(RealtimeAgentChanged(old, new, command.request.reason, ctx.info))
        if command.request.reason == "handoff":
            ctx.emit(RealtimeHandoffEvent(old, new, ctx.info))
            ctx.start_task(self._run_handoff_hooks(old, new), "handoff hooks")

    def _restore_settings(self, old: ResolvedAgent) -> None:
        self._restore_task = self._ctx.start_task(self._resend_settings(old), "restoring the settings")
        if self._restore_task is None:
            self._on_restore_done(None)
        else:
            self._restore_task.add_done_callback(self._on_restore_done)

    def _on_restore_done(self, task: "asyncio.Task[None] | None") -> None:
        self._restore_task = None
        self._dispatch(self._transitions.on_restored())

    async def _resend_settings(self, old: ResolvedAgent) -> None:
        try:
            async with asyncio.timeout(RESTORE_TIMEOUT):
                await self._ctx.model.send_event(RealtimeModelSendSessionUpdate(old.settings))
        except (ConnectionError, NotConnected) as error:  # The next connection starts with these settings.
            log.debug("the settings of %r could not be restored: %r", old.agent.name, error)
        except Exception as error:  # noqa: BLE001 - the program gets the error of the switch itself
            log.warning("the settings of %r could not be restored: %r", old.agent.name, error)
            self._connection.request_replacement(error)

    async def _run_handoff_hooks(self, old: RealtimeAgent[Any], new: RealtimeAgent[Any]) -> None:
        context = self._ctx.run_context
        if self._ctx.hooks is not None:
            await self._ctx.hooks.on_handoff(context, old, new)
        if isinstance(new.hooks, AgentHooksBase):
            await new.hooks.on_handoff(context, new, old)
