import asyncio

from agents import Agent, RunContextWrapper, Runner, RunState, function_tool


async def big(context, arguments, call_id) -> bool:
    print("asked", arguments, call_id)
    return arguments["amount"] > 10


@function_tool(needs_approval=big)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@function_tool(needs_approval=True)
def drop(name: str) -> str:
    """Drop."""
    return f"dropped {name}"


helper = Agent(name="Helper", model="gpt-4.1", tools=[drop])
agent = Agent(name="A", model="gpt-4.1", tools=[pay, drop, helper.as_tool("ask_helper", "Ask.")])


async def main() -> None:
    print((await Runner.run(agent, 'call pay {"amount": 1}')).final_output)
    result = await Runner.run(agent, 'call pay {"amount": 11} and call drop {"name": "x"} and call drop {"name": "y"}')
    state = result.to_state()
    for item in result.interruptions:
        print(item.tool_name, item.arguments, item.agent.name, item.call_id, item.raw_item.type)
    state.approve(result.interruptions[0])
    state.reject(result.interruptions[1], rejection_message="not x")
    result = await Runner.run(agent, state)
    print(len(result.interruptions), result.final_output)
    state = result.to_state()
    state.approve(result.interruptions[0], always_approve=True)
    result = await Runner.run(agent, state)
    print(result.final_output, [item.output for item in result.new_items if item.type == "tool_call_output_item"])
    nested = await Runner.run(agent, 'call ask_helper {"input": "call drop {\\"name\\": \\"z\\"}"}')
    print([(item.tool_name, item.agent.name) for item in nested.interruptions], nested.final_output)
    if nested.interruptions:
        state = await RunState.from_json(agent, nested.to_state().to_json())
        state.reject(state.get_interruptions()[0], always_reject=True)
        print((await Runner.run(agent, state)).final_output)
    wrapper = RunContextWrapper(None)
    print(wrapper.is_tool_approved("drop", "c1"), wrapper.get_approval_status("drop", "c1"))
    streamed = Runner.run_streamed(agent, 'call drop {"name": "q"}')
    async for event in streamed.stream_events():
        print(event.type, getattr(event, "name", "")) if event.type != "raw_response_event" else None
    state = streamed.to_state()
    state.approve(streamed.interruptions[0])
    streamed = Runner.run_streamed(agent, state)
    async for event in streamed.stream_events():
        print(event.type, getattr(event, "name", "")) if event.type != "raw_response_event" else None
    print(streamed.final_output)


asyncio.run(main())
