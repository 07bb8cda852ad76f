"""Carrying out changes of the agent: what :mod:`holdfast.realtime.transition` says, done by those who asked for it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Literal

from holdfast.agents.hooks import AgentHooks
from holdfast.base.errors import Closed
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.errors import NotConnected, SettingsRejected
from holdfast.realtime.events import RealtimeAgentChanged, RealtimeHandoffEvent
from holdfast.realtime.model_inputs import RealtimeModelSendSessionUpdate
from holdfast.realtime.room import Room, log
from holdfast.realtime.snapshot import Snapshot
from holdfast.realtime.transition import Change, Command, Forgo, Resolve, Restore, TakeOver, Tell

RESTORED_WITHIN = 30.0
"""How long the next change waits at the most for one that failed to be taken back."""


class Changing:
    """Each change is made by the task that asked for it, which waits for its turn.

    ``replace`` is called when nobody knows any more whose settings the model has: its connection is to be replaced.
    """

    def __init__(self, room: Room, *, replace: Callable[[Exception], None]) -> None:
        self._room, self._replace = room, replace
        self._steps: dict[Change, asyncio.Queue[Resolve | Tell | TakeOver | Forgo]] = {}
        self._restoring: asyncio.Task[None] | None = None
        self._makers: set[asyncio.Task[Any] | None] = set()
        self._ended = False

    async def to(
        self,
        agent: RealtimeAgent[Any],
        *,
        reason: Literal["handoff", "update"],
        instead_of: Snapshot | None = None,
    ) -> bool:
        """Make ``agent`` the current one, or raise what kept it from that.

        False if ``instead_of``, which it was to take over from, is not the current one any more.
        """
        transitions, change = self._room.transitions, Change(agent, reason, instead_of)
        steps = self._steps[change] = asyncio.Queue()
        self._makers.add(maker := asyncio.current_task())
        try:
            self._do(transitions.ask(change))
            while True:
                match await steps.get():
                    case Resolve():
                        new = await self._room.resolve(agent)
                        self._do(transitions.resolved(change, new))
                    case Tell(new=new):
                        await self._room.send(RealtimeModelSendSessionUpdate(new.settings))
                        self._do(transitions.acknowledged(change, new))
                    case step:
                        return isinstance(step, TakeOver)
        except BaseException as error:
            # Whatever else it was, the model may have taken the settings over before.
            self._do(transitions.failed(change, in_doubt=not isinstance(error, SettingsRejected)))
            if self._ended and isinstance(error, asyncio.CancelledError):
                raise Closed("the session was closed before the agent could take over") from None
            if self._restoring is not None and isinstance(error, Exception):
                await asyncio.wait({self._restoring})
            raise
        finally:
            del self._steps[change]
            self._makers.discard(maker)

    @property
    def under_way(self) -> bool:
        """Whether somebody waits for the model to have settings."""
        return bool(self._steps) or self._restoring is not None

    def end(self) -> None:
        """The session is over: nobody waits any longer to take over."""
        self._ended = True
        for maker in self._makers:
            if maker is not None:
                maker.cancel()

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Restore(old):
                    self._restore(old)
                case _:
                    if isinstance(command, TakeOver):
                        self._announce(command)
                    self._steps[command.change].put_nowait(command)

    def _announce(self, done: TakeOver) -> None:
        room, old, new = self._room, done.old.agent, done.new.agent
        room.emit(RealtimeAgentChanged(old, new, done.change.reason, room.info))
        if done.change.reason == "handoff":
            room.emit(RealtimeHandoffEvent(old, new, room.info))
            room.start(self._tell_hooks(old, new), "handoff hooks")

    def _restore(self, old: Snapshot) -> None:
        def over(task: "asyncio.Task[None] | None") -> None:
            self._restoring = None
            self._do(self._room.transitions.restored())

        self._restoring = self._room.start(self._tell_again(old), "restoring the settings")
        if self._restoring is None:
            over(None)
        else:
            self._restoring.add_done_callback(over)

    async def _tell_again(self, old: Snapshot) -> None:
        try:
            async with asyncio.timeout(RESTORED_WITHIN):
                await self._room.model.send_event(RealtimeModelSendSessionUpdate(old.settings))
        except (ConnectionError, NotConnected) as error:  # The next connection gets them.
            log.debug("the settings of %r could not be restored: %r", old.agent.name, error)
        except Exception as error:  # noqa: BLE001 - the first failure is the one to tell
            log.warning("the settings of %r could not be restored: %r", old.agent.name, error)
            self._replace(error)

    async def _tell_hooks(self, old: RealtimeAgent[Any], new: RealtimeAgent[Any]) -> None:
        context = self._room.context
        if self._room.hooks is not None:
            await self._room.hooks.on_handoff(context, old, new)
        if isinstance(new.hooks, AgentHooks):
            await new.hooks.on_handoff(context, new, old)
