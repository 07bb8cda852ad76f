"""A connection that ends although nobody asked is replaced: back-off, the same settings, the same history.

What was under way is settled: a response that died is told as lost, running tools go on, answers that the old
connection may not have heard are part of the history that the new one is told, and calls that wait for a person keep
waiting. A planned roll-over before the provider's own limit goes the same way, in a quiet moment.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.agents.errors import UserError
from holdfast.realtime.errors import ConnectFailed, ConnectionLost
from holdfast.realtime.events import RealtimeReconnected, RealtimeReconnecting
from holdfast.realtime.items import RealtimeItem
from holdfast.realtime.retelling import tell_history
from holdfast.realtime.room import Room, log
from holdfast.realtime.states import RealtimeState

ATTEMPTS = 6
FIRST_DELAY, LONGEST_DELAY = 0.25, 8.0
ROLL_OVER_AFTER = 55 * 60.0
STEADY_AFTER = 10.0
"""A connection that is lost sooner is replaced more slowly each time: another one would hardly last longer."""
QUIET_WITHIN = 180.0
"""How long a planned roll-over waits for a moment in which nobody speaks."""


class Reconnecting:
    """``connect`` makes a connection with the settings of now, and ``give_up`` ends the session.

    ``settle`` is called when a connection is gone, ``restored`` when the next one knows the given items.
    """

    def __init__(
        self,
        room: Room,
        *,
        connect: Callable[[], Awaitable[None]],
        settle: Callable[[], None],
        restored: Callable[[list[RealtimeItem]], Awaitable[None]],
        give_up: Callable[[BaseException | None], None],
    ) -> None:
        wanted = room.run_config.get("reconnect", {})
        self._room, self._connect = room, connect
        self._settle, self._restored, self._give_up = settle, restored, give_up
        self.attempts = wanted.get("attempts", ATTEMPTS)
        self._first, self._longest = wanted.get("first_delay", FIRST_DELAY), wanted.get("longest_delay", LONGEST_DELAY)
        self._roll_over_after = wanted.get("roll_over_after", ROLL_OVER_AFTER)
        self._busy = self._gone_again = False
        self._up_at, self._short_lived = -STEADY_AFTER, 0

    def lost(self, error: Exception | None) -> None:
        """The connection is gone. Called as often as it is told; the first time counts."""
        room = self._room
        self._gone_again = True
        if room.state is RealtimeState.OPENING:
            self._give_up(error)  # There is nothing yet to go on with: the entry fails.
        if self._busy or not room.open:
            return
        self._down()
        if self.attempts < 1:
            self._give_up(error)
            return
        self._busy = True
        self._short_lived = self._short_lived + 1 if room.now() - self._up_at < STEADY_AFTER else 0
        room.start(self._reconnect(error, planned=False), "reconnecting")

    def replace(self, error: Exception) -> None:
        """The connection lives, but is not what it should be: another one takes its place, if there may be another."""
        if self.attempts < 1:
            self._room.fail(error)
        else:
            self.lost(error)

    async def roll_over(self) -> None:
        """Replace the connection now and then, before the provider ends it."""
        while self._roll_over_after is not None:
            await asyncio.sleep(self._roll_over_after)
            await self._quiet()
            if not self._busy and self._room.open:
                self._busy = True
                self._down()
                await self._reconnect(None, planned=True)

    def _down(self) -> None:
        self._room.link_is(up=False)
        self._settle()

    async def _reconnect(self, error: Exception | None, *, planned: bool) -> None:
        room, since, attempt = self._room, self._room.now(), 0
        try:
            while True:
                attempt += 1
                delay = 0.0 if planned and attempt == 1 else self._delay(attempt)
                room.emit(RealtimeReconnecting(attempt, delay, error, room.info, planned=planned))
                await asyncio.sleep(delay)
                try:
                    known = await self._again()
                    break
                except Exception as failed:  # noqa: BLE001 - tried again, or given up with it
                    log.warning("reconnecting failed: %s", failed)
                    error = failed
                if attempt >= self.attempts or _is_final(error):
                    self._give_up(error)
                    return
        finally:
            self._busy = False
        room.link_is(up=True)
        self._up_at = room.now()
        gap = (room.now() - since) * 1000
        room.emit(RealtimeReconnected(attempt, gap, room.info, planned=planned))
        room.measure("reconnect_gap", gap)
        room.restoring = True
        try:
            await self._restored(known)
        except Exception as failed:  # noqa: BLE001 - if this connection is gone as well, its own loss is told
            room.fail(failed)
        finally:
            room.restoring = False

    async def _again(self) -> list[RealtimeItem]:
        """Another connection that knows the history; gives the items it was told."""
        room = self._room
        with suppress(Exception):
            await room.model.close()
        self._gone_again = False
        await self._connect()
        try:
            known = room.ledger.items()
            await tell_history(room, known)
            if self._gone_again:
                raise ConnectionLost("the new connection was lost before it knew the history")
        except Exception:
            with suppress(Exception):
                await room.model.close()
            raise
        return known

    def _delay(self, attempt: int) -> float:
        doublings = min(attempt - 1 + self._short_lived, 32)
        longest: float = min(self._first * 2**doublings, self._longest)
        return longest * random.uniform(0.5, 1.0)

    async def _quiet(self) -> None:
        """Until no response is active and the user is silent, but not for ever."""
        room = self._room
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_WITHIN):
                while room.responses.active is not None or room.user_is_speaking:  # noqa: ASYNC110 - many ends
                    await asyncio.sleep(0.1)


def _is_final(error: Exception) -> bool:
    """Whether trying again helps nobody: the program has no key, or the server does not let the one it has in."""
    return isinstance(error, UserError) or (isinstance(error, ConnectFailed) and error.status in (401, 403))


def lost_error(error: Exception | None, code: int | None) -> Exception | None:
    """Why a connection ended, as an error, if it was not a proper end."""
    if error is not None or code in (None, 1000):
        return error
    return ConnectionLost(f"the connection was closed with code {code}", close_code=code)
