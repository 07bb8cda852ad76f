"""Names of a server's tools for models."""

import hashlib
import re
from collections.abc import Collection, Sequence

from standfast.agents.types import ToolSource

MAX_NAME_LENGTH = 64
_DIGEST_LENGTH = 8
_VALID_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def sanitize_tool_name(tool_name: str) -> str:
    """Return ``tool_name`` if MCP allows it, otherwise a similar name that every provider accepts."""
    if _VALID_NAME.fullmatch(tool_name):
        return tool_name
    return _append_digest(_replace_unsafe_chars(tool_name) or "tool", tool_name)


def build_prefixed_name(
    server_name: str, tool_name: str, *, server_index: int = 0, reserved_names: Collection[str] = ()
) -> str:
    """Return ``mcp_<server>__<tool>``, in characters that every provider accepts.

    A digest is appended where that could be ambiguous: to long names, for servers that share their name in these
    characters with an earlier one (``server_index``), and to ``reserved_names`` such as the agent's own tools.
    """
    server, name = replace_server_name(server_name), join_name(server_name, tool_name)
    if "__" not in server and not server_index and len(name) <= MAX_NAME_LENGTH and name not in reserved_names:
        return name
    return _append_digest(name, f"{server_name}\0{tool_name}\0{server_index}")


def replace_server_name(name: str) -> str:
    """Return the name of a server in characters that every provider accepts."""
    return _replace_unsafe_chars(name) or "server"


def join_name(server_name: str, tool_name: str) -> str:
    return f"mcp_{replace_server_name(server_name)}__{_replace_unsafe_chars(tool_name) or 'tool'}"


def _append_digest(name: str, digest_source: str) -> str:
    digest = hashlib.sha256(digest_source.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"


def remove_credentials(name: str) -> str:
    """Return the name of a server without user, password and query of an address in it."""
    return re.sub(r"(https?://)(?:[^/\s@]*@)?([^\s?#]*)[?#]?\S*", r"\1\2", name)


def _replace_unsafe_chars(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")


def count_same_names(server: ToolSource, earlier: Sequence[ToolSource]) -> int:
    """Return how many of the earlier servers have the same prefix of tool names as this one."""
    return sum(replace_server_name(other.name) == replace_server_name(server.name) for other in earlier)
