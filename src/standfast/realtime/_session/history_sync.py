"""Letting a connection know what was said before it, or what has become of that since."""

from typing import Any

from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.item_conversion import ensure_output_id, get_text, to_wire
from standfast.realtime.items import RealtimeItem
from standfast.realtime.model_inputs import RealtimeModelSendRawMessage


async def send_history(ctx: SessionContext, items: list[RealtimeItem]) -> None:
    """Let a new connection know what was said, calls and their outputs included."""
    items = [ensure_output_id(item) for item in items]
    told = {item.item_id: to_wire(item) for item in items}
    ctx.history.begin_replay(items, unknown_to_server={name for name, wires in told.items() if not wires})
    for wires in told.values():
        for wire in wires:
            await send_raw_message(ctx, "conversation.item.create", item=wire)


async def resend_item(ctx: SessionContext, item_id: str) -> None:
    """Let the connection know an item as it is now, in the place of what it was told of it."""
    if item_id in ctx.resending:
        return  # What is about to be told has this change, too.
    previous = "root"
    for item in ctx.history.get_items():
        if item.item_id == item_id:
            break
        if to_wire(item):
            previous = ctx.history.get_last_wire_id(item)
    ctx.history.expect_resend(item_id)
    ctx.resending.add(item_id)
    try:
        await send_raw_message(ctx, "conversation.item.delete", item_id=item_id)
    finally:
        ctx.resending.discard(item_id)
    if item_id not in ctx.history:
        return  # It was deleted meanwhile.
    for wire in to_wire(ctx.history.get_item(item_id)):
        await send_raw_message(ctx, "conversation.item.create", item=wire, previous_item_id=previous)


async def resend_changed_items(ctx: SessionContext, sent_items: list[RealtimeItem]) -> None:
    """Let the connection know what was cut since it was told of these items."""
    for item in sent_items:
        if item.item_id in ctx.history and get_text(ctx.history.get_item(item.item_id)) != get_text(item):
            await resend_item(ctx, item.item_id)


async def send_raw_message(ctx: SessionContext, message_type: str, **fields: Any) -> None:
    message: Any = {"type": message_type, "other_data": fields} if fields else {"type": message_type}
    await ctx.model.send_event(RealtimeModelSendRawMessage(message))
