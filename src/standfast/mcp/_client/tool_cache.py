"""The tools of a server as they were last listed, and whether that still holds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import Tool as MCPTool

# A server that has not come to the end of its list by then never will.
MAX_PAGES = 1000


class ToolCache:
    """``tools`` is the last list, whatever its age; ``kept`` is it only while it may be used instead of asking."""

    def __init__(self, *, enabled: bool) -> None:
        self.tools: list[MCPTool] | None = None
        self._enabled, self._fresh, self._invalidations = enabled, False, 0

    @property
    def fresh_tools(self) -> "list[MCPTool] | None":
        return self.tools if self._enabled and self._fresh else None

    def invalidate(self) -> None:
        """What is known may be out of date, and so may be what is being listed at this moment."""
        self._fresh = False
        self._invalidations += 1

    async def fetch(self, session: "ClientSession") -> "list[MCPTool]":
        """List all pages."""
        from mcp.types import PaginatedRequestParams

        changes = self._invalidations
        cursors: set[str] = set()
        page = await session.list_tools()
        found = list(page.tools)
        while (cursor := page.next_cursor) is not None:
            if cursor in cursors or len(cursors) == MAX_PAGES:
                raise ValueError("the list has no end")
            cursors.add(cursor)
            page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            found += page.tools
        self.tools, self._fresh = found, changes == self._invalidations
        return found
