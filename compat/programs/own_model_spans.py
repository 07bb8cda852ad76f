import asyncio

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    generation_span,
    set_trace_processors,
)
from agents.testing import assistant_message, function_call
from agents.tracing import TracingProcessor


class Printer(TracingProcessor):
    def on_trace_start(self, trace):
        print("trace", trace.name)

    def on_trace_end(self, trace):
        print("end", trace.name)

    def on_span_start(self, span):
        pass

    def on_span_end(self, span):
        exported = span.export()
        print(exported["span_data"], exported["error"])

    def shutdown(self):
        pass

    def force_flush(self):
        pass


class OwnModel(Model):
    """Answers with a call first, then with a text."""

    def __init__(self) -> None:
        self.count = 0

    async def get_response(self, *args, **kwargs):
        self.count += 1
        if self.count == 3:
            raise RuntimeError("no more answers")
        with generation_span(model="own", model_config={"n": self.count}) as span:
            answer = function_call("look", {}, call_id="1") if self.count == 1 else assistant_message("seen")
            span.span_data.output = [{"n": self.count}]
            usage = Usage(requests=1, input_tokens=self.count, output_tokens=1, total_tokens=self.count + 1)
            return ModelResponse(output=[answer], usage=usage, response_id=None)

    async def stream_response(self, *args, **kwargs):
        yield None


@function_tool
def look() -> str:
    """Look."""
    return "a view"


async def main() -> None:
    set_trace_processors([Printer()])
    agent, config = Agent(name="A", model=OwnModel(), tools=[look]), RunConfig(trace_include_sensitive_data=True)
    print((await Runner.run(agent, "hi", run_config=config)).final_output)
    try:
        await Runner.run(agent, "again", run_config=config)
    except RuntimeError as error:
        print(error)


asyncio.run(main())
