import asyncio

from agents import (
    Agent,
    OpenAIResponsesCompactionArgs,
    OpenAIResponsesCompactionAwareSession,
    OpenAIResponsesCompactionSession,
    Runner,
    SQLiteSession,
    is_openai_responses_compaction_aware_session,
)


async def main() -> None:
    inner = SQLiteSession("s")
    session = OpenAIResponsesCompactionSession("s", inner, should_trigger_compaction=lambda context: False)
    print(
        is_openai_responses_compaction_aware_session(session),
        is_openai_responses_compaction_aware_session(inner),
        isinstance(session, OpenAIResponsesCompactionAwareSession),
    )
    agent = Agent(name="A", model="gpt-4.1")
    await Runner.run(agent, "one", session=session)
    result = await Runner.run(agent, "two", session=session)
    print(result.final_output, await session.get_items() == await inner.get_items())
    print(await session.get_items(limit=1), session.session_id)
    print((await session.pop_item())["role"])
    await session.clear_session()
    print(await inner.get_items())
    for bad in ("gpt-4.1", "not-openai"):
        try:
            OpenAIResponsesCompactionSession("s", inner, model=bad)
            print("accepted", bad)
        except ValueError:
            print("refused")
    args: OpenAIResponsesCompactionArgs = {"force": False}
    await session.run_compaction(args)


asyncio.run(main())
