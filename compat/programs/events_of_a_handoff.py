import asyncio

from agents import Agent, Runner, function_tool
from agents.stream_events import AgentUpdatedStreamEvent, RawResponsesStreamEvent, RunItemStreamEvent


@function_tool
def joke_count() -> int:
    """How many jokes."""
    return 3


joker = Agent(name="Joker", model="gpt-4.1", tools=[joke_count], handoff_description="Tells jokes")
front = Agent(name="Front", model="gpt-4.1", handoffs=[joker])


async def main() -> None:
    for text in ("call transfer_to_joker {}", "hello"):
        result = Runner.run_streamed(front, text)
        async for event in result.stream_events():
            match event:
                case RawResponsesStreamEvent():
                    print("raw", event.data.type)
                case RunItemStreamEvent():
                    print(event.name, event.item.type, event.item.agent.name)
                case AgentUpdatedStreamEvent():
                    print("agent", event.new_agent.name)
        print(result.final_output, result.current_agent.name, result.current_turn, result.is_complete)
        print(
            result.last_response_id,
            len(result.raw_responses),
            [item["type"] if "type" in item else item["role"] for item in result.to_input_list()],
        )
    agents_in_turn = await Runner.run(joker, "call joke_count {}")
    print(agents_in_turn.final_output, agents_in_turn.last_agent is joker)


asyncio.run(main())
