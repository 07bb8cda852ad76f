"""Conversations that the provider keeps: ids, automatic chaining, sessions, approval and streaming."""

import asyncio

from agents import Agent, OpenAIConversationsSession, Runner, RunState, function_tool


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


agent = Agent(name="A", model="gpt-4.1", tools=[pay, add])


async def main() -> None:
    result = await Runner.run(agent, 'call add {"a": 1, "b": 2}', conversation_id="conv_x" if False else None)
    print(result.final_output, result.last_response_id is not None)
    result = await Runner.run(agent, "and now?", previous_response_id=result.last_response_id)
    print(result.final_output)
    result = await Runner.run(agent, 'call add {"a": 3, "b": 4}', auto_previous_response_id=True)
    print(result.final_output)
    session = OpenAIConversationsSession()
    result = await Runner.run(agent, 'call pay {"amount": 5}', session=session)
    while result.interruptions:
        state = await RunState.from_json(agent, result.to_state().to_json())
        state.approve(state.get_interruptions()[0])
        result = await Runner.run(agent, state, session=session)
    print(result.final_output, len(await session.get_items()))
    streamed = Runner.run_streamed(agent, 'call add {"a": 5, "b": 6}', session=session)
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name)
    for item in await session.get_items():
        print(item.get("type"), item.get("role"), item.get("output"))
    print(len(await session.get_items(limit=2)))


asyncio.run(main())
