"""A real MCP server for the tests: over standard streams as a script, over HTTP by ``app()``.

It notes every call in the file that the variable JOURNAL names, so that a test can count what really happened.
"""

import asyncio
import base64
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def note(what: str) -> None:
    if journal := os.environ.get("JOURNAL"):
        with Path(journal).open("a") as file:
            file.write(what + "\n")


if __name__ == "__main__":
    note(f"started {os.getpid()}")
    if "silent" in sys.argv:
        time.sleep(600)
    if "crash" in sys.argv:
        sys.exit("no licence found")

from mcp.server.mcpserver import Context, MCPServer  # noqa: E402 - a server that crashes does so at once
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402
from mcp.types import (  # noqa: E402
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

server = MCPServer(os.environ.get("SHOP_NAME", "shop"), log_level="ERROR")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def stock(item: str) -> str:
    """How many there are."""
    note(f"stock {item}")
    return f"{os.environ.get('SHOP_NAME', 'shop')} has 3 of {item}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def refund(order: str, amount: float = 1.0) -> str:
    """Pay back."""
    note(f"refund {order}")
    return f"refunded {amount:g} for {order}"


@server.tool()
def broken() -> str:
    """Fails."""
    raise ToolError("the drawer is stuck")


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def weigh(item: str) -> dict[str, Any]:
    """Structured."""
    return {"item": item, "grams": 250}


@server.tool(structured_output=False)
def gallery() -> list[Any]:
    """All kinds of content."""
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


@server.tool()
async def hang() -> str:
    """Never answers."""
    note("hang")
    await asyncio.sleep(600)
    return "late"


@server.tool()
def die(order: str) -> str:
    """The process is killed in the middle of the call."""
    note(f"die {order}")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


VOICE = os.readlink("/proc/self/fd/1")


@server.tool()
def mute() -> str:
    """Closes the standard output, and lives on."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}") == VOICE:
                os.close(int(number))
    return "unheard"


@server.tool(annotations=READS)
def die_once() -> str:
    """Kills the process the first time it is called, as the journal knows."""
    note("die_once")
    if Path(os.environ["JOURNAL"]).read_text().count("die_once") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@server.tool()
async def grow(ctx: Context) -> str:
    """Adds a tool and says so."""
    server.add_tool(lambda: "fresh", name="fresh", description="New.")
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
def flood(megabytes: int) -> str:
    """Writes a lot to the standard error."""
    for _ in range(megabytes * 16):
        sys.stderr.write("x" * 65535 + "\n")
    sys.stderr.flush()
    return "flooded"


@server.tool()
def seen(ctx: Context) -> str:
    """The metadata that came with the call."""
    meta = ctx.request_context.meta or {}
    return str(meta.get("tenant"))


@server.prompt()
def greet(name: str) -> str:
    """A greeting."""
    return f"Greet {name} warmly."


@server.resource("shop://terms")
def terms() -> str:
    """The terms."""
    return "No refunds on Sundays."


@server.resource("shop://orders/{order}")
def order(order: str) -> str:
    """An order."""
    return f"order {order}"


if __name__ == "__main__":
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "family" in sys.argv:
        note(f"started {subprocess.Popen(['sleep', '600']).pid}")
    if "noisy" in sys.argv:
        print("welcome to the shop", flush=True)
    server.run("stdio")
    if "stubborn" in sys.argv:
        time.sleep(600)
