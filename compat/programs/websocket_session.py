import asyncio

from agents import Agent, ModelSettings, function_tool, responses_websocket_session
from openai.types.responses import ResponseTextDeltaEvent


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    agent = Agent(
        name="Assistant", instructions="Be concise.", tools=[weather], model_settings=ModelSettings(temperature=0.5)
    )
    async with responses_websocket_session() as ws:
        first = ws.run_streamed(agent, 'call weather {"city": "Rome"}')
        async for event in first.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                print(event.data.delta, end="|")
            elif event.type == "run_item_stream_event":
                print(event.name)
        second = await ws.run(agent, "And tomorrow?", previous_response_id=first.last_response_id)
        print(second.final_output, second.context_wrapper.usage.total_tokens, second.last_response_id)
        try:
            await ws.run(agent, "x", run_config=None)
        except ValueError:
            print("refused")


asyncio.run(main())
