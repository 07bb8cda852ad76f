from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from model_server import ModelServer, run_model_server


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with run_model_server() as server:
        yield server


@pytest.fixture
async def client(server: ModelServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client
