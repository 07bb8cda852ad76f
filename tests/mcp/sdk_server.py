"""An MCP server built with the ``mcp`` library: over stdio, or over HTTP on four ports given as arguments."""

import asyncio
import base64
import os
import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from plain_server import write_log


def stock(item: str) -> str:
    """Return the number in stock."""
    write_log(f"stock {item}")
    return f"shop has 3 of {item}"


def refund(order: str, amount: float = 1.0) -> str:
    """Refund an order."""
    write_log(f"refund {order}")
    return f"refunded {amount:g} for {order}"


def broken() -> str:
    """Fail."""
    raise ToolError("the drawer is stuck")


def weigh(item: str) -> dict[str, Any]:
    """Return structured content."""
    return {"item": item, "grams": 250}


def gallery() -> list[Any]:
    """Return every kind of content."""
    data = base64.b64encode(b"bytes").decode()
    return [
        TextContent(type="text", text="look"),
        ImageContent(type="image", data=data, mime_type="image/png"),
        AudioContent(type="audio", data=data, mime_type="audio/wav"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="shop://note", text="a note")),
        EmbeddedResource(
            type="resource",
            resource=BlobResourceContents(uri="shop://files/bill.pdf", blob=data, mime_type="application/pdf"),
        ),
        ResourceLink(type="resource_link", name="terms", uri="shop://terms"),
    ]


async def hang() -> str:
    """Never answer."""
    write_log("hang")
    await asyncio.sleep(600)
    return "late"


def read_meta(ctx: Context) -> str:
    """Return the metadata of the call."""
    meta = ctx.request_context.meta or {}
    return str(meta.get("tenant"))


def greet(name: str) -> str:
    """Return a prompt."""
    return f"Greet {name} warmly."


def terms() -> str:
    """Return a resource."""
    return "No refunds on Sundays."


def order(order: str) -> str:
    """Return a resource of a template."""
    return f"order {order}"


def make_server() -> MCPServer:
    shop = MCPServer("shop", log_level="ERROR")

    async def add_tool(ctx: Context) -> str:
        """Add a tool and notify the client."""
        shop.add_tool(lambda: "fresh", name="fresh", description="New.")
        await ctx.session.send_tool_list_changed()
        return "grown"

    shop.tool(annotations=ToolAnnotations(read_only_hint=True))(stock)
    shop.tool(annotations=ToolAnnotations(destructive_hint=True))(refund)
    shop.tool(annotations=ToolAnnotations(idempotent_hint=True))(weigh)
    shop.tool(structured_output=False)(gallery)
    for tool in (broken, hang, add_tool, read_meta):
        shop.tool()(tool)
    shop.prompt()(greet)
    shop.resource("shop://terms")(terms)
    shop.resource("shop://orders/{order}")(order)
    return shop


async def serve(*ports: int) -> None:
    apps = [
        make_server().streamable_http_app(),
        make_server().streamable_http_app(json_response=True),
        make_server().streamable_http_app(stateless_http=True),
        make_server().sse_app(),
    ]
    configs = [uvicorn.Config(app, port=port, log_level="error") for app, port in zip(apps, ports, strict=True)]
    await asyncio.gather(*[uvicorn.Server(config).serve() for config in configs])


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(serve(*map(int, sys.argv[1:])))
    write_log(f"started {os.getpid()}")
    make_server().run("stdio")
