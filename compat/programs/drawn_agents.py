"""The graph of a set of agents in the language of Graphviz."""

import asyncio
import re

from agents import Agent, function_tool, handoff
from agents.extensions.visualization import draw_graph, get_all_edges, get_all_nodes, get_main_graph


@function_tool
def weather(city: str) -> str:
    """The weather."""
    return city


spanish = Agent(name="Spanish agent", handoff_description="Speaks Spanish")
english = Agent(name="English agent", tools=[weather, spanish.as_tool("ask_spanish", "Ask.")])
triage = Agent(name="Triage agent", handoffs=[spanish, handoff(english)], tools=[weather])
spanish.handoffs.append(triage)


async def main() -> None:
    for text in (get_main_graph(triage), get_all_nodes(english), get_all_edges(english), draw_graph(triage).source):
        print(*sorted({statement.strip() for statement in re.split(r"[;{}]\s*", text)}), sep="\n")


asyncio.run(main())
