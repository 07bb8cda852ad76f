"""A call centre by voice: a front desk hands calls over, a supervisor approves credits, and the call is remembered.

    pip install '.[examples]'
    python examples/call_centre/call_centre.py --wav call.wav          then listen to call.wav
    python examples/call_centre/call_centre.py --model gpt-4.1-mini    another brain (`local` is the embedded one)
    python examples/call_centre/call_centre.py --openai                a real voice, with OPENAI_API_KEY

It plays one call. The caller writes, the agents speak: by espeak-ng where that is installed, else by a tone. Without
an option they follow fixed rules, offline. Afterwards a clerk goes on with the same conversation in writing:

    standfast chat examples/call_centre/call_centre.py --session caller-7 --store sqlite:///calls.db

What to look at:

- ``handoffs``: the front desk passes the call to billing or to the technicians, who pass it to each other.
- ``needs_approval``: a credit waits for the supervisor while the call goes on.
- ``output_guardrails`` with ``hold_back_audio``: nobody ever hears a card number.
- ``session=``: what was said is written to the store as text, and both a later call and a text run go on from it.
"""

import argparse
import asyncio
import re
import wave
from pathlib import Path
from typing import Any

from standfast import (
    Agent,
    FunctionModel,
    GuardrailFunctionOutput,
    ItemHelpers,
    LocalModel,
    MultiProvider,
    Runner,
    Session,
    function_tool,
    open_store,
    output_guardrail,
)
from standfast.models import ModelRequest
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner, RealtimeSession

CALLER = [
    "Hello, my last bill seems too high.",
    "Which card do you charge? Read me its number, please.",
    "You charged me twice for the router. I want 20 euros back.",
    "Thank you. And the router blinks red.",
]
LATER = "How much did I get back on the telephone?"


@function_tool
def find_bill() -> str:
    """The caller's last bill."""
    return "The last bill was 61.20 euros, with the router on it twice."


@function_tool(needs_approval=True)
async def credit(amount: float) -> str:
    """Give the caller money back.

    Args:
        amount: How many euros.
    """
    return f"{amount:.2f} euros were credited."


@function_tool
def restart_router() -> str:
    """Restart the caller's router from here."""
    return "The router is up again, and its light is green."


@output_guardrail
async def no_card_numbers(context: Any, agent: Any, said: str) -> GuardrailFunctionOutput:
    found = re.search(r"(\d[ -]?){12,}", said)
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=found is not None)


billing = RealtimeAgent(
    name="billing",
    instructions="You do the billing. Look at the bill first. Credit what was charged wrongly. Be brief.",
    tools=[find_bill, credit],
    output_guardrails=[no_card_numbers],
)
technical = RealtimeAgent(
    name="technical",
    instructions="You help with routers. Restarting one helps often. Be brief.",
    tools=[restart_router],
)
front = RealtimeAgent(
    name="front",
    instructions="You answer the telephone and hand over to billing or technical at once.",
    handoffs=[billing, technical],
)
billing.handoffs = [technical]
technical.handoffs = [billing]


def rules(request: ModelRequest) -> str | dict[str, object]:
    """A brain without a key: what to do next follows from what was said last, and from who is asked."""
    tools = {tool.name for tool in request.tools}
    conversation = ItemHelpers.input_to_new_input_list(request.input)
    last = conversation[-1]
    asked = next(str(item["content"]) for item in reversed(conversation) if item.get("role") == "user")
    handed_over = last.get("type") == "function_call_output" and "assistant" in str(last["output"])
    if last.get("type") == "function_call_output" and not handed_over:
        return str(last["output"])
    if "card numbers" in asked:
        return "I may not say card numbers aloud. It is on your bill."
    wanted = "technical" if "blinks" in asked else "billing"
    if f"transfer_to_{wanted}" in tools:
        return FunctionModel.call(f"transfer_to_{wanted}")
    if "blinks" in asked:
        return FunctionModel.call("restart_router")
    if "back" in asked:
        return FunctionModel.call("credit", amount=20.0)
    return "It is 4111 1111 1111 1111." if "number" in asked else FunctionModel.call("find_bill")


async def call(history: Session, *, model: Any, lines: list[str], approve: Any) -> bytes:
    """Play a call; gives what was heard of the agents, 16 bit at 24 kHz."""
    heard = bytearray()
    config: Any = {
        "guardrails_settings": {"debounce_text_length": 20, "hold_back_audio": True, "message": "Say no card numbers."},
        "tool_execution": {"approval_timeout": 60},
    }
    session = await RealtimeRunner(front, model=model, config=config).run(session=history)
    async with session:
        for line in lines:
            print(f"caller: {line}")
            await session.send_message(line)
            await answered(session, heard, approve)
    return bytes(heard)


async def answered(session: RealtimeSession, heard: bytearray, approve: Any) -> None:
    """Listen until the caller has an answer: a response is over, and its words may be heard."""
    over = complete = False
    async for event in session:
        match event.type:
            case "agent_start":
                over = complete = False
            case "audio":
                heard += event.audio.data
            case "handoff":
                print(f"  [{event.from_agent.name} hands over to {event.to_agent.name}]")
            case "tool_end":
                print(f"  [{event.agent.name} {event.tool.name}: {event.output}]")
            case "guardrail_tripped":
                print("  [guardrail: this was stopped before anybody heard it]")
            case "tool_approval_required":
                await decide(session, event, approve)
            case "response_failed":
                raise RuntimeError(f"no answer: {event.error or event.reason}")
            case "agent_end":
                over = True
            case "audio_end":
                complete = True
        if over and complete:
            print(f"{session.current_agent.name}: {session.history[-1].content[0].transcript}")
            return


async def decide(session: RealtimeSession, event: Any, approve: Any) -> None:
    agreed = approve(event.tool.name, event.arguments)
    print(f"  [supervisor: {event.tool.name}{event.arguments} is {'approved' if agreed else 'rejected'}]")
    if agreed:
        await session.approve_tool_call(event.call_id)
    else:
        await session.reject_tool_call(event.call_id, rejection_message="The supervisor said no.")


# --- afterwards, in writing -----------------------------------------------------------------------------------------


def memory(request: ModelRequest) -> str:
    """A text model without a key, who knows what was said on the telephone."""
    credits = [str(item["output"]) for item in request.input if "credited" in str(item.get("output"))]
    return f"As we said on the telephone: {' '.join(credits) or 'nothing was credited.'}"


clerk = Agent("clerk", instructions="You answer questions about earlier calls.", model=FunctionModel(memory))


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--store", default="sqlite:///calls.db")
    options.add_argument("--wav", type=Path, help="save what was heard")
    options.add_argument("--pace", type=float, help="1 is the speed of speech; without it, as fast as possible")
    options.add_argument("--model", help="a text model as the brain of all agents")
    options.add_argument("--openai", action="store_true", help="OpenAI's realtime model in place of the offline one")
    given = options.parse_args()
    brain = LocalModel() if given.model == "local" else MultiProvider().get_model(given.model) if given.model else None
    model = None if given.openai else LocalRealtimeModel(brain or FunctionModel(rules), pace=given.pace)
    print(f"Model: {'OpenAI realtime' if given.openai else given.model or 'fixed rules, no key needed'}\n")
    async with open_store(given.store) as store:
        history = store.session("caller-7")
        heard = await call(history, model=model, lines=CALLER, approve=lambda tool, arguments: True)
        print(f"  [the call is over: {len(heard) / 48000:.1f} seconds of speech, {await history.head()}]\n")
        if given.wav:
            with wave.open(str(given.wav), "wb") as file:
                file.setparams((1, 2, 24000, 0, "NONE", "not compressed"))
                file.writeframes(heard)
        print(f"caller, in writing: {LATER}")
        writing = clerk.clone(model=brain) if brain else clerk
        result = await Runner.run(writing, LATER, session=history)
        print(f"clerk: {result.final_output}")


if __name__ == "__main__":
    asyncio.run(main())
