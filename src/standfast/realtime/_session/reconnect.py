"""Reconnects: a connection that is lost is replaced, with back-off, the same settings and the same history.

A response that was active is reported as lost. Running tools continue, and outputs that the old connection may not
have received are part of the history that the new one gets. Calls that wait for approval keep waiting. A planned
roll-over, before the provider's own time limit, takes the same steps while the conversation is quiet.
"""

import asyncio
import random
from contextlib import suppress

from standfast.agents.errors import UserError
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import RealtimeState, SessionContext, SessionOutcome, log
from standfast.realtime._session.responses import ResponseRegistry
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime._session.tool_calls import ToolCallRunner
from standfast.realtime._session.turns import TurnTracker
from standfast.realtime.errors import ConnectFailed, ConnectionLost
from standfast.realtime.events import RealtimeReconnected, RealtimeReconnecting
from standfast.realtime.items import RealtimeItem, RealtimeToolCallItem

DEFAULT_ATTEMPTS = 6
DEFAULT_INITIAL_DELAY, DEFAULT_MAX_DELAY = 0.25, 8.0
DEFAULT_ROLL_OVER_AFTER = 55 * 60.0
STABLE_AFTER = 10.0
"""Seconds. The delay grows with each connection in a row that was lost sooner."""
QUIET_TIMEOUT = 180.0
"""Seconds that a planned roll-over waits for the conversation to be quiet."""


class Reconnector:
    """Replaces lost connections and restores the state of the server. It supervises the session's connection."""

    def __init__(
        self,
        ctx: SessionContext,
        connection: SessionConnection,
        responses: ResponseRegistry,
        history: SessionHistory,
        agent_switcher: AgentSwitcher,
        tool_calls: ToolCallRunner,
        turns: TurnTracker,
        outcome: SessionOutcome,
    ) -> None:
        config = ctx.run_config.get("reconnect", {})
        self._ctx, self._connection, self._responses, self._history = ctx, connection, responses, history
        self._agent_switcher, self._tool_calls, self._turns, self._outcome = agent_switcher, tool_calls, turns, outcome
        self.attempts = config.get("attempts", DEFAULT_ATTEMPTS)
        self._initial_delay = config.get("initial_delay", DEFAULT_INITIAL_DELAY)
        self._max_delay = config.get("max_delay", DEFAULT_MAX_DELAY)
        self._roll_over_after = config.get("roll_over_after", DEFAULT_ROLL_OVER_AFTER)
        self._in_progress = self._lost_again = False
        self._connected_at, self._short_lived_count = -STABLE_AFTER, 0
        connection.set_supervisor(self)

    def on_connection_lost(self, error: Exception | None) -> None:
        """Start to reconnect. Further reports of the same loss change nothing."""
        ctx = self._ctx
        self._lost_again = True
        if ctx.state is RealtimeState.OPENING:
            self._outcome.abort(error)  # There is no conversation to continue: the entry fails.
        if self._in_progress or not ctx.is_open:
            return
        self._mark_down()
        if self.attempts < 1:
            self._outcome.abort(error)
            return
        self._in_progress = True
        self._short_lived_count = self._short_lived_count + 1 if ctx.now() - self._connected_at < STABLE_AFTER else 0
        ctx.start_task(self._reconnect(error, planned=False), "reconnecting")

    def replace_connection(self, error: Exception) -> None:
        """Replace a connection that is up but in an unknown state, unless reconnects are switched off."""
        if self.attempts < 1:
            self._ctx.emit_error(error)
        else:
            self.on_connection_lost(error)

    async def roll_over(self) -> None:
        """Replace the connection regularly, before the provider ends it."""
        while self._roll_over_after is not None:
            await asyncio.sleep(self._roll_over_after)
            await self._wait_until_quiet()
            if not self._in_progress and self._ctx.is_open:
                self._in_progress = True
                self._mark_down()
                await self._reconnect(None, planned=True)

    def _mark_down(self) -> None:
        self._connection.set_connected(connected=False)
        self._turns.on_connection_lost()

    async def _reconnect(self, error: Exception | None, *, planned: bool) -> None:
        ctx, lost_at, attempt = self._ctx, self._ctx.now(), 0
        try:
            while True:
                attempt += 1
                delay = 0.0 if planned and attempt == 1 else self._next_delay(attempt)
                ctx.emit(RealtimeReconnecting(attempt, delay, error, ctx.info, planned=planned))
                await asyncio.sleep(delay)
                try:
                    sent_items = await self._connect_and_replay()
                    break
                except Exception as failed:  # noqa: BLE001 - retried, or the session ends with it
                    log.warning("reconnecting failed: %s", failed)
                    error = failed
                if attempt >= self.attempts or _is_permanent(error):
                    self._outcome.abort(error)
                    return
        finally:
            self._in_progress = False
        self._connection.set_connected(connected=True)
        self._connected_at = ctx.now()
        gap_ms = (ctx.now() - lost_at) * 1000
        ctx.emit(RealtimeReconnected(attempt, gap_ms, ctx.info, planned=planned))
        ctx.record_metric("reconnect_gap", gap_ms)
        self._connection.is_restoring = True
        try:
            await self._restore(sent_items)
        except Exception as failed:  # noqa: BLE001 - if this connection is lost as well, its loss is reported anyway
            ctx.emit_error(failed)
        finally:
            self._connection.is_restoring = False

    async def _connect_and_replay(self) -> list[RealtimeItem]:
        """Make a connection and send it the history. Returns the items that were sent."""
        model = self._ctx.model
        with suppress(Exception):
            await model.close()
        self._lost_again = False
        await self._connection.connect(self._agent_switcher.current.settings)
        try:
            items = self._history.conversation.get_items()
            await self._history.replay(items)
            if self._lost_again:
                raise ConnectionLost("the new connection was lost while the history was sent")
        except Exception:
            with suppress(Exception):
                await model.close()
            raise
        return items

    async def _restore(self, sent_items: list[RealtimeItem]) -> None:
        """Send a new connection, which has these items, everything else that the old one may have lost."""
        connection, queue = self._connection, self._connection.resend_queue
        self._tool_calls.mark_replayed(
            {item.call_id for item in sent_items if isinstance(item, RealtimeToolCallItem) and item.output is not None}
        )
        await self._history.resend_changed_items(sent_items)
        resent = bool(queue.to_resend)
        while queue.to_resend and connection.is_up:
            await self._ctx.model.send_event(queue.pop_next())
        latest = self._responses.latest
        response_owed = queue.response_pending or (latest is not None and latest.needs_retry)
        if response_owed and not resent:
            await connection.send_raw("response.create")

    def _next_delay(self, attempt: int) -> float:
        doublings = min(attempt - 1 + self._short_lived_count, 32)
        longest: float = min(self._initial_delay * 2**doublings, self._max_delay)
        return longest * random.uniform(0.5, 1.0)

    async def _wait_until_quiet(self) -> None:
        """Wait until no response is active and the user is silent, up to a limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_TIMEOUT):
                while self._responses.active is not None or self._turns.user_is_speaking:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.1)


def _is_permanent(error: Exception) -> bool:
    """Return whether a retry is useless: the API key is missing or was rejected."""
    return isinstance(error, UserError) or (isinstance(error, ConnectFailed) and error.status in (401, 403))


def make_connection_error(error: Exception | None, code: int | None) -> Exception | None:
    """Return why a connection ended, as an error; ``None`` if it was closed normally."""
    if error is not None or code in (None, 1000):
        return error
    return ConnectionLost(f"the connection was closed with code {code}", close_code=code)
