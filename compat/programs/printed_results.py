import asyncio

from agents import Agent, MaxTurnsExceeded, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel


class Report(BaseModel):
    title: str
    pages: int = 1


@function_tool
def count(n: int) -> int:
    """Count."""
    return n + 1


async def main() -> None:
    for answer, kind in (("one\ntwo", None), ('{"title": "é"}', Report), ('{"response": [1, 2]}', list[int])):
        agent = Agent(name="A", model=ScriptedModel([[assistant_message(answer)]] * 2), output_type=kind)
        print(await Runner.run(agent, "hi"))
        streamed = Runner.run_streamed(agent, "hi")
        print(streamed)
        async for _ in streamed.stream_events():
            pass
        print(streamed)
    model = ScriptedModel([[function_call("count", {"n": 1}, call_id="1")]] * 2)
    try:
        await Runner.run(Agent(name="A", model=model, tools=[count]), "hi", max_turns=1)
    except MaxTurnsExceeded as error:
        print(error.run_data)
    for behavior in ("stop_on_first_tool", {"stop_at_tool_names": ["count"]}):
        model = ScriptedModel([[function_call("count", {"n": 1}, call_id="1")]])
        result = await Runner.run(Agent(name="A", model=model, tools=[count], tool_use_behavior=behavior), "hi")
        print(repr(result.final_output))


asyncio.run(main())
