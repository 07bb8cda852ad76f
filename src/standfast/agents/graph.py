"""The graph of agents that a run can reach, and references to agents that can be saved.

A saved run cannot hold live objects, and the name of an agent does not identify it. A reference therefore consists
of the path from the agent that the run started with, and a signature of the agent's parts.
:meth:`AgentGraph.resolve` finds the agent in the graph of another process, or raises an error that says why not.
:func:`draw_graph` draws the graph with Graphviz.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from inspect import isclass
from typing import TYPE_CHECKING, Any, get_origin

import msgspec

from standfast.agents.agent import Agent, AgentBase
from standfast.agents.agent_tool import TEXT_INPUT_SCHEMA
from standfast.agents.errors import AgentChanged, AgentMissing
from standfast.agents.handoffs import Handoff
from standfast.agents.output import AgentOutputSchema, as_output_schema
from standfast.agents.tool_identity import ToolRef
from standfast.agents.tools import FunctionTool
from standfast.base.errors import MissingExtra

if TYPE_CHECKING:
    from graphviz import Source

ROOT = "root"
SIGNATURE_PARTS = ("name", "instructions", "tools", "handoffs", "output type")
# The digest of TEXT_INPUT_SCHEMA in saved runs, which were written when its description had other words.
TEXT_INPUT_DIGEST = "8cd8234d665446d1"
_DESCRIPTIONS = frozenset(["title", "description", "examples", "$comment"])
# Keywords of a schema whose value has a schema under each name, and those with values that are not schemas.
_BY_NAME = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"])
_VALUES = frozenset(["const", "enum", "default"])


class AgentRef(msgspec.Struct, frozen=True):
    """A reference to an agent in a saved run. The signature has a digest for each of :data:`SIGNATURE_PARTS`."""

    path: str
    name: str
    signature: str


class AgentGraph:
    """The agents reachable from ``root`` by handoffs and agent tools.

    A snapshot: agents can be changed at any time, so create one graph for each run. Construction takes time linear
    in the size of the graph; signatures are computed on first use.
    """

    def __init__(self, root: AgentBase[Any]) -> None:
        self.root = root
        self._paths: dict[int, str] = {id(root): ROOT}
        self._agents: dict[str, AgentBase[Any]] = {ROOT: root}
        self._signatures: dict[str, str] = {}
        queue = deque([root])
        while queue:
            agent = queue.popleft()
            for label, target in _iter_edges(agent):
                if id(target) not in self._paths:
                    path = f"{self._paths[id(agent)]}/{label}"
                    self._paths[id(target)], self._agents[path] = path, target
                    queue.append(target)

    def __iter__(self) -> Iterator[tuple[str, AgentBase[Any]]]:
        """Iterate over all agents with their paths, nearest first."""
        return iter(self._agents.items())

    def __len__(self) -> int:
        return len(self._agents)

    def find(self, path: str) -> Any:
        """Return the agent at a path without comparing signatures; ``None`` if the path does not exist."""
        return self._agents.get(path)

    def get_path(self, agent: AgentBase[Any]) -> str:
        """Return the shortest path to the agent; raise :class:`AgentMissing` if it is not reachable."""
        try:
            return self._paths[id(agent)]
        except KeyError:
            raise AgentMissing("?", agent.name) from None

    def get_ref(self, agent: AgentBase[Any]) -> AgentRef:
        """Return the reference to save for an agent of this graph."""
        path = self.get_path(agent)
        return AgentRef(path, agent.name, self._get_signature(path))

    def resolve(self, ref: AgentRef, *, tolerate: Collection[str] = ()) -> Any:
        """Return the agent that ``ref`` refers to, if it exists and has not changed.

        Raises :class:`AgentMissing` or :class:`AgentChanged` otherwise; another agent of the same name is never
        returned. Changes in the parts listed in ``tolerate`` are ignored.
        """
        agent = self._agents.get(ref.path)
        if agent is None:
            raise AgentMissing(ref.path, ref.name, other_paths=self._find_other_paths(ref))
        changed = diff_signatures(ref.signature, self._get_signature(ref.path))
        if changed:  # earlier versions included the descriptions
            former = diff_signatures(ref.signature, compute_signature(agent, with_descriptions=True))
            changed = [part for part in changed if part in former and part not in tolerate]
        if changed:
            raise AgentChanged(ref.path, ref.name, changed_parts=changed)
        return agent

    def _get_signature(self, path: str) -> str:
        if path not in self._signatures:
            self._signatures[path] = compute_signature(self._agents[path])
        return self._signatures[path]

    def _find_other_paths(self, ref: AgentRef) -> list[str]:
        named = (path for path, agent in self if agent.name == ref.name)
        return [path for path in named if self._get_signature(path) == ref.signature]


def resolve_agent(root: AgentBase[Any], ref: AgentRef, *, tolerate: Collection[str] = ()) -> Any:
    """Resolve a single reference; see :meth:`AgentGraph.resolve`."""
    return AgentGraph(root).resolve(ref, tolerate=tolerate)


def compute_signature(agent: AgentBase[Any], *, with_descriptions: bool = False) -> str:
    """Return digests of the agent's parts. Hooks, model and model settings are not part of the signature.

    Neither are descriptions, of tools, parameters and fields: other words for the model change no call that was made.
    """
    describe = _keep if with_descriptions else drop_descriptions
    instructions = getattr(agent, "instructions", None)
    parts: list[Any] = [
        agent.name,
        "(a function)" if callable(instructions) else instructions,
        sorted(_describe_tools(agent, describe), key=msgspec.json.encode),
        sorted(_describe_handoffs(agent)),
        _describe_output_type(getattr(agent, "output_type", None), describe),
    ]
    return ".".join(_compute_digest(part) for part in parts)


def drop_descriptions(schema: Any) -> Any:
    """Return a JSON schema without the keywords that only describe."""
    if isinstance(schema, list):
        return [drop_descriptions(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _DESCRIPTIONS}
    for keyword, value in kept.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            kept[keyword] = {name: drop_descriptions(one) for name, one in value.items()}
        elif keyword not in _VALUES:
            kept[keyword] = drop_descriptions(value)
    return kept


def _keep(schema: Any) -> Any:
    return schema


def diff_signatures(old: str, new: str) -> list[str]:
    """Return the parts in which two signatures differ."""
    pairs = list(zip(old.split("."), new.split("."), strict=False))
    if len(pairs) != len(SIGNATURE_PARTS) or old.count(".") != new.count("."):
        return [] if old == new else ["signature"]
    return [part for part, (before, after) in zip(SIGNATURE_PARTS, pairs, strict=True) if before != after]


def _iter_edges(agent: AgentBase[Any]) -> Iterator[tuple[str, AgentBase[Any]]]:
    """Yield the agents one step away, each with a label that is unique among the edges of this agent."""
    seen: dict[str, int] = {}
    for kind, name, target in _iter_neighbors(agent):
        label = f"{kind}:{_escape(name)}"
        seen[label] = seen.get(label, 0) + 1
        yield label if seen[label] == 1 else f"{label}~{seen[label]}", target


def _iter_neighbors(agent: AgentBase[Any]) -> Iterator[tuple[str, str, AgentBase[Any]]]:
    for target in getattr(agent, "handoffs", ()):
        neighbor = target.agent if isinstance(target, Handoff) else target
        if isinstance(neighbor, AgentBase):
            yield "handoff", neighbor.name, neighbor
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and tool.agent_tool is not None:
            yield "tool", str(ToolRef.from_tool(tool)), tool.agent_tool.agent


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")


def _describe_tools(agent: AgentBase[Any], describe: Callable[[Any], Any]) -> Iterator[list[Any]]:
    for tool in agent.tools:
        if isinstance(tool, FunctionTool):
            plain_text = describe is _keep and tool.params_json_schema == TEXT_INPUT_SCHEMA
            digest = TEXT_INPUT_DIGEST if plain_text else _compute_digest(describe(tool.params_json_schema))
            yield ["function", *ToolRef.from_tool(tool).lookup_key, digest]
        else:
            yield ["hosted", getattr(tool, "name", type(tool).__name__), _get_server_label(tool)]
    for server in agent.mcp_servers:
        yield ["mcp", server.name]


def _get_server_label(tool: Any) -> str:
    config = getattr(tool, "tool_config", None)
    return str(config.get("server_label", "")) if isinstance(config, dict) else ""


def _describe_handoffs(agent: AgentBase[Any]) -> Iterator[list[str]]:
    for target in getattr(agent, "handoffs", ()):
        if isinstance(target, Handoff):
            yield [target.tool_name, target.agent_name]
        else:
            yield [Handoff.default_tool_name(target), target.name]


def _describe_output_type(output_type: Any, describe: Callable[[Any], Any]) -> Any:
    schema = as_output_schema(output_type)
    if schema is None or schema.is_plain_text():
        return None
    if not isinstance(schema, AgentOutputSchema):
        return [schema.name(), describe(schema.json_schema())]
    # Not the name of the schema: paused runs of earlier versions have this one.
    kind: Any = schema.output_type
    plain = isclass(kind) and get_origin(kind) is None
    return [kind.__name__ if plain else str(kind).replace("typing.", ""), describe(schema.json_schema())]


def _compute_digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted", enc_hook=repr)).hexdigest()[:16]


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
