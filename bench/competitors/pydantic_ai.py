"""pydantic-ai. It has no stored conversations: the program passes messages from run to run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_ai import Agent  # type: ignore[import-not-found]
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart  # type: ignore[import-not-found]
from pydantic_ai.models import Model  # type: ignore[import-not-found]
from pydantic_ai.usage import RequestUsage, UsageLimits  # type: ignore[import-not-found]

from bench.competitors.agent_library import report


class InstantModel(Model):  # type: ignore[misc]
    """A replacement of ``FunctionModel``, which counts the words of the whole conversation at every request."""

    model_name = "instant"
    system = "bench"

    def __init__(self, steps: Iterator[list[Any]]) -> None:
        super().__init__()
        self.steps = steps

    async def request(self, *_: Any, **__: Any) -> ModelResponse:
        return ModelResponse(parts=next(self.steps), usage=RequestUsage(input_tokens=1, output_tokens=1))


async def add(a: int, b: int) -> int:
    return a + b


class PydanticAI:
    import_statement = "import pydantic_ai; pydantic_ai.Agent"

    async def open_store(self, folder: Path, name: str) -> None:
        return None

    async def close_store(self, store: Any) -> None:
        pass

    def agent(self, turns: int) -> Any:
        steps = [[ToolCallPart("add", {"a": 1, "b": 2}, tool_call_id=f"call_{turn}")] for turn in range(turns - 1)]
        return Agent(InstantModel(iter([*steps, [TextPart("done")]])), tools=[add])

    async def run(self, agent: Any, turns: int, store: Any) -> None:
        await agent.run("go", usage_limits=UsageLimits(request_limit=None))

    async def exchange(self, agent: Any, store: Any) -> None:
        raise NotImplementedError

    async def snapshot(self) -> None:
        return None


if __name__ == "__main__":
    report(PydanticAI())
