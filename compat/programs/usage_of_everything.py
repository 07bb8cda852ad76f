"""Usage over handoffs, nested agents, sessions and streams."""

import asyncio

from agents import Agent, RunHooks, Runner, SQLiteSession, function_tool
from agents.extensions.memory import AdvancedSQLiteSession


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Requests(RunHooks):
    async def on_agent_end(self, context, agent, output):
        usage = context.usage
        print("usage", agent.name, usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)

    async def on_llm_end(self, context, agent, response):
        print("response", agent.name, response.usage.input_tokens, response.usage.output_tokens)


nested = Agent(name="Nested", model="gpt-4.1", tools=[add])
last = Agent(name="Last", model="gpt-4.1", tools=[add, nested.as_tool("nested", "Nested.")])
first = Agent(name="First", model="gpt-4.1", handoffs=[last])


async def main() -> None:
    result = await Runner.run(first, "call transfer_to_last {}", hooks=Requests())
    print(result.context_wrapper.usage.requests)
    result = await Runner.run(last, 'call nested {"input": "call add {\\"a\\": 3, \\"b\\": 4}"}', hooks=Requests())
    print(result.context_wrapper.usage.requests, result.context_wrapper.usage.total_tokens)
    session = SQLiteSession("s")
    for text in ("one", 'call add {"a": 1, "b": 1}'):
        result = await Runner.run(last, text, session=session, hooks=Requests())
        print(result.context_wrapper.usage.total_tokens, len(result.context_wrapper.usage.request_usage_entries))
    advanced = AdvancedSQLiteSession(session_id="u", db_path="u.db", create_tables=True)
    for text in ("one", 'call add {"a": 2, "b": 2}', "three"):
        result = await Runner.run(last, text, session=advanced)
        await advanced.store_run_usage(result)
    usage = await advanced.get_session_usage()
    print(usage)
    for turn in [*await advanced.get_turn_usage(), await advanced.get_turn_usage(2)]:
        print({name: count for name, count in turn.items() if isinstance(count, int)})
    print(await advanced.get_tool_usage())
    print([(turn["turn"], turn["content"]) for turn in await advanced.find_turns_by_content("three")])
    branch = await advanced.create_branch_from_content("three", "again")
    await Runner.run(last, "four", session=advanced)
    print(branch, [turn["content"] for turn in await advanced.get_conversation_turns()])
    print(await advanced.get_conversation_by_turns())
    await advanced.delete_branch("again", force=True)
    print([one["branch_id"] for one in await advanced.list_branches()])


asyncio.run(main())
