import asyncio
from dataclasses import dataclass

from agents import Agent, AgentOutputSchema, ModelBehaviorError, Runner, UserError
from agents.testing import ScriptedModel, assistant_message
from pydantic import BaseModel


class Report(BaseModel):
    title: str
    pages: int


@dataclass
class Note:
    text: str


async def attempt(kind, text) -> None:
    agent = Agent(name="A", output_type=kind, model=ScriptedModel([[assistant_message(text)]]))
    try:
        result = await Runner.run(agent, "x")
        print(repr(result.final_output))
        print(repr(result.final_output_as(kind) if isinstance(kind, type) else None))
    except (ModelBehaviorError, UserError) as error:
        print(type(error).__mro__[-4].__name__ if False else isinstance(error, ModelBehaviorError))


async def main() -> None:
    await attempt(Report, '{"title": "t", "pages": 2}')
    await attempt(Report, '{"title": "t", "pages": "2"}')
    await attempt(Report, "not json")
    await attempt(AgentOutputSchema(Report, strict_json_schema=False), '{"title": "t", "pages": "2"}')
    await attempt(Note, '{"response": {"text": "n"}}')
    await attempt(list[str], '{"response": ["a"]}')
    await attempt(dict[str, int] if False else int, '{"response": 3}')
    for kind in (dict[str, int], Report):
        try:
            print(AgentOutputSchema(kind).json_schema()["type"])
        except UserError:
            print("not strict")
    result = await Runner.run(Agent(name="A", model=ScriptedModel([[assistant_message("plain")]])), "x")
    try:
        result.final_output_as(int, raise_if_incorrect_type=True)
    except TypeError:
        print("type error")


asyncio.run(main())
