"""Agent graphs: references to agents resolve to the same agents or raise an error."""

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from factories.agents import make_tool
from standfast import (
    Agent,
    AgentChanged,
    AgentHooks,
    AgentMissing,
    Handoff,
    HostedMCPTool,
    ModelSettings,
    function_tool,
    handoff,
    tool_namespace,
)
from standfast.agents import AgentGraph, AgentRef, resolve_agent
from standfast.agents.graph import compute_signature, diff_signatures

FORMER_SIGNATURE = "ac8d8342bbb2362d.74234e98afe7498f.39bbead0a3bfd00b.4f53cda18c2baa0c.dae6aa6f3d4ab30f"


def support() -> Agent[Any]:
    """A graph with every kind of edge, two agents of one name, and a cycle."""
    root = Agent("support", instructions="Help.", tools=[make_tool("find")])
    writer = Agent("writer")
    root.tools.append(writer.as_tool("write", "Writes."))
    private = Agent("billing", instructions="For private customers.")
    companies = Agent("billing", instructions="For companies.")
    root.handoffs += [private, handoff(companies, tool_name_override="to_company_billing")]
    private.handoffs.append(root)
    writer.handoffs.append(Agent("editor"))
    return root


def test_every_reachable_agent_has_a_unique_path() -> None:
    assert [(path, agent.name) for path, agent in AgentGraph(support())] == [
        ("root", "support"),
        ("root/handoff:billing", "billing"),
        ("root/handoff:billing~2", "billing"),
        ("root/tool:write", "writer"),
        ("root/tool:write/handoff:editor", "editor"),
    ]


def test_an_agent_reached_twice_is_one_agent_by_its_shortest_path() -> None:
    shared = Agent("shared")
    root = Agent("root", handoffs=[Agent("far", handoffs=[shared]), shared])
    graph = AgentGraph(root)
    assert graph.get_path(shared) == "root/handoff:shared"
    assert len(graph) == 3


def test_names_cannot_forge_paths() -> None:
    root = Agent("a", handoffs=[Agent("b/handoff:c"), Agent("b", handoffs=[Agent("c")]), Agent("d~2"), Agent("100%")])
    assert [path for path, _ in AgentGraph(root)] == [
        "root",
        "root/handoff:b%2Fhandoff:c",
        "root/handoff:b",
        "root/handoff:d%7E2",
        "root/handoff:100%25",
        "root/handoff:b/handoff:c",
    ]


def test_a_reference_finds_the_same_agent_in_another_process() -> None:
    graph = AgentGraph(support())
    saved = [graph.get_ref(agent) for _, agent in graph]
    saved = msgspec.json.decode(msgspec.json.encode(saved), type=list[AgentRef])
    other = support()
    for ref, (path, agent) in zip(saved, AgentGraph(other), strict=True):
        assert ref.path == path
        assert resolve_agent(other, ref) is agent


def test_two_agents_of_one_name_are_distinguished() -> None:
    graph = AgentGraph(support())
    refs = [graph.get_ref(agent) for _, agent in graph if agent.name == "billing"]
    assert [graph.resolve(ref).instructions for ref in refs] == ["For private customers.", "For companies."]
    swapped = support()
    swapped.handoffs.reverse()
    with pytest.raises(AgentChanged) as caught:
        resolve_agent(swapped, refs[0])
    assert caught.value.changed_parts == ("instructions", "handoffs")


def test_a_removed_agent_is_missing_even_if_another_has_its_name() -> None:
    root = support()
    ref = AgentGraph(root).get_ref(root.handoffs[1].agent)  # type: ignore[union-attr]
    root.handoffs.pop()
    with pytest.raises(AgentMissing, match="no agent 'billing' at 'root/handoff:billing~2'") as caught:
        resolve_agent(root, ref)
    assert caught.value.other_paths == ()


def test_the_error_for_a_moved_agent_has_its_new_path() -> None:
    root = support()
    ref = AgentGraph(root).get_ref(root.handoffs[0])  # type: ignore[arg-type]
    root.handoffs.reverse()
    root.handoffs[0] = Agent("front", handoffs=[root.handoffs[1]])
    root.handoffs.pop()
    with pytest.raises(AgentMissing, match="now at root/handoff:front/handoff:billing") as caught:
        resolve_agent(root, ref)
    assert caught.value.other_paths == ("root/handoff:front/handoff:billing",)


def test_a_renamed_agent_is_missing() -> None:
    editor = Agent("editor")
    root = Agent("support", handoffs=[editor])
    ref = AgentGraph(root).get_ref(editor)
    editor.name = "proofreader"
    with pytest.raises(AgentMissing, match="no agent 'editor' at 'root/handoff:editor'"):
        resolve_agent(root, ref)


def test_another_agent_at_the_same_path_is_not_accepted() -> None:
    root = support()
    first: Any = root.handoffs[0]
    ref = AgentGraph(root).get_ref(first)
    first.name = "accounts"
    assert dict(AgentGraph(root))["root/handoff:billing"] is not first
    with pytest.raises(AgentChanged):
        resolve_agent(root, ref)


def test_a_renamed_root_has_changed_and_agents_below_it_are_found() -> None:
    root = support()
    graph = AgentGraph(root)
    top, writer = graph.get_ref(root), graph.get_ref(root.tools[1].agent_tool.agent)  # type: ignore[union-attr]
    root.name = "desk"
    with pytest.raises(AgentChanged, match=r"'support' at 'root'.*: name") as caught:
        resolve_agent(root, top)
    assert caught.value.changed_parts == ("name",)
    assert resolve_agent(root, writer).name == "writer"


class Answer(BaseModel):
    text: str


def with_schema(agent: Agent[Any]) -> None:
    agent.tools[0] = make_tool("find", schema={"type": "object", "properties": {"q": {"type": "string"}}})


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda agent: setattr(agent, "instructions", "Help less."), "instructions"),
        (lambda agent: setattr(agent, "instructions", lambda context, agent: ""), "instructions"),
        (lambda agent: agent.tools.pop(0), "tools"),
        (lambda agent: agent.tools.append(make_tool("extra")), "tools"),
        (with_schema, "tools"),
        (lambda agent: setattr(agent.tools[0], "defer_loading", True), "tools"),
        (
            lambda agent: agent.tools.__setitem__(
                0, *tool_namespace(name="n", description="d", tools=[make_tool("find")])
            ),
            "tools",
        ),
        (lambda agent: agent.tools.append(HostedMCPTool({"server_label": "shop"})), "tools"),
        (lambda agent: agent.handoffs.append(Agent("other")), "handoffs"),
        (lambda agent: setattr(agent, "output_type", Answer), "output type"),
    ],
)
def test_the_changed_part_is_reported(change: Any, part: str) -> None:
    root = support()
    ref = AgentGraph(root).get_ref(root)
    change(root)
    with pytest.raises(AgentChanged) as caught:
        resolve_agent(root, ref)
    assert caught.value.changed_parts == (part,)
    assert resolve_agent(root, ref, tolerate=[part]) is root


@pytest.mark.parametrize(
    "change",
    [
        {"hooks": AgentHooks()},
        {"model": "another"},
        {"model_settings": ModelSettings(temperature=0)},
        {"handoff_description": "Helps."},
        {"output_type": str},
    ],
    ids=lambda change: next(iter(change)),
)
def test_parts_outside_the_signature_may_change(change: dict[str, Any]) -> None:
    root = support()
    ref = AgentGraph(root).get_ref(root)
    other = root.clone(**change)
    assert resolve_agent(other, ref) is other


def make_described_agent(*, order: str, field: str, description: str = "") -> Agent[Any]:
    @function_tool(description_override=description or None)
    def refund(
        order_id: Annotated[str, Field(description=order, title=order, examples=[order])], description: str = "none"
    ) -> str:
        return order_id

    class Result(BaseModel):
        """What was done."""

        text: str = Field(description=field)

    return Agent("a", tools=[refund], output_type=Result)


def test_other_words_for_the_model_do_not_change_an_agent() -> None:
    saved = make_described_agent(order="the order", field="what you did")
    other = make_described_agent(order="the id of the order", field="a sentence", description="Pay back.")
    assert resolve_agent(other, AgentGraph(saved).get_ref(saved)) is other


@pytest.mark.parametrize("change", ["remove", "type", "default", "enum", "required"])
def test_a_parameter_may_be_named_like_a_keyword_that_describes(change: str) -> None:
    def make(**schemas: Any) -> Agent[Any]:
        properties = {"description": {"type": "string"}, "title": {"enum": ["title", {"title": 1}], "default": "x"}}
        schema = {"type": "object", "properties": properties | schemas, "required": ["title"]}
        if change == "required" and schemas:
            schema["required"] = ["title", "description"]
        return Agent("a", tools=[make_tool("find", schema=schema)])

    changes = {
        "remove": {"description": False},
        "type": {"description": {"type": "integer"}},
        "default": {"title": {"enum": ["title", {"title": 1}], "default": "y"}},
        "enum": {"title": {"enum": ["title", {"title": 2}], "default": "x"}},
        "required": {"extra": {}},
    }
    root = make()
    with pytest.raises(AgentChanged, match="tools"):
        resolve_agent(make(**changes[change]), AgentGraph(root).get_ref(root))


def test_a_reference_of_an_earlier_version_contains_the_descriptions() -> None:
    saved = make_described_agent(order="the order", field="what you did")
    former = AgentRef("root", "a", compute_signature(saved, with_descriptions=True))
    assert former.signature == FORMER_SIGNATURE
    assert resolve_agent(saved, former) is saved
    other = make_described_agent(order="the id of the order", field="what you did")
    with pytest.raises(AgentChanged) as caught:
        resolve_agent(other, former)
    assert caught.value.changed_parts == ("tools",)


def test_the_order_of_tools_does_not_matter() -> None:
    root = support()
    ref = AgentGraph(root).get_ref(root)
    root.tools.reverse()
    assert resolve_agent(root, ref) is root


def test_a_signature_is_the_same_in_every_process() -> None:
    @function_tool
    def find(q: str) -> str:
        """Find it."""
        return q

    agent = Agent("a", instructions="Help.", tools=[find], handoffs=[Agent("b")], output_type=Answer)
    assert compute_signature(agent) == compute_signature(agent.clone())
    assert compute_signature(Agent("a")) == (
        "ac8d8342bbb2362d.74234e98afe7498f.4f53cda18c2baa0c.4f53cda18c2baa0c.74234e98afe7498f"
    )


def test_a_signature_of_another_format_counts_as_changed() -> None:
    root = support()
    ref = AgentGraph(root).get_ref(root)
    with pytest.raises(AgentChanged) as caught:
        resolve_agent(root, AgentRef(ref.path, ref.name, "old"))
    assert caught.value.changed_parts == ("signature",)
    assert diff_signatures("old", "old") == []


def test_an_unreachable_agent_has_no_reference() -> None:
    async def somewhere(context: Any, arguments: str) -> Any: ...

    hidden = Agent("hidden")
    root = Agent("a", handoffs=[Handoff("go", "", {}, somewhere, "hidden")])
    with pytest.raises(AgentMissing, match="'hidden'"):
        AgentGraph(root).get_ref(hidden)


def test_a_graph_is_a_snapshot() -> None:
    root = support()
    graph = AgentGraph(root)
    ref = graph.get_ref(root)
    root.handoffs.clear()
    assert len(graph) == 5
    assert graph.get_ref(root) == ref
    assert replace(root).handoffs == []


EDGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=25)
NAMES = st.lists(st.sampled_from(["a", "b", "c/d"]), min_size=7, max_size=7)


def build_agents(names: list[str], edges: list[tuple[int, int, bool]]) -> list[Agent[Any]]:
    agents = [Agent(name, instructions=str(index)) for index, name in enumerate(names)]
    for source, target, by_handoff in edges:
        if by_handoff:
            agents[source].handoffs.append(agents[target])
        else:
            agents[source].tools.append(agents[target].as_tool(f"ask_{target}", ""))
    return agents


@settings(max_examples=40)
@given(NAMES, EDGES)
def test_references_of_any_graph_resolve_to_the_same_agents(
    names: list[str], edges: list[tuple[int, int, bool]]
) -> None:
    ours, theirs = build_agents(names, edges), build_agents(names, edges)
    graph, other = AgentGraph(ours[0]), AgentGraph(theirs[0])
    assert len({path for path, _ in graph}) == len(graph)
    for _, agent in graph:
        assert other.resolve(graph.get_ref(agent)) is theirs[ours.index(agent)]  # type: ignore[arg-type]


@settings(max_examples=40)
@given(NAMES, EDGES, st.integers(0, 6))
def test_a_reference_never_resolves_to_an_agent_with_other_instructions(
    names: list[str], edges: list[tuple[int, int, bool]], removed: int
) -> None:
    ours = build_agents(names, edges)
    theirs = build_agents(names, [edge for index, edge in enumerate(edges) if index != removed])
    graph, other = AgentGraph(ours[0]), AgentGraph(theirs[0])
    for _, agent in graph:
        try:
            resolved = other.resolve(graph.get_ref(agent), tolerate=["handoffs", "tools"])
        except (AgentMissing, AgentChanged):
            continue
        assert resolved.instructions == agent.instructions  # type: ignore[attr-defined]
