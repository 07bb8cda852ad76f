"""langgraph: its prebuilt agent with its SQLite checkpointer."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel  # type: ignore[import-not-found]
from langchain_core.messages import AIMessage  # type: ignore[import-not-found]
from langchain_core.outputs import ChatGeneration, ChatResult  # type: ignore[import-not-found]
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # type: ignore[import-not-found]
from langgraph.prebuilt import create_react_agent  # type: ignore[import-not-found]

from bench.competitors.agent_library import report

warnings.simplefilter("ignore")


class InstantModel(BaseChatModel):  # type: ignore[misc]
    steps: Any

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, *_: Any, **__: Any) -> "InstantModel":
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=next(self.steps))])

    async def _agenerate(self, *_: Any, **__: Any) -> ChatResult:
        return self._generate()


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class LangGraph:
    import_statement = "import langgraph.prebuilt; langgraph.prebuilt.create_react_agent"

    async def open_store(self, folder: Path, name: str) -> Any:
        owner = AsyncSqliteSaver.from_conn_string(str(folder / f"{name}.db"))
        saver = await owner.__aenter__()
        await saver.setup()
        return owner, saver

    async def close_store(self, store: Any) -> None:
        await store[0].__aexit__(None, None, None)

    def agent(self, turns: int) -> Any:
        return self.messages(turns)

    def messages(self, turns: int) -> Iterator[AIMessage]:
        for turn in range(turns - 1):
            call = {"name": "add", "args": {"a": 1, "b": 2}, "id": f"call_{turn}", "type": "tool_call"}
            yield AIMessage("", tool_calls=[call])
        yield AIMessage("done")

    async def run(self, agent: Any, turns: int, store: Any) -> None:
        graph = create_react_agent(InstantModel(steps=agent), [add], checkpointer=store and store[1])
        config = {"recursion_limit": 2 * turns + 5, "configurable": {"thread_id": "one"}}
        await graph.ainvoke({"messages": [("user", "go")]}, config)

    async def exchange(self, agent: Any, store: Any) -> None:
        await self.run(agent, 1, store)

    async def snapshot(self) -> None:
        return None


if __name__ == "__main__":
    report(LangGraph())
