import asyncio

from agents import Agent, Runner, custom_span, trace
from agents.tracing import add_trace_processor
from agents.tracing.processor_interface import TracingProcessor


class Names(TracingProcessor):
    def on_trace_start(self, trace):
        print("trace", trace.name)

    def on_trace_end(self, trace):
        print("trace ended")

    def on_span_start(self, span): ...

    def on_span_end(self, span):
        if span.span_data.type == "custom":
            print("span", span.span_data.name)

    def shutdown(self): ...
    def force_flush(self): ...


add_trace_processor(Names())
agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    with trace("work"), custom_span("mine"):
        print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
