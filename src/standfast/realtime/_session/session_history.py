"""The history of a session as the program and the server see it: its events, its truncation and its replay."""

import asyncio

from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.history import ConversationHistory
from standfast.realtime._session.item_conversion import ensure_output_id, get_text, to_wire
from standfast.realtime._session.playback_clock import PlaybackClock
from standfast.realtime.events import RealtimeHistoryAdded, RealtimeHistoryUpdated
from standfast.realtime.items import RealtimeItem


class SessionHistory:
    """Owns the :class:`ConversationHistory`, emits its events and keeps the server in step with it."""

    def __init__(self, ctx: SessionContext, connection: SessionConnection, clock: PlaybackClock) -> None:
        self._ctx, self._connection = ctx, connection
        self.conversation = ConversationHistory(clock)
        self.write_requested = asyncio.Event()
        """Set when an item may have become final, for the history writer."""
        self._resending: set[str] = set()
        """Items that the server was asked to delete and has not been sent again yet."""

    def emit_added(self, item_id: str) -> None:
        items = self.conversation
        self._ctx.emit(RealtimeHistoryAdded(items.get_item(item_id), self._ctx.info, revision=items.revision))

    def emit_updated(self) -> None:
        items = self.conversation
        self._ctx.emit(RealtimeHistoryUpdated(items.get_items(), self._ctx.info, revision=items.revision))

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> None:
        """Record that no more than this was heard of a part. Nothing happens if less is known to be heard."""
        unheard_ms = self.conversation.truncate(item_id, content_index, heard_ms)
        if unheard_ms is not None:
            self._ctx.record_metric("truncated", unheard_ms, item_id)
            self.emit_updated()
            self.write_requested.set()

    async def replay(self, items: list[RealtimeItem]) -> None:
        """Send these items to a new connection, including calls and their outputs."""
        items = [ensure_output_id(item) for item in items]
        messages = {item.item_id: to_wire(item) for item in items}
        unknown = {item_id for item_id, wires in messages.items() if not wires}
        self.conversation.begin_replay(items, unknown_to_server=unknown)
        for wires in messages.values():
            for wire in wires:
                await self._connection.send_raw("conversation.item.create", item=wire)

    async def resend_item(self, item_id: str) -> None:
        """Replace an item at the server by its current state."""
        if item_id in self._resending:
            return  # The resend under way reads the current state after its next await.
        previous_id = "root"
        for item in self.conversation.get_items():
            if item.item_id == item_id:
                break
            if to_wire(item):
                previous_id = self.conversation.get_last_wire_id(item)
        self.conversation.expect_resend(item_id)
        self._resending.add(item_id)
        try:
            await self._connection.send_raw("conversation.item.delete", item_id=item_id)
        finally:
            self._resending.discard(item_id)
        if item_id not in self.conversation:
            return  # It was deleted meanwhile.
        for wire in to_wire(self.conversation.get_item(item_id)):
            await self._connection.send_raw("conversation.item.create", item=wire, previous_item_id=previous_id)

    async def resend_changed_items(self, sent_items: list[RealtimeItem]) -> None:
        """Resend those of the items that were truncated since they were sent."""
        for item in sent_items:
            if item.item_id in self.conversation and get_text(self.conversation.get_item(item.item_id)) != get_text(
                item
            ):
                await self.resend_item(item.item_id)
