"""Names of tools as models are told them: the same in every process, whatever else the agent has."""

import hashlib
import re
from collections.abc import Collection

LONGEST = 64
_DIGITS = 8
_A_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def spelled(tool_name: str) -> str:
    """The name itself if it is one by the protocol's rules; otherwise one that every provider takes."""
    if _A_NAME.fullmatch(tool_name):
        return tool_name
    return _with_digest(_plain(tool_name) or "tool", tool_name)


def prefixed(server_name: str, tool_name: str, *, twin: int = 0, taken: Collection[str] = ()) -> str:
    """``mcp_<server>__<tool>`` in characters that every provider takes.

    What a plain spelling cannot tell apart gets a digest at the end: names with other characters, long names, the
    ``twin``-th server of one name, and names that are ``taken`` by the agent's own tools.
    """
    server, tool = _plain(server_name) or "server", _plain(tool_name) or "tool"
    name = f"mcp_{server}__{tool}"
    exact = server == server_name and tool == tool_name and "__" not in server
    if exact and not twin and len(name) <= LONGEST and name not in taken:
        return name
    return _with_digest(name, f"{server_name}\0{tool_name}\0{twin}")


def _with_digest(name: str, exactly: str) -> str:
    digest = hashlib.sha256(exactly.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{name[: LONGEST - _DIGITS - 1]}_{digest}"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")
