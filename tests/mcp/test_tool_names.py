"""Names of tools for models."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from standfast.mcp._client.tool_names import build_prefixed_name, count_same_names, replace_server_name


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 3))
def test_a_prefixed_name_is_valid_for_every_provider(server: str, tool: str, index: int) -> None:
    name = build_prefixed_name(server, tool, server_index=index)
    assert len(name) <= 64
    assert name.isascii()
    assert name.replace("_", "").replace("-", "").isalnum()
    assert name == build_prefixed_name(server, tool, server_index=index)


class Server:
    def __init__(self, name: str) -> None:
        self.name = name


names = st.text(st.sampled_from("ab_ -é"), min_size=1, max_size=6)


@given(names, names, st.text(st.sampled_from("ab_-"), min_size=1, max_size=6))
def test_tools_of_different_servers_never_share_a_name(first: str, second: str, tool: str) -> None:
    servers: list[Any] = [Server(first), Server(second)]
    found = [
        build_prefixed_name(server.name, tool, server_index=count_same_names(server, servers[:index]))
        for index, server in enumerate(servers)
    ]
    assert len(set(found)) == 2


def test_a_name_has_a_digest_only_where_it_is_ambiguous() -> None:
    assert build_prefixed_name("Filesystem Server, via npx", "read file") == "mcp_Filesystem_Server_via_npx__read_file"
    assert build_prefixed_name("my server", "t", server_index=1) != "mcp_my_server__t"
    assert replace_server_name("日本") == "server"


def test_a_name_that_the_agent_uses_is_avoided() -> None:
    assert build_prefixed_name("shop", "stock") == "mcp_shop__stock"
    assert build_prefixed_name("shop", "stock", reserved_names={"mcp_shop__stock"}) != "mcp_shop__stock"
