"""google-adk: an agent whose model answers at once, for ``adk api_server``."""

from collections.abc import AsyncIterator
from typing import Any

from google.adk.agents import Agent  # type: ignore[import-not-found]
from google.adk.models import BaseLlm, LlmResponse  # type: ignore[import-not-found]
from google.genai import types  # type: ignore[import-not-found]


class InstantModel(BaseLlm):  # type: ignore[misc]
    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="done")]))


root_agent = Agent(name="instant", model=InstantModel(model="instant"))
