import asyncio

from agents import Agent, Runner, Usage, function_tool
from agents.usage import RequestUsage


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    agent = Agent(name="A", tools=[add], model="gpt-4.1")
    result = await Runner.run(agent, 'call add {"a": 1, "b": 2}')
    usage = result.context_wrapper.usage
    print(usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
    for entry in usage.request_usage_entries:
        print(
            isinstance(entry, RequestUsage),
            entry.input_tokens,
            entry.output_tokens,
            entry.total_tokens,
            entry.input_tokens_details.cached_tokens,
            entry.output_tokens_details.reasoning_tokens,
        )
    total = Usage(requests=1, input_tokens=5, output_tokens=1, total_tokens=6)
    total.add(usage)
    print(total.requests, total.total_tokens, len(total.request_usage_entries))
    print(
        [response.usage.total_tokens for response in result.raw_responses],
        [response.response_id for response in result.raw_responses],
    )
    print(result.last_response_id, result.last_agent.name, result.input, len(result.to_input_list()))


asyncio.run(main())
