"""An agent with its tools and handoffs as a graph."""

import pytest
from standfast.extensions.visualization import draw_graph, get_main_graph

from standfast import Agent, function_tool, handoff


@function_tool
def search(query: str) -> str:
    return query


def make_agent() -> Agent[None]:
    billing = Agent("Billing", tools=[search])
    front: Agent[None] = Agent('The "front"', handoffs=[billing, handoff(Agent("Refunds"))])
    billing.handoffs.append(front)
    return front


def test_the_graph_has_agents_tools_and_handoffs() -> None:
    graph = get_main_graph(make_agent())
    for line in (
        '"__start__" -> "The \\"front\\"";',
        '"The \\"front\\"" -> "Billing";',
        '"The \\"front\\"" -> "Refunds";',
        '"Billing" -> "The \\"front\\"";',
        '"Billing" -> "search" [style=dotted, penwidth=1.5];',
        '"Refunds" -> "__end__";',
    ):
        assert line in graph
    assert graph.count('"Billing" [label=') == 1


def test_it_is_drawn_by_graphviz() -> None:
    graphviz = pytest.importorskip("graphviz")
    graph = draw_graph(make_agent())
    assert isinstance(graph, graphviz.Source)
    assert graph.source == get_main_graph(make_agent())
