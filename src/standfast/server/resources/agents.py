"""``/agents``: the agents that runs can start with."""

from typing import Any

from standfast.agents.agent import Agent
from standfast.base.errors import NotFound
from standfast.server.endpoints import READ, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import AgentInfo, Page, ToolInfo

endpoints = EndpointTable()


@endpoints.add("GET", "/agents", READ, result=Page[AgentInfo])
async def list_agents(exchange: Exchange) -> Page[AgentInfo]:
    """List the agents that runs can start with."""
    return Page([describe_agent(agent) for agent in exchange.runtime.agents.values()])


@endpoints.add("GET", "/agents/{agent}", READ, result=AgentInfo)
async def get_agent(exchange: Exchange) -> AgentInfo:
    """Show an agent with its tools and the schemas of their arguments."""
    agent = exchange.runtime.agents.get(exchange.path["agent"])
    if agent is None:
        raise NotFound("agent", exchange.path["agent"])
    return describe_agent(agent)


def describe_agent(agent: Agent[Any]) -> AgentInfo:
    model = agent.model
    return AgentInfo(
        name=agent.name,
        description=agent.handoff_description,
        model=model if isinstance(model, str) or model is None else type(model).__name__,
        tools=[describe_tool(tool) for tool in agent.tools],
        handoffs=[target.name if isinstance(target, Agent) else target.agent_name for target in agent.handoffs],
    )


def describe_tool(tool: Any) -> ToolInfo:
    return ToolInfo(
        name=tool.name,
        description=getattr(tool, "description", None) or "",
        schema=getattr(tool, "params_json_schema", None),
    )
