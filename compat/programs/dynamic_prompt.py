import asyncio

from agents import Agent, GenerateDynamicPromptData, Prompt, RunContextWrapper, Runner, UserError


class Poet:
    def __init__(self, style):
        self.style = style


async def choose(data: GenerateDynamicPromptData) -> Prompt:
    print(data.agent.name, data.context.context.style)
    return {"id": "pmpt_1", "version": "2", "variables": {"style": data.context.context.style}}


def wrong(data):
    return "no"


async def main() -> None:
    result = await Runner.run(Agent(name="P", prompt=choose), "hi", context=Poet("haiku"))
    print(result.final_output)
    result = await Runner.run(Agent(name="Q", prompt={"id": "pmpt_2"}, model="gpt-4.1", instructions="Be brief."), "hi")
    print(result.final_output)
    try:
        await Runner.run(Agent(name="R", prompt=wrong), "hi")
    except UserError as error:
        print(type(error).__name__)
    agent = Agent(name="S", prompt=lambda data: {"id": "pmpt_3"})
    print(await agent.get_prompt(RunContextWrapper(None)))
    print(
        await Agent(
            name="T", instructions=lambda context, agent: f"{agent.name} for {context.context}"
        ).get_system_prompt(RunContextWrapper("bob"))
    )


asyncio.run(main())
