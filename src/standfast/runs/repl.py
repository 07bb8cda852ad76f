"""A minimal chat loop in the terminal."""

import asyncio
from typing import Any

from standfast.agents.agent import Agent
from standfast.base.text import format_arguments, make_visible
from standfast.runs.config import DEFAULT_MAX_TURNS
from standfast.runs.result import RunResultBase
from standfast.runs.run_state import RunState
from standfast.runs.runner import Runner

_EXIT_COMMANDS = frozenset(["exit", "quit"])


async def run_demo_loop(
    agent: Agent[Any], *, stream: bool = True, context: Any = None, max_turns: int | None = DEFAULT_MAX_TURNS
) -> None:
    """Answer each line of standard input with the agent until ``exit``, ``quit`` or the end of input.

    The conversation continues with the agent that answered last. Approvals are requested in the terminal.
    """
    history: list[Any] = []
    while (text := await _prompt(" > ")) is not None and text.strip().lower() not in _EXIT_COMMANDS:
        if not text.strip():
            continue
        result = await _run_turn(agent, [*history, {"role": "user", "content": text}], stream, context, max_turns)
        while result.interruptions:
            state = result.to_state()
            for item in result.interruptions:
                call = f"{make_visible(item.qualified_name or '')} {format_arguments(item.arguments or '')}"
                answer = await _prompt(f"[{call}] approve this call? (y/n) ")
                decide = state.approve if (answer or "").strip().lower() in ("y", "yes") else state.reject
                decide(item)
            result = await _run_turn(agent, state, stream, context, max_turns)
        history, agent = result.to_input_list(), result.last_agent


async def _run_turn(
    agent: Agent[Any], turn_input: list[Any] | RunState[Any, Any], stream: bool, context: Any, max_turns: int | None
) -> RunResultBase:
    if not stream:
        result = await Runner.run(agent, turn_input, context=context, max_turns=max_turns)
        if not result.interruptions:
            print(make_visible(str(result.final_output), multiline=True))
        return result
    streamed = Runner.run_streamed(agent, turn_input, context=context, max_turns=max_turns)
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(make_visible(event.data.delta, multiline=True), end="", flush=True)
        elif event.type == "run_item_stream_event" and event.item.type == "tool_call_item":
            print("\n[tool called]", flush=True)
        elif event.type == "run_item_stream_event" and event.item.type == "tool_call_output_item":
            print(f"\n[tool output: {make_visible(str(event.item.output), multiline=True)}]", flush=True)
        elif event.type == "agent_updated_stream_event":
            print(f"\n[Agent updated: {make_visible(event.new_agent.name)}]", flush=True)
    print()
    return streamed


async def _prompt(question: str) -> str | None:
    """Return the next line, or ``None`` at the end of input, without blocking the event loop."""
    try:
        return await asyncio.to_thread(input, question)
    except EOFError:
        print()
        return None
