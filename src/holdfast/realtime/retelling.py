"""Letting a connection know what was said before it, or what has become of that since."""

from typing import Any

from holdfast.realtime.items import RealtimeItem
from holdfast.realtime.model_inputs import RealtimeModelSendRawMessage
from holdfast.realtime.room import Room
from holdfast.realtime.wire_items import named, to_wire, words_of


async def tell_history(room: Room, items: list[RealtimeItem]) -> None:
    """Let a new connection know what was said, calls and their outputs included."""
    items = [named(item) for item in items]
    told = {item.item_id: to_wire(item) for item in items}
    room.ledger.replayed(items, untold={name for name, wires in told.items() if not wires})
    for wires in told.values():
        for wire in wires:
            await send_raw(room, "conversation.item.create", item=wire)


async def retell(room: Room, item_id: str) -> None:
    """Let the connection know an item as it is now, in the place of what it was told of it."""
    if item_id in room.retelling:
        return  # What is about to be told has this change, too.
    previous = "root"
    for item in room.ledger.items():
        if item.item_id == item_id:
            break
        if to_wire(item):
            previous = room.ledger.last_of(item)
    room.ledger.retold(item_id)
    room.retelling.add(item_id)
    try:
        await send_raw(room, "conversation.item.delete", item_id=item_id)
    finally:
        room.retelling.discard(item_id)
    if item_id not in room.ledger:
        return  # It was deleted meanwhile.
    for wire in to_wire(room.ledger.item(item_id)):
        await send_raw(room, "conversation.item.create", item=wire, previous_item_id=previous)


async def retell_changed(room: Room, known: list[RealtimeItem]) -> None:
    """Let the connection know what was cut since it was told of these items."""
    for item in known:
        if item.item_id in room.ledger and words_of(room.ledger.item(item.item_id)) != words_of(item):
            await retell(room, item.item_id)


async def send_raw(room: Room, kind: str, **other: Any) -> None:
    message: Any = {"type": kind, "other_data": other} if other else {"type": kind}
    await room.model.send_event(RealtimeModelSendRawMessage(message))
