import asyncio

from agents import Agent, Runner, Usage, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather."""
    return f"sunny in {city}"


async def main() -> None:
    agent = Agent(name="Usage demo", instructions="Be concise.", tools=[weather])
    result = await Runner.run(agent, 'call weather {"city": "Tokyo"}')
    usage = result.context_wrapper.usage
    print(usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
    for entry in usage.request_usage_entries:
        print(entry.input_tokens, entry.output_tokens, entry.total_tokens)
    total = Usage()
    for response in result.raw_responses:
        total.add(response.usage)
    print(total.requests, total.total_tokens, total.input_tokens_details.cached_tokens)


asyncio.run(main())
