import asyncio

from agents import (
    Agent,
    OpenAIAgentRegistrationConfig,
    OpenAIProvider,
    RunConfig,
    Runner,
    set_default_openai_agent_registration,
    set_default_openai_harness,
)
from agents.tracing import TracingProcessor, set_trace_processors


class Printer(TracingProcessor):
    def on_trace_start(self, trace):
        print(trace.export()["metadata"])

    def on_trace_end(self, trace): ...
    def on_span_start(self, span): ...
    def on_span_end(self, span): ...
    def shutdown(self): ...
    def force_flush(self): ...


async def main() -> None:
    agent = Agent(name="Assistant", model="gpt-4.1")
    set_default_openai_harness("my-harness")
    await Runner.run(agent, "Hello", run_config=RunConfig(trace_metadata={"release": "1"}))
    provider = OpenAIProvider(agent_registration=OpenAIAgentRegistrationConfig(harness_id="of-the-provider"))
    await Runner.run(agent, "Hello", run_config=RunConfig(model_provider=provider))
    set_default_openai_agent_registration(None)
    await Runner.run(agent, "Hello")


set_trace_processors([Printer()])
asyncio.run(main())
