"""A call centre with voice agents: a front desk hands calls off, a supervisor approves credits, and calls are stored.

    pip install '.[examples]'
    python examples/call_centre/call_centre.py --wav call.wav          then listen to call.wav
    python examples/call_centre/call_centre.py --model gpt-4.1-mini    another text model (`local` is the embedded one)
    python examples/call_centre/call_centre.py --openai                a real voice, with OPENAI_API_KEY

It runs one call. The caller writes, the agents speak. Without an option they follow fixed rules, offline. To talk to
them yourself, start the page beside it, ``call_page.py``. Afterwards a text agent continues the same session:

    standfast chat examples/call_centre/call_centre.py --session caller-7 --store sqlite:///calls.db

Points of interest:

- ``handoffs``: the front desk hands the call off to billing or technical, which can hand it off to each other.
- ``needs_approval``: a credit waits for the supervisor while the call continues.
- ``output_guardrails`` with ``hold_back_audio``: a card number is never played.
- ``session=``: the conversation is stored as text, and later calls and text runs continue from it.
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
from standfast.realtime.local import EspeakTTS, TextToSpeech, TextToSpeechFailed, ToneTTS

CALLER = [
    "Hello, my last bill seems too high.",
    "Which card do you charge? Read me its number, please.",
    "You charged me twice for the router. I want 20 euros back.",
    "Thank you. And the router blinks red.",
]
WRITTEN_QUESTION = "How much did I get back on the telephone?"
CONFIG: Any = {
    "guardrails_settings": {"debounce_text_length": 20, "hold_back_audio": True, "message": "Say no card numbers."},
    "tool_execution": {"approval_timeout": 60},
}


@function_tool
def find_bill() -> str:
    """Return the caller's last bill."""
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
async def no_card_numbers(context: Any, agent: Any, text: str) -> GuardrailFunctionOutput:
    match = re.search(r"(\d[ -]?){12,}", text)
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=match is not None)


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


def create_tts() -> TextToSpeech:
    """Speak with espeak-ng, which comes with the extra ``examples``, or with tones without it."""
    try:
        return EspeakTTS()
    except TextToSpeechFailed:
        return ToneTTS()


def choose_step(request: ModelRequest) -> str | dict[str, object]:
    """A text model without an API key: choose the next step from the last item and the available tools."""
    tools = {tool.name for tool in request.tools}
    conversation = ItemHelpers.input_to_new_input_list(request.input)
    last = conversation[-1]
    question = next(str(item["content"]) for item in reversed(conversation) if item.get("role") == "user")
    is_handoff = last.get("type") == "function_call_output" and "assistant" in str(last["output"])
    if last.get("type") == "function_call_output" and not is_handoff:
        return str(last["output"])
    if "card numbers" in question:
        return "I may not say card numbers aloud. It is on your bill."
    if "without a transcript" in question:
        return "I hear that you speak, but these fixed rules understand only what you write."
    target = "technical" if "blinks" in question else "billing"
    if f"transfer_to_{target}" in tools:
        return FunctionModel.call(f"transfer_to_{target}")
    if "blinks" in question:
        return FunctionModel.call("restart_router")
    if "back" in question:
        return FunctionModel.call("credit", amount=20.0)
    return "It is 4111 1111 1111 1111." if "number" in question else FunctionModel.call("find_bill")


async def run_call(history: Session, *, model: Any, lines: list[str], approve: Any) -> bytes:
    """Run a call and return the audio of the agents, 16-bit mono PCM at 24 kHz."""
    audio = bytearray()
    session = await RealtimeRunner(front, model=model, config=CONFIG).run(session=history)
    async with session:
        for line in lines:
            print(f"caller: {line}")
            await session.send_message(line)
            await wait_for_answer(session, audio, approve)
    return bytes(audio)


async def wait_for_answer(session: RealtimeSession, audio: bytearray, approve: Any) -> None:
    """Handle events until a response has ended and its audio was released by the guardrails."""
    ended = complete = False
    async for event in session.events():
        match event.type:
            case "agent_start":
                ended = complete = False
            case "audio":
                audio += event.audio.data
            case "handoff":
                print(f"  [{event.from_agent.name} hands off to {event.to_agent.name}]")
            case "tool_end":
                print(f"  [{event.agent.name} {event.tool.name}: {event.output}]")
            case "guardrail_tripped":
                print("  [guardrail: the answer was stopped before it was played]")
            case "tool_approval_required":
                await decide(session, event, approve)
            case "response_failed":
                raise RuntimeError(f"no answer: {event.error or event.reason}")
            case "agent_end":
                ended = True
            case "audio_end":
                complete = True
        if ended and complete:
            print(f"{session.current_agent.name}: {session.history[-1].content[0].transcript}")
            return


async def decide(session: RealtimeSession, event: Any, approve: Any) -> None:
    approved = approve(event.tool.name, event.arguments)
    print(f"  [supervisor: {event.tool.name}{event.arguments} is {'approved' if approved else 'rejected'}]")
    if approved:
        await session.approve_tool_call(event.call_id)
    else:
        await session.reject_tool_call(event.call_id, rejection_message="The supervisor rejected it.")


# --- afterwards, as text -----------------------------------------------------------------------------------------


def recall_credits(request: ModelRequest) -> str:
    """A text model without an API key that reads the history of the calls."""
    credits = [str(item["output"]) for item in request.input if "credited" in str(item.get("output"))]
    return f"As we said on the telephone: {' '.join(credits) or 'nothing was credited.'}"


clerk = Agent("clerk", instructions="You answer questions about earlier calls.", model=FunctionModel(recall_credits))


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--store", default="sqlite:///calls.db")
    options.add_argument("--wav", type=Path, help="save the audio of the agents")
    options.add_argument("--pace", type=float, help="1 is the speed of speech; without it, as fast as possible")
    options.add_argument("--model", help="a text model for all agents")
    options.add_argument("--openai", action="store_true", help="OpenAI's realtime model in place of the offline one")
    arguments = options.parse_args()
    text_model: Any = None
    if arguments.model:
        text_model = LocalModel() if arguments.model == "local" else MultiProvider().get_model(arguments.model)
    model = None
    if not arguments.openai:
        model = LocalRealtimeModel(text_model or FunctionModel(choose_step), tts=create_tts(), pace=arguments.pace)
    print(f"Model: {'OpenAI realtime' if arguments.openai else arguments.model or 'fixed rules, no key needed'}\n")
    async with open_store(arguments.store) as store:
        history = store.session("caller-7")
        audio = await run_call(history, model=model, lines=CALLER, approve=lambda tool, arguments: True)
        print(f"  [the call has ended: {len(audio) / 48000:.1f} seconds of speech, {await history.head()}]\n")
        if arguments.wav:
            with wave.open(str(arguments.wav), "wb") as file:
                file.setparams((1, 2, 24000, 0, "NONE", "not compressed"))
                file.writeframes(audio)
        print(f"caller, in writing: {WRITTEN_QUESTION}")
        agent = clerk.clone(model=text_model) if text_model else clerk
        result = await Runner.run(agent, WRITTEN_QUESTION, session=history)
        print(f"clerk: {result.final_output}")


if __name__ == "__main__":
    asyncio.run(main())
