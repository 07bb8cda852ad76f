"""Names of tools for models."""

from hypothesis import given
from hypothesis import strategies as st

from standfast.mcp._client.tools import build_prefixed_name


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 3))
def test_a_prefixed_name_is_valid_for_every_provider(server: str, tool: str, index: int) -> None:
    name = build_prefixed_name(server, tool, server_index=index)
    assert len(name) <= 64
    assert name.isascii()
    assert name.replace("_", "").replace("-", "").isalnum()
    assert name == build_prefixed_name(server, tool, server_index=index)


names = st.text(st.sampled_from("ab_ -é"), min_size=1, max_size=6)


@given(names, names, names, names)
def test_different_tools_never_share_a_name(server: str, tool: str, other_server: str, other_tool: str) -> None:
    same = (server, tool) == (other_server, other_tool)
    assert (build_prefixed_name(server, tool) == build_prefixed_name(other_server, other_tool)) == same


def test_a_name_that_the_agent_uses_is_avoided() -> None:
    assert build_prefixed_name("shop", "stock") == "mcp_shop__stock"
    assert build_prefixed_name("shop", "stock", reserved_names={"mcp_shop__stock"}) != "mcp_shop__stock"
