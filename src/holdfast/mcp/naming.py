"""Names of tools that have their server in front: the same in every process, whatever else the agent has."""

import hashlib
import re
from collections.abc import Collection

LONGEST = 64
_DIGITS = 8


def prefixed(server_name: str, tool_name: str, *, twin: int = 0, taken: Collection[str] = ()) -> str:
    """``mcp_<server>__<tool>`` in characters that every provider takes.

    What a plain spelling cannot tell apart gets a digest at the end: names with other characters, long names, the
    ``twin``-th server of one name, and names that are ``taken`` by the agent's own tools.
    """
    server, tool = _plain(server_name), _plain(tool_name)
    name = f"mcp_{server}__{tool}"
    exact = server == server_name and tool == tool_name and "__" not in server
    if exact and not twin and len(name) <= LONGEST and name not in taken:
        return name
    digest = hashlib.sha256(f"{server_name}\0{tool_name}\0{twin}".encode()).hexdigest()[:_DIGITS]
    return f"{name[: LONGEST - _DIGITS - 1]}_{digest}"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "server"
