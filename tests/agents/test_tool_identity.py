"""Keys of tools: from declarations, from calls, and as stored."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories.agents import make_tool
from standfast import ModelBehaviorError, ToolMissing, WebSearchTool, tool_namespace
from standfast.agents import ToolRef, find_tool, index_tools_by_ref


def test_tools_of_one_name_are_distinguished_by_their_keys() -> None:
    bare = make_tool("find")
    deferred = make_tool("find", defer_loading=True)
    (inside,) = tool_namespace(name="crm", description="customers", tools=[bare])
    tools = index_tools_by_ref([bare, deferred, inside, WebSearchTool(), bare])
    assert [str(ref) for ref in tools] == ["find", "deferred_top_level:find", "crm.find"]
    for call, expected in ((("find",), bare), (("find", "find"), deferred), (("find", "crm"), inside)):
        assert find_tool(tools, ToolRef.from_call(*call), agent_name="a") is expected


def test_a_bare_call_also_matches_a_deferred_tool() -> None:
    tools = index_tools_by_ref([make_tool("find", defer_loading=True)])
    assert find_tool(tools, ToolRef.from_call("find"), agent_name="a").defer_loading


def test_the_error_for_a_missing_tool_lists_the_existing_ones() -> None:
    tools = index_tools_by_ref([make_tool("find")])
    with pytest.raises(ToolMissing, match=r"'support' has no tool 'crm\.find'; it has find") as caught:
        find_tool(tools, ToolRef("namespaced", "find", "crm"), agent_name="support")
    assert (caught.value.key, caught.value.known_tools) == ("crm.find", ("find",))


# An explicit alphabet: without one, Hypothesis builds tables of all of Unicode, which takes seconds.
NAMES = st.text("a.:/~%é", min_size=1, max_size=5)


@given(st.sampled_from(["bare", "deferred_top_level", "namespaced", "hosted_mcp"]), NAMES, NAMES)
def test_a_key_round_trips_through_its_lookup_key(kind: Any, name: str, namespace: str) -> None:
    ref = ToolRef(kind, name, namespace if kind in ("namespaced", "hosted_mcp") else None)
    assert ToolRef.from_lookup_key(list(ref.lookup_key)) == ref


@pytest.mark.parametrize("key", [(), ("bare",), ("bare", 1), ("other", "a"), ("namespaced", "a")])
def test_an_invalid_lookup_key_is_rejected(key: Any) -> None:
    with pytest.raises(ModelBehaviorError, match="invalid tool key"):
        ToolRef.from_lookup_key(key)
