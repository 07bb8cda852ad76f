"""langgraph: its prebuilt agent with a model that answers at once, for ``langgraph dev``."""

from typing import Any

from langchain_core.language_models import BaseChatModel  # type: ignore[import-not-found]
from langchain_core.messages import AIMessage  # type: ignore[import-not-found]
from langchain_core.outputs import ChatGeneration, ChatResult  # type: ignore[import-not-found]
from langgraph.prebuilt import create_react_agent  # type: ignore[import-not-found]


class InstantModel(BaseChatModel):  # type: ignore[misc]
    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, *_: Any, **__: Any) -> "InstantModel":
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("done"))])

    async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
        return self._generate()


graph = create_react_agent(InstantModel(), [])
