"""Count the modules that take part in five common operations, and the calls between them.

``python docs/count_paths.py`` prints the figures of the table in ``architecture.md``; ``-v`` names the modules.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

from standfast import Agent, FunctionModel, Runner, Runtime, function_tool, open_store
from standfast.models.function_model import FunctionRequest
from standfast.realtime import RealtimeAgent, RealtimeRunner
from standfast.testing import RealtimeServer
from standfast.workers import WorkerSession

# The server of the realtime session runs in this process, too.
OTHER_SIDE = ("standfast.testing", "standfast.realtime.local")


class CallCounter:
    """Counts the calls between modules in a ``with`` block, in all threads that start in it and in this one."""

    def __init__(self, package: str = "standfast") -> None:
        self._package = package
        self.modules: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> "CallCounter":
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        callee = self._get_module(frame)
        if event != "call" or not callee or frame.f_code.co_name.startswith("<"):
            return
        self.modules[callee] += 1
        caller = self._get_module(frame.f_back)
        if caller and caller != callee:
            self.pairs[caller, callee] += 1

    def _get_module(self, frame: FrameType | None) -> str:
        name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        return name if name.startswith(self._package) and not name.startswith(OTHER_SIDE) else ""

    def report(self, operation: str, *, at_least: int = 1) -> None:
        """Print the number of modules and pairs of modules that were called this often."""
        modules = sorted(name for name, count in self.modules.items() if count >= at_least)
        calls = [pair for pair, count in self.pairs.items() if count >= at_least]
        print(f"{operation}: {len(modules)} modules, {len(calls)} calls between modules")
        if "-v" in sys.argv:
            print("   ", *modules)


async def count_second(operation: str, work: Callable[[], Awaitable[Any]], package: str = "standfast") -> None:
    await work()
    with CallCounter(package) as counter:
        await work()
    counter.report(operation)


def make_agent(*, needs_approval: bool) -> Agent[Any]:
    @function_tool(needs_approval=needs_approval)
    def add(a: int, b: int) -> int:
        return a + b

    def decide(request: FunctionRequest) -> Any:
        has_output = any(item.get("type") == "function_call_output" for item in request.input)
        return "3" if has_output else FunctionModel.call("add", a=1, b=2)

    return Agent("adder", tools=[add], model=FunctionModel(decide))


async def count_run() -> None:
    agent = make_agent(needs_approval=False)
    await count_second("Runner.run with one tool call", lambda: Runner.run(agent, "1 + 2?"))


async def count_durable_run(directory: str) -> None:
    url = f"sqlite:///{directory}/runs.db"
    async with Runtime.open(url, agents=[make_agent(needs_approval=True)]) as runtime:

        async def work() -> None:
            run = await runtime.start("adder", "1 + 2?")
            await run.wait()
            [approval] = await runtime.approvals(run_id=run.id)
            await runtime.decide(approval.id, "approve")
            await run.wait()

        await count_second("start, approve, resume of a durable run", work, package="standfast.runtime")


async def count_audio() -> None:
    agent = RealtimeAgent(name="speaker", instructions="Talk.")
    async with RealtimeServer(["word " * 200] * 2) as server:
        session = await RealtimeRunner(agent).run(model_config={"url": server.url, "api_key": "test"})
        async with session:

            async def listen() -> int:
                await session.send_message("Talk.")
                deltas = 0
                async for event in session:
                    deltas += event.type == "audio"
                    if event.type == "agent_end":
                        break
                return deltas

            await listen()
            with CallCounter() as counter:
                deltas = await listen()
    counter.report("an audio delta", at_least=deltas * 19 // 20)


async def count_execution() -> None:
    async with WorkerSession() as session:
        await count_second('WorkerSession.run("1+1")', lambda: session.run("1+1"))


async def count_append(directory: str) -> None:
    async with open_store(f"sqlite:///{directory}/sessions.db") as store:
        session = store.session("user-7")
        await count_second("add_items to SQLite", lambda: session.add_items([{"role": "user", "content": "Hello."}]))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        await count_run()
        await count_durable_run(directory)
        await count_audio()
        await count_execution()
        await count_append(directory)


if __name__ == "__main__":
    asyncio.run(main())
