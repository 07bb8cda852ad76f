import asyncio

from agents import Agent, OpenAIConversationsSession, RunConfig, Runner, function_tool
from agents.run import CallModelData, ModelInputData


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def last_only(data: CallModelData) -> ModelInputData:
    print(data.agent.name, len(data.model_data.input), data.model_data.instructions, data.context)
    return ModelInputData(input=data.model_data.input[-1:], instructions="changed")


async def main() -> None:
    agent = Agent(name="A", tools=[add], model="gpt-4.1", instructions="i")
    first = await Runner.run(agent, "one")
    second = await Runner.run(agent, 'call add {"a": 1, "b": 2}', previous_response_id=first.last_response_id)
    print(second.final_output)
    third = await Runner.run(agent, 'call add {"a": 1, "b": 2}', auto_previous_response_id=True)
    print(third.final_output, third.last_response_id)
    session = OpenAIConversationsSession()
    await Runner.run(agent, "hello", session=session)
    fourth = Runner.run_streamed(agent, "again", session=session)
    async for _ in fourth.stream_events():
        pass
    print(fourth.final_output, session.session_id, len(await session.get_items()))
    fifth = await Runner.run(agent, 'call add {"a": 1, "b": 2}', conversation_id="conv_1")
    print(fifth.final_output)
    filtered = await Runner.run(
        agent,
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        context="c",
        run_config=RunConfig(call_model_input_filter=last_only),
    )
    print(filtered.final_output, len(filtered.to_input_list()))


asyncio.run(main())
