import asyncio

from agents import Agent, RawResponsesStreamEvent, Runner, TResponseInputItem
from openai.types.responses import ResponseContentPartDoneEvent, ResponseTextDeltaEvent

french = Agent(name="french_agent", instructions="You only speak French")
english = Agent(name="english_agent", instructions="You only speak English")
triage = Agent(name="triage_agent", instructions="Hand off by language.", handoffs=[french, english])


async def main() -> None:
    agent, inputs = triage, list[TResponseInputItem]()
    for text in ("call transfer_to_french_agent {}", "Merci"):
        inputs.append({"content": text, "role": "user"})
        result = Runner.run_streamed(agent, input=inputs)
        async for event in result.stream_events():
            if not isinstance(event, RawResponsesStreamEvent):
                continue
            data = event.data
            if isinstance(data, ResponseTextDeltaEvent):
                print(data.delta, end="", flush=True)
            elif isinstance(data, ResponseContentPartDoneEvent):
                print()
        inputs = result.to_input_list()
        agent = result.current_agent
        print(agent.name, len(inputs))


asyncio.run(main())
