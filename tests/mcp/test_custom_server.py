"""Servers that are subclasses of ``MCPServer``."""

import asyncio
from typing import Any

import pytest

from factories.mcp import DoublingServer
from standfast import Agent, MCPToolCancellationError, Runner
from standfast.mcp import MCPServer
from standfast.testing import ScriptedModel, assistant_message, function_call


def make_agent(server: MCPServer, arguments: str = '{"n": 4}') -> Agent[Any]:
    call = function_call("double", arguments, call_id="c")
    return Agent("a", mcp_servers=[server], model=ScriptedModel([[call], [assistant_message("done")]]))


async def test_a_custom_server_works() -> None:
    result = await Runner.run(make_agent(DoublingServer()), "double 4")
    assert result.new_items[1].output == {"type": "text", "text": "8"}


async def test_a_server_that_cancels_the_call_does_not_cancel_the_run() -> None:
    with pytest.raises(MCPToolCancellationError, match="'own' cancelled the call of 'double'"):
        await Runner.run(make_agent(DoublingServer(asyncio.CancelledError(), failure_error_function=None)), "double 4")


async def test_the_model_gets_an_error_for_arguments_that_are_not_an_object() -> None:
    result = await Runner.run(make_agent(DoublingServer(), "[4]"), "double 4")
    assert "a JSON object is expected, not list" in result.new_items[1].output
