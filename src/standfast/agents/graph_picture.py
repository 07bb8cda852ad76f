"""Draw an agent, its tools and the agents that it hands off to, with Graphviz."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from standfast.agents.agent import Agent
from standfast.agents.handoffs import Handoff
from standfast.base.errors import MissingExtra

if TYPE_CHECKING:
    from graphviz import Source

_POINT = "shape=ellipse, style=filled, fillcolor=lightblue, width=0.5, height=0.3"
_FIRST_AGENT = "shape=box, style=filled, fillcolor=lightyellow, width=1.5, height=0.8"
_AGENT = 'shape=box, style="filled,rounded", fillcolor=lightyellow, width=1.5, height=0.8'
_TOOL = "shape=ellipse, style=filled, fillcolor=lightgreen, width=0.5, height=0.3"
_SERVER = "shape=box, style=filled, fillcolor=lightgrey, width=1, height=0.5"


def draw_graph(agent: Agent[Any], filename: str | None = None) -> "Source":
    """Return the graph of an agent; with ``filename`` it is also written to that file, as PNG."""
    try:
        from graphviz import Source
    except ImportError as error:
        raise MissingExtra("viz", "drawing agents") from error
    graph = Source(get_main_graph(agent))
    if filename is not None:
        graph.render(filename, format="png", cleanup=True)
    return graph


def get_main_graph(agent: Agent[Any]) -> str:
    """Return the graph in the language of Graphviz."""
    style = 'graph [splines=true];\nnode [fontname="Arial"];\nedge [penwidth=1.5];\n'
    return f"digraph G {{\n{style}{get_all_nodes(agent)}{get_all_edges(agent)}}}\n"


def get_all_nodes(agent: Agent[Any], parent: Agent[Any] | None = None, visited: set[str] | None = None) -> str:
    """Return the nodes for the agent and all that it leads to; ``visited`` are names that exist already."""
    visited = set() if visited is None else visited
    nodes = [] if parent is not None else [_make_node("__start__", _POINT), _make_node("__end__", _POINT)]
    for each, is_first in _iter_agents(agent, visited):
        nodes.append(_make_node(each.name, _FIRST_AGENT if is_first and parent is None else _AGENT))
        nodes += [_make_node(tool.name, _TOOL) for tool in each.tools]
        nodes += [_make_node(server.name, _SERVER) for server in each.mcp_servers]
        nodes += [_make_node(_get_target_name(target), _AGENT) for target in each.handoffs if _is_open_handoff(target)]
    return "".join(dict.fromkeys(nodes))


def get_all_edges(agent: Agent[Any], parent: Agent[Any] | None = None, visited: set[str] | None = None) -> str:
    """Return the edges between the nodes of :func:`get_all_nodes`."""
    visited = set() if visited is None else visited
    edges = [] if parent is not None else [_make_edge("__start__", agent.name)]
    for each, _ in _iter_agents(agent, visited):
        for tool in each.tools:
            edges += [_make_edge(each.name, tool.name, "dotted"), _make_edge(tool.name, each.name, "dotted")]
        for server in each.mcp_servers:
            edges += [_make_edge(each.name, server.name, "dashed"), _make_edge(server.name, each.name, "dashed")]
        edges += [_make_edge(each.name, _get_target_name(target)) for target in each.handoffs]
        if not each.handoffs:
            edges.append(_make_edge(each.name, "__end__"))
    return "".join(edges)


def _iter_agents(agent: Agent[Any], visited: set[str]) -> Iterator[tuple[Agent[Any], bool]]:
    """Yield the agent and all that it may hand off to, each once."""
    waiting, is_first = [agent], True
    while waiting:
        each = waiting.pop(0)
        if each.name in visited:
            continue
        visited.add(each.name)
        yield each, is_first
        is_first = False
        targets = [target.agent if isinstance(target, Handoff) else target for target in each.handoffs]
        waiting += [target for target in targets if isinstance(target, Agent)]


def _is_open_handoff(target: Any) -> bool:
    return isinstance(target, Handoff) and not isinstance(target.agent, Agent)


def _get_target_name(target: Any) -> str:
    name: str = target.agent_name if isinstance(target, Handoff) else target.name
    return name


def _make_node(name: str, style: str) -> str:
    return f"{_quote(name)} [label={_quote(name)}, {style}];\n"


def _make_edge(source: str, target: str, style: str | None = None) -> str:
    options = "" if style is None else f" [style={style}, penwidth=1.5]"
    return f"{_quote(source)} -> {_quote(target)}{options};\n"


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
