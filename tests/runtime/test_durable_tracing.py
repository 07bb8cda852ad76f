"""A run stays in its trace, whichever processes drive it."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import standfast
from factories.runtime import Refunds, only_approval, reply, tool_calls, wait_for
from standfast import Agent, RunConfig, Runtime, function_tool
from standfast.testing import ScriptedModel
from telemetry import ExportedSpans

SRC = str(Path(standfast.__file__).parent.parent)
LEASE = 0.4

DIES = """if True:
    import asyncio, os, signal, sys
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from standfast import Agent, RunConfig, Runtime, function_tool
    from standfast.testing import ScriptedModel, function_call

    @function_tool(idempotent=True)
    async def charge() -> str:
        print(exporter.get_finished_spans()[0].context.trace_id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    async def main(url):
        model = ScriptedModel([[function_call("charge", {}, call_id="c1")]])
        config = RunConfig(workflow_name="Shop", group_id="chat-1")
        agents = [Agent("shop", tools=[charge], model=model)]
        async with Runtime.open(url, agents=agents, lease=0.4, run_config=config) as runtime:
            run = await runtime.start("shop", "charge", session_id="s", key="order-7")
            await run.wait()

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    asyncio.run(main(sys.argv[1]))
"""


@function_tool(idempotent=True)
async def charge() -> str:
    return "charged"


async def test_a_run_whose_process_was_killed_continues_in_its_trace(shared_url: str, exported: ExportedSpans) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", DIES, shared_url],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": SRC, "PATH": ""},
        check=False,
    )
    assert done.returncode == -9, done.stderr
    agent: Agent[Any] = Agent("shop", tools=[charge], model=ScriptedModel([reply("done")]))
    async with Runtime.open(shared_url, agents=[agent], lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        assert (await wait_for(run.wait())).final_output == "done"
    assert exported.named("execute_tool charge")
    assert {str(span.context.trace_id) for span in exported.spans} == {done.stdout.strip()}
    assert exported.named("invoke_workflow Agent workflow").attributes["gen_ai.conversation.id"] == "chat-1"


async def test_a_run_that_waited_continues_in_its_trace(shared_url: str, exported: ExportedSpans) -> None:
    refunds = Refunds()
    async with Runtime.open(shared_url, agents=[refunds.agent()]) as runtime:
        run = await runtime.start("support", "refund 7", session_id="s")
        await wait_for(run.wait())
        asked = await only_approval(runtime)
    async with Runtime.open(shared_url, agents=[refunds.agent(reply("done"))]) as runtime:
        await runtime.decide(asked.id, "approve")
        assert (await wait_for((await runtime.run(run.id)).wait())).final_output == "done"
        first, second = [span for span in exported.spans if span.name.startswith("invoke_workflow")]
        assert second.parent.span_id == first.context.span_id
        assert {span.context.trace_id for span in exported.spans} == {first.context.trace_id}


async def test_a_fork_has_a_trace_of_its_own(tmp_path: Path, exported: ExportedSpans) -> None:
    agent: Agent[Any] = Agent(
        "shop", tools=[charge], model=ScriptedModel([tool_calls(("charge", {}, "c1")), reply("done"), reply("again")])
    )
    config = RunConfig(workflow_name="Shop")
    async with Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", agents=[agent], run_config=config) as runtime:
        run = await runtime.start("shop", "charge", session_id="s")
        assert (await wait_for(run.wait())).final_output == "done"
        [made] = [event.seq async for event in run.events() if event.type == "calls.made"]
        other = await runtime.fork(run.id, at=made)
        assert (await wait_for(other.wait())).final_output == "again"
    first, second = [span for span in exported.spans if span.name.startswith("invoke_workflow")]
    assert first.context.trace_id != second.context.trace_id
