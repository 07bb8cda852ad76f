import asyncio

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, realtime_handoff
from agents.realtime.items import AssistantMessageItem, AssistantText
from agents.realtime.model import RealtimeModel
from agents.realtime.model_events import (
    RealtimeModelAudioDoneEvent,
    RealtimeModelAudioEvent,
    RealtimeModelErrorEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
)


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Model(RealtimeModel):
    def __init__(self):
        self.listeners, self.sent = [], []

    async def connect(self, options):
        settings = options["initial_model_settings"]
        print(
            "connect",
            settings.get("instructions"),
            [tool.name for tool in settings.get("tools", [])],
            len(settings.get("handoffs", [])),
        )

    def add_listener(self, listener):
        self.listeners.append(listener)

    def remove_listener(self, listener):
        if listener in self.listeners:
            self.listeners.remove(listener)

    async def send_event(self, event):
        self.sent.append(type(event).__name__)

    async def close(self):
        pass

    async def emit(self, *events):
        for event in events:
            for listener in list(self.listeners):
                await listener.on_event(event)


other = RealtimeAgent(name="Other", instructions="o")
agent = RealtimeAgent(name="A", instructions="a", tools=[add, pay], handoffs=[realtime_handoff(other)])


async def main() -> None:
    model = Model()
    session = await RealtimeRunner(agent, model=model).run()
    async with session:
        seen = []

        async def read():
            async for event in session:
                if not event.type.startswith("history"):
                    seen.append((event.type, getattr(getattr(event, "data", None), "type", "")))

        reader = asyncio.create_task(read())
        await session.send_message("hello")
        await model.emit(
            RealtimeModelTurnStartedEvent(),
            RealtimeModelAudioEvent(data=b"\0\0", response_id="r", item_id="i", content_index=0),
            RealtimeModelTranscriptDeltaEvent(item_id="i", delta="hi", response_id="r"),
            RealtimeModelAudioDoneEvent(item_id="i", content_index=0),
            RealtimeModelItemUpdatedEvent(
                item=AssistantMessageItem(item_id="i", role="assistant", content=[AssistantText(text="hi")])
            ),
            RealtimeModelTurnEndedEvent(),
        )
        await model.emit(RealtimeModelToolCallEvent(name="add", call_id="c1", arguments='{"a": 1, "b": 2}'))
        await asyncio.sleep(0.2)
        await model.emit(RealtimeModelToolCallEvent(name="pay", call_id="c2", arguments='{"amount": 3}'))
        await asyncio.sleep(0.2)
        await session.approve_tool_call("c2")
        await asyncio.sleep(0.2)
        await model.emit(RealtimeModelToolCallEvent(name="transfer_to_other", call_id="c3", arguments="{}"))
        await asyncio.sleep(0.2)
        await model.emit(RealtimeModelErrorEvent(error={"message": "bad"}))
        await asyncio.sleep(0.2)
        reader.cancel()
        print(*seen, sep="\n")
    print(model.sent)


asyncio.run(main())
