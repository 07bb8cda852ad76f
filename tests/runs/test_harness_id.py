"""The harness id of a program is in the metadata of its traces."""

from collections.abc import Iterator

import pytest

from standfast import (
    Agent,
    MultiProvider,
    OpenAIAgentRegistrationConfig,
    OpenAIProvider,
    RunConfig,
    Runner,
    set_default_openai_agent_registration,
    set_default_openai_harness,
)
from standfast.testing import ScriptedModel, assistant_message
from standfast.tracing import Trace, TracingProcessor, set_trace_processors


class TraceList(TracingProcessor):
    def __init__(self) -> None:
        self.metadata: list[object] = []

    def on_trace_start(self, trace: Trace) -> None:
        self.metadata.append(trace.metadata)

    def on_trace_end(self, trace) -> None: ...
    def on_span_start(self, span) -> None: ...
    def on_span_end(self, span) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


@pytest.fixture
def traces() -> Iterator[TraceList]:
    seen = TraceList()
    set_trace_processors([seen])
    yield seen
    set_trace_processors([])
    set_default_openai_agent_registration(None)


async def run(**config: object) -> None:
    agent = Agent(name="a", model=ScriptedModel([[assistant_message("x")]]))
    await Runner.run(agent, "x", run_config=RunConfig(**config))


async def test_the_default_harness_id_is_added_to_the_metadata_of_a_trace(traces):
    await run()
    set_default_openai_harness("mine")
    await run()
    await run(trace_metadata={"k": 1})
    await run(trace_metadata={"agent_harness_id": "other"})
    set_default_openai_harness("")
    await run()
    assert traces.metadata == [
        None,
        {"agent_harness_id": "mine"},
        {"k": 1, "agent_harness_id": "mine"},
        {"agent_harness_id": "other"},
        None,
    ]


async def test_a_provider_has_a_harness_id_of_its_own(traces):
    set_default_openai_agent_registration({"harness_id": "default"})
    await run(model_provider=OpenAIProvider(agent_registration=OpenAIAgentRegistrationConfig("own")))
    await run(model_provider=MultiProvider(openai_agent_registration={"harness_id": "multi"}))
    assert traces.metadata == [{"agent_harness_id": "own"}, {"agent_harness_id": "multi"}]


async def test_the_harness_id_of_the_environment_counts_without_a_default(traces, monkeypatch):
    monkeypatch.setenv("OPENAI_AGENT_HARNESS_ID", "env")
    await run()
    assert traces.metadata == [{"agent_harness_id": "env"}]


def test_an_object_that_is_not_a_registration_is_refused():
    with pytest.raises(TypeError, match="int"):
        set_default_openai_agent_registration(5)  # type: ignore[arg-type]
