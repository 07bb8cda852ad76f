"""Instructions, tools and handoffs that depend on the context; clones; generic agents."""

import asyncio
from dataclasses import dataclass, field

from agents import Agent, RunContextWrapper, Runner, function_tool, handoff
from agents.tool_context import ToolContext


@dataclass
class User:
    name: str
    admin: bool = False
    seen: list[str] = field(default_factory=list)


async def instructions(context: RunContextWrapper[User], agent: Agent[User]) -> str:
    context.context.seen.append(agent.name)
    return f"You help {context.context.name}. Be {'formal' if context.context.admin else 'casual'}."


def admins(context: RunContextWrapper[User], agent: Agent) -> bool:
    return context.context.admin


@function_tool(is_enabled=admins)
def shutdown(context: ToolContext[User], when: str = "now") -> str:
    """Shut down."""
    print(context.tool_name, context.tool_call_id, context.tool_arguments, context.context.name, context.agent.name)
    return f"down {when}"


@function_tool
async def whoami(wrapper: RunContextWrapper[User]) -> str:
    """Who am I?"""
    wrapper.context.seen.append("whoami")
    return wrapper.context.name


root = Agent[User](name="Root", instructions="root")
agent = Agent[User](
    name="Helper",
    instructions=instructions,
    tools=[shutdown, whoami],
    handoffs=[handoff(root, is_enabled=admins, tool_description_override="Become root")],
)
pirate = agent.clone(name="Pirate", instructions="Arr.", tools=[*agent.tools])


async def main() -> None:
    for user in (User("Ann"), User("Bob", admin=True)):
        print((await Runner.run(agent, "call whoami {}", context=user)).final_output)
        try:
            print((await Runner.run(agent, 'call shutdown {"when": "later"}', context=user)).final_output)
            print((await Runner.run(pirate, "call transfer_to_root {}", context=user)).last_agent.name)
        except Exception as error:
            print(type(error).__name__, error)
        print(user)
    print(await agent.get_system_prompt(RunContextWrapper(context=User("Cy"))))
    print([tool.name for tool in await agent.get_all_tools(RunContextWrapper(context=User("Cy", True)))])
    print(pirate.tools is agent.tools, pirate.handoffs is agent.handoffs, pirate.name, agent.name)
    for wrong in ({"instructions": 5}, {"instructions": lambda context: "x"}, {"tools": "x"}, {"name": 3}):
        try:
            await Runner.run(Agent(**{"name": "W", **wrong}), "x", context=User("Dee"))
        except TypeError:
            print("refused", *wrong)


asyncio.run(main())
