"""Names of tools for models. They are the same in every process and do not depend on the agent's other servers."""

import hashlib
import re
from collections.abc import Collection

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

    A digest is appended where that could be ambiguous: to names with other characters, to long names, for servers that
    share their name with an earlier one (``server_index``), and to ``reserved_names`` such as the agent's own tools.
    """
    server, tool = _replace_unsafe_chars(server_name) or "server", _replace_unsafe_chars(tool_name) or "tool"
    name = f"mcp_{server}__{tool}"
    exact = server == server_name and tool == tool_name and "__" not in server
    if exact and not server_index and len(name) <= MAX_NAME_LENGTH and name not in reserved_names:
        return name
    return _append_digest(name, f"{server_name}\0{tool_name}\0{server_index}")


def _append_digest(name: str, digest_source: str) -> str:
    digest = hashlib.sha256(digest_source.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"


def _replace_unsafe_chars(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")
