"""The tools of a server as they were last listed, and whether that still holds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import Tool as MCPTool

# A server that has not come to the end of its list by then never will.
MOST_PAGES = 1000


class Listing:
    """``tools`` is the last list, whatever its age; ``kept`` is it only while it may be used instead of asking."""

    def __init__(self, *, keep: bool) -> None:
        self.tools: list[MCPTool] | None = None
        self._keep, self._fresh, self._changes = keep, False, 0

    @property
    def kept(self) -> "list[MCPTool] | None":
        return self.tools if self._keep and self._fresh else None

    def forget(self) -> None:
        """What is known may be out of date, and so may be what is being listed at this moment."""
        self._fresh = False
        self._changes += 1

    async def fetch(self, session: "ClientSession") -> "list[MCPTool]":
        """List all pages."""
        from mcp.types import PaginatedRequestParams

        changes = self._changes
        cursors: set[str] = set()
        page = await session.list_tools()
        found = list(page.tools)
        while (cursor := page.next_cursor) is not None:
            if cursor in cursors or len(cursors) == MOST_PAGES:
                raise ValueError("the list has no end")
            cursors.add(cursor)
            page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            found += page.tools
        self.tools, self._fresh = found, changes == self._changes
        return found
