import asyncio

from agents import Agent, AgentBase, RunContextWrapper, Runner
from pydantic import BaseModel


class AppContext(BaseModel):
    language: str = "spanish"


def european(ctx: RunContextWrapper[AppContext], agent: AgentBase) -> bool:
    return ctx.context.language in ("french", "spanish")


spanish = Agent(name="spanish_agent", instructions="Speak Spanish.")
french = Agent(name="french_agent", instructions="Speak French.")
orchestrator = Agent[AppContext](
    name="orchestrator",
    instructions="Use the tools.",
    tools=[
        spanish.as_tool(tool_name="respond_spanish", tool_description="Respond in Spanish", is_enabled=True),
        french.as_tool(tool_name="respond_french", tool_description="Respond in French", is_enabled=european),
    ],
)


async def main() -> None:
    for language in ("spanish", "english"):
        context = RunContextWrapper(AppContext(language=language))
        print([tool.name for tool in await orchestrator.get_all_tools(context)])
        result = await Runner.run(orchestrator, "Hello", context=context.context)
        print(result.final_output)


asyncio.run(main())
