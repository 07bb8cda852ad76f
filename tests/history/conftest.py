from collections.abc import AsyncIterator

import pytest
from branching_kit import opened
from sealing_kit import backend, file

from openai_server import OpenAIServer

__all__ = ["backend", "file", "opened"]


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer.running() as running:
        yield running
