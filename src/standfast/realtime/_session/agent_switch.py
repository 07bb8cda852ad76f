"""Carrying out changes of the agent: what :mod:`standfast.realtime._session.agent_transitions` says, done by those who asked for it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal

from standfast.agents.hooks import AgentHooks
from standfast.base.errors import Closed
from standfast.realtime._session.agent_transitions import (
    CommitSwitch,
    ResolveAgent,
    RestoreSettings,
    SendSettings,
    SkipSwitch,
    SwitchCommand,
    SwitchRequest,
)
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.errors import NotConnected, SettingsRejected
from standfast.realtime.events import RealtimeAgentChanged, RealtimeHandoffEvent
from standfast.realtime.model_inputs import RealtimeModelSendSessionUpdate

RESTORE_TIMEOUT = 30.0
"""How long the next change waits at the most for one that failed to be taken back."""


class AgentSwitcher:
    """Each change is made by the task that asked for it, which waits for its turn.

    ``replace`` is called when nobody knows any more whose settings the model has: its connection is to be replaced.
    """

    def __init__(self, ctx: SessionContext, *, replace_connection: Callable[[Exception], None]) -> None:
        self._ctx, self._replace_connection = ctx, replace_connection
        self._command_queues: dict[
            SwitchRequest, asyncio.Queue[ResolveAgent | SendSettings | CommitSwitch | SkipSwitch]
        ] = {}
        self._restore_task: asyncio.Task[None] | None = None
        self._switch_tasks: set[asyncio.Task[Any] | None] = set()
        self._closed = False

    async def switch_to(
        self,
        agent: RealtimeAgent[Any],
        *,
        reason: Literal["handoff", "update"],
        expected_current: ResolvedAgent | None = None,
    ) -> bool:
        """Make ``agent`` the current one, or raise what kept it from that.

        False if ``instead_of``, which it was to take over from, is not the current one any more.
        """
        transitions, change = self._ctx.transitions, SwitchRequest(agent, reason, expected_current)
        steps = self._command_queues[change] = asyncio.Queue()
        self._switch_tasks.add(maker := asyncio.current_task())
        try:
            self._dispatch(transitions.submit(change))
            while True:
                match await steps.get():
                    case ResolveAgent():
                        new = await self._ctx.resolve_agent(agent)
                        self._dispatch(transitions.on_resolved(change, new))
                    case SendSettings(new=new):
                        await self._ctx.send(RealtimeModelSendSessionUpdate(new.settings))
                        self._dispatch(transitions.on_acknowledged(change, new))
                    case step:
                        return isinstance(step, CommitSwitch)
        except BaseException as error:
            # Whatever else it was, the model may have taken the settings over before.
            self._dispatch(transitions.on_failed(change, uncertain=not isinstance(error, SettingsRejected)))
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise Closed("the session was closed before the agent could take over") from None
            if self._restore_task is not None and isinstance(error, Exception):
                await asyncio.wait({self._restore_task})
            raise
        finally:
            del self._command_queues[change]
            self._switch_tasks.discard(maker)

    @property
    def in_progress(self) -> bool:
        """Whether somebody waits for the model to have settings."""
        return bool(self._command_queues) or self._restore_task is not None

    def close(self) -> None:
        """The session is over: nobody waits any longer to take over."""
        self._closed = True
        for maker in self._switch_tasks:
            if maker is not None:
                maker.cancel()

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
        room, old, new = self._ctx, command.old.agent, command.new.agent
        room.emit(RealtimeAgentChanged(old, new, command.request.reason, room.info))
        if command.request.reason == "handoff":
            room.emit(RealtimeHandoffEvent(old, new, room.info))
            room.start_task(self._run_handoff_hooks(old, new), "handoff hooks")

    def _restore_settings(self, old: ResolvedAgent) -> None:
        def over(task: "asyncio.Task[None] | None") -> None:
            self._restore_task = None
            self._dispatch(self._ctx.transitions.on_restored())

        self._restore_task = self._ctx.start_task(self._resend_settings(old), "restoring the settings")
        if self._restore_task is None:
            over(None)
        else:
            self._restore_task.add_done_callback(over)

    async def _resend_settings(self, old: ResolvedAgent) -> None:
        try:
            async with asyncio.timeout(RESTORE_TIMEOUT):
                await self._ctx.model.send_event(RealtimeModelSendSessionUpdate(old.settings))
        except (ConnectionError, NotConnected) as error:  # The next connection gets them.
            log.debug("the settings of %r could not be restored: %r", old.agent.name, error)
        except Exception as error:  # noqa: BLE001 - the first failure is the one to tell
            log.warning("the settings of %r could not be restored: %r", old.agent.name, error)
            self._replace_connection(error)

    async def _run_handoff_hooks(self, old: RealtimeAgent[Any], new: RealtimeAgent[Any]) -> None:
        context = self._ctx.run_context
        if self._ctx.hooks is not None:
            await self._ctx.hooks.on_handoff(context, old, new)
        if isinstance(new.hooks, AgentHooks):
            await new.hooks.on_handoff(context, new, old)
