import asyncio
import json

from agents import Agent, RunHooks, Runner, RunState, SQLiteSession, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"The weather in {city} is sunny."


async def needs_review(context, arguments, call_id) -> bool:
    return "CEO" in arguments["subject"]


@function_tool(needs_approval=needs_review)
async def send_email(subject: str, body: str) -> str:
    """Send an email."""
    return f"Email sent: {subject}"


@function_tool(needs_approval=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


class Log(RunHooks):
    async def on_tool_start(self, context, agent, tool):
        print("tool starts:", tool.name, context.tool_call_id)

    async def on_tool_end(self, context, agent, tool, result):
        print("tool ends:", tool.name, result)

    async def on_agent_end(self, context, agent, output):
        print("agent ends:", output, context.usage.requests)


model = ScriptedModel(
    [
        [
            function_call("get_weather", {"city": "Rome"}, call_id="c1"),
            function_call("send_email", {"subject": "to the CEO", "body": "b"}, call_id="c2"),
            function_call("send_email", {"subject": "to Ann", "body": "b"}, call_id="c3"),
            function_call("delete", {"path": "/tmp/x"}, call_id="c4"),
        ],
        [assistant_message("Half of it is done.")],
        [function_call("delete", {"path": "/tmp/y"}, call_id="c5")],
        [assistant_message("Again.")],
    ]
)
agent = Agent(name="Office", instructions="Help.", tools=[get_weather, send_email, delete], model=model)


async def main() -> None:
    session = SQLiteSession("office")
    result = await Runner.run(agent, "Do it.", session=session, hooks=Log())
    while result.interruptions:
        stored = json.dumps(result.to_state().to_json())
        state = await RunState.from_json(agent, json.loads(stored))
        for item in state.get_interruptions():
            print("asks:", item.agent.name, item.name, item.arguments, item.call_id)
            if item.name == "send_email":
                state.approve(item)
            else:
                state.reject(item, rejection_message="Not this file.")
        result = await Runner.run(agent, state, session=session, hooks=Log())
    print(result.final_output, len(await session.get_items()))
    for item in await session.get_items():
        print(item.get("type"), item.get("role"), item.get("call_id"), item.get("output"))
    streamed = Runner.run_streamed(agent, "More.", session=session)
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name, event.item.type)
    state = streamed.to_state()
    state.approve(state.get_interruptions()[0], always_approve=True)
    streamed = Runner.run_streamed(agent, state, session=session)
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name, event.item.type)
    print(streamed.final_output, len(await session.get_items()), [len(call.input) for call in model.calls])


asyncio.run(main())
