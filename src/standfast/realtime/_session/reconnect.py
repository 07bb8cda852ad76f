"""A connection that ends although nobody asked is replaced: back-off, the same settings, the same history.

What was under way is settled: a response that died is told as lost, running tools go on, answers that the old
connection may not have heard are part of the history that the new one is told, and calls that wait for a person keep
waiting. A planned roll-over before the provider's own limit goes the same way, in a quiet moment.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from standfast.agents.errors import UserError
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.history_sync import send_history
from standfast.realtime._session.states import RealtimeState
from standfast.realtime.errors import ConnectFailed, ConnectionLost
from standfast.realtime.events import RealtimeReconnected, RealtimeReconnecting
from standfast.realtime.items import RealtimeItem

DEFAULT_ATTEMPTS = 6
DEFAULT_INITIAL_DELAY, DEFAULT_MAX_DELAY = 0.25, 8.0
DEFAULT_ROLL_OVER_AFTER = 55 * 60.0
STABLE_AFTER = 10.0
"""A connection that is lost sooner is replaced more slowly each time: another one would hardly last longer."""
QUIET_TIMEOUT = 180.0
"""How long a planned roll-over waits for a moment in which nobody speaks."""


class Reconnector:
    """``connect`` makes a connection with the settings of now, and ``give_up`` ends the session.

    ``settle`` is called when a connection is gone, ``restored`` when the next one knows the given items.
    """

    def __init__(
        self,
        ctx: SessionContext,
        *,
        connect: Callable[[], Awaitable[None]],
        on_lost: Callable[[], None],
        on_restored: Callable[[list[RealtimeItem]], Awaitable[None]],
        abort: Callable[[BaseException | None], None],
    ) -> None:
        wanted = ctx.run_config.get("reconnect", {})
        self._ctx, self._connect = ctx, connect
        self._on_lost, self._on_restored, self._abort = on_lost, on_restored, abort
        self.attempts = wanted.get("attempts", DEFAULT_ATTEMPTS)
        self._initial_delay, self._max_delay = (
            wanted.get("first_delay", DEFAULT_INITIAL_DELAY),
            wanted.get("longest_delay", DEFAULT_MAX_DELAY),
        )
        self._roll_over_after = wanted.get("roll_over_after", DEFAULT_ROLL_OVER_AFTER)
        self._in_progress = self._lost_again = False
        self._connected_at, self._short_lived_count = -STABLE_AFTER, 0

    def on_connection_lost(self, error: Exception | None) -> None:
        """The connection is gone. Called as often as it is told; the first time counts."""
        room = self._ctx
        self._lost_again = True
        if room.state is RealtimeState.OPENING:
            self._abort(error)  # There is nothing yet to go on with: the entry fails.
        if self._in_progress or not room.is_open:
            return
        self._mark_down()
        if self.attempts < 1:
            self._abort(error)
            return
        self._in_progress = True
        self._short_lived_count = self._short_lived_count + 1 if room.now() - self._connected_at < STABLE_AFTER else 0
        room.start_task(self._reconnect(error, planned=False), "reconnecting")

    def replace_connection(self, error: Exception) -> None:
        """The connection lives, but is not what it should be: another one takes its place, if there may be another."""
        if self.attempts < 1:
            self._ctx.emit_error(error)
        else:
            self.on_connection_lost(error)

    async def roll_over(self) -> None:
        """Replace the connection now and then, before the provider ends it."""
        while self._roll_over_after is not None:
            await asyncio.sleep(self._roll_over_after)
            await self._wait_until_quiet()
            if not self._in_progress and self._ctx.is_open:
                self._in_progress = True
                self._mark_down()
                await self._reconnect(None, planned=True)

    def _mark_down(self) -> None:
        self._ctx.set_connected(connected=False)
        self._on_lost()

    async def _reconnect(self, error: Exception | None, *, planned: bool) -> None:
        room, since, attempt = self._ctx, self._ctx.now(), 0
        try:
            while True:
                attempt += 1
                delay = 0.0 if planned and attempt == 1 else self._next_delay(attempt)
                room.emit(RealtimeReconnecting(attempt, delay, error, room.info, planned=planned))
                await asyncio.sleep(delay)
                try:
                    known = await self._connect_and_replay()
                    break
                except Exception as failed:  # noqa: BLE001 - tried again, or given up with it
                    log.warning("reconnecting failed: %s", failed)
                    error = failed
                if attempt >= self.attempts or _is_permanent(error):
                    self._abort(error)
                    return
        finally:
            self._in_progress = False
        room.set_connected(connected=True)
        self._connected_at = room.now()
        gap = (room.now() - since) * 1000
        room.emit(RealtimeReconnected(attempt, gap, room.info, planned=planned))
        room.record_metric("reconnect_gap", gap)
        room.is_restoring = True
        try:
            await self._on_restored(known)
        except Exception as failed:  # noqa: BLE001 - if this connection is gone as well, its own loss is told
            room.emit_error(failed)
        finally:
            room.is_restoring = False

    async def _connect_and_replay(self) -> list[RealtimeItem]:
        """Another connection that knows the history; gives the items it was told."""
        room = self._ctx
        with suppress(Exception):
            await room.model.close()
        self._lost_again = False
        await self._connect()
        try:
            known = room.history.get_items()
            await send_history(room, known)
            if self._lost_again:
                raise ConnectionLost("the new connection was lost before it knew the history")
        except Exception:
            with suppress(Exception):
                await room.model.close()
            raise
        return known

    def _next_delay(self, attempt: int) -> float:
        doublings = min(attempt - 1 + self._short_lived_count, 32)
        longest: float = min(self._initial_delay * 2**doublings, self._max_delay)
        return longest * random.uniform(0.5, 1.0)

    async def _wait_until_quiet(self) -> None:
        """Until no response is active and the user is silent, but not for ever."""
        room = self._ctx
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_TIMEOUT):
                while room.responses.active is not None or room.user_is_speaking:  # noqa: ASYNC110 - many ends
                    await asyncio.sleep(0.1)


def _is_permanent(error: Exception) -> bool:
    """Whether trying again helps nobody: the program has no key, or the server does not let the one it has in."""
    return isinstance(error, UserError) or (isinstance(error, ConnectFailed) and error.status in (401, 403))


def make_connection_error(error: Exception | None, code: int | None) -> Exception | None:
    """Why a connection ended, as an error, if it was not a proper end."""
    if error is not None or code in (None, 1000):
        return error
    return ConnectionLost(f"the connection was closed with code {code}", close_code=code)
