"""A realtime call with an output guardrail, a failing tool, a rejected approval and an interruption."""

import asyncio

from agents import GuardrailFunctionOutput, function_tool
from agents.guardrail import OutputGuardrail
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSessionEvent
from agents.realtime.model_events import (
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
)
from agents.realtime.testing import ScriptedRealtimeModel


@function_tool(needs_approval=True)
def erase(name: str) -> str:
    """Erase a file."""
    return f"erased {name}"


@function_tool
async def clock() -> str:
    """The time."""
    raise RuntimeError("no clock")


def no_prices(context, agent, output):
    return GuardrailFunctionOutput(output_info={"said": output}, tripwire_triggered="price" in output)


agent = RealtimeAgent(
    name="Phone",
    instructions="Answer the phone.",
    tools=[erase, clock],
    output_guardrails=[OutputGuardrail(guardrail_function=no_prices, name="prices")],
)


async def main() -> None:
    model = ScriptedRealtimeModel(strict=False)
    session = await RealtimeRunner(
        agent, model=model, config={"guardrails_settings": {"debounce_text_length": 4}, "async_tool_calls": False}
    ).run(context={"user": 1})
    seen: list[RealtimeSessionEvent] = []
    async with session:

        async def read():
            async for event in session:
                seen.append(event)

        reader = asyncio.create_task(read())
        await session.send_message("Hello")
        await session.send_audio(b"\0\0" * 10)
        await model.emit(RealtimeModelTurnStartedEvent())
        await model.emit(RealtimeModelTranscriptDeltaEvent(item_id="i1", delta="the price is", response_id="r1"))
        await asyncio.sleep(0.2)
        await model.emit(RealtimeModelTurnEndedEvent())
        await model.emit(RealtimeModelToolCallEvent(name="clock", call_id="c1", arguments="{}"))
        await asyncio.sleep(0.2)
        await model.emit(RealtimeModelToolCallEvent(name="erase", call_id="c2", arguments='{"name": "a.txt"}'))
        await asyncio.sleep(0.2)
        await session.reject_tool_call("c2")
        await asyncio.sleep(0.2)
        await model.emit(RealtimeModelInputAudioTranscriptionCompletedEvent(item_id="u1", transcript="what time is it"))
        await session.interrupt()
        await asyncio.sleep(0.2)
        reader.cancel()
    for event in seen:
        if event.type not in ("raw_model_event", "history_updated", "history_added"):
            print(event.type, getattr(event, "output", None), getattr(event, "message", None))
    print([type(event).__name__ for event in model.sent_events])


asyncio.run(main())
