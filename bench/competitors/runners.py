"""standfast and openai-agents: the same program except for its import. The argument is the name of the module."""

import gc
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.competitors.agent_library import SNAPSHOT, report


class Runners:
    def __init__(self, module: str) -> None:
        self.library: Any = importlib.import_module(module)
        self.testing: Any = importlib.import_module(f"{module}.testing")
        self.import_statement = f"import {module}; {module}.Runner"
        if module != "standfast":
            self.library.set_tracing_disabled(True)

    async def open_store(self, folder: Path, name: str) -> Any:
        session = self.library.SQLiteSession(name, folder / "sessions.db")
        await session.get_items()  # opening the file is not part of a turn
        return session

    async def close_store(self, store: Any) -> None:
        store.close()

    def agent(self, turns: int, *, approval: bool = False) -> Any:
        library, call = self.library, self.testing.function_call

        @library.function_tool
        async def add(a: int, b: int) -> int:
            return a + b

        @library.function_tool(needs_approval=True)
        async def ask() -> str:
            return "yes"

        steps = [[call("add", {"a": 1, "b": 2}, call_id=f"call_{turn}")] for turn in range(turns - 1)]
        last = call("ask", {}, call_id="last") if approval else self.testing.assistant_message("done")
        return library.Agent("worker", tools=[add, ask], model=self.make_model(iter([*steps, [last]])))

    def make_model(self, steps: Iterator[list[Any]]) -> Any:
        """Return a model that answers with the next step."""
        library = self.library

        class InstantModel(library.Model):  # type: ignore[misc]
            async def get_response(self, *_: Any, **__: Any) -> Any:
                usage = library.Usage(requests=1, input_tokens=1, output_tokens=1, total_tokens=2)
                return library.ModelResponse(output=next(steps), usage=usage, response_id="r")

            def stream_response(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

        return InstantModel()

    async def run(self, agent: Any, turns: int, store: Any) -> None:
        await self.library.Runner.run(agent, "go", max_turns=turns + 1, session=store)

    async def exchange(self, agent: Any, store: Any) -> None:
        await self.library.Runner.run(agent, "and then?", session=store)

    async def snapshot(self) -> tuple[float, int]:
        agent = self.agent(SNAPSHOT, approval=True)
        state = (await self.library.Runner.run(agent, "go", max_turns=SNAPSHOT + 1)).to_state()
        seconds = []
        for _ in range(5):
            gc.collect()
            start = time.process_time()
            await self.library.RunState.from_json(agent, state.to_json())
            seconds.append(time.process_time() - start)
        return min(seconds), len(state.to_string())


if __name__ == "__main__":
    report(Runners(sys.argv[1]))
