"""Names of output types, schemas of plain text, origins of tools, disabled traces and events of voice."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar, Union

import pytest
from openai.types.responses.response_compaction_item import ResponseCompactionItem
from pydantic import BaseModel

Value = TypeVar("Value")


class Order(BaseModel):
    number: int


class Page(BaseModel, Generic[Value]):
    entries: list[Value]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (int, "int"),
        (Order, "Order"),
        (list[Order], "list[Order]"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (Page[Order], "Page[Order]"),
        (Optional[int], "Union[int, NoneType]"),  # noqa: UP045
        (int | None, "UnionType[int, NoneType]"),
        (Union[Order, str], "Union[Order, str]"),  # noqa: UP007
        (Literal["a", "b"], "Literal['a', 'b']"),
        (Annotated[int, "x"], "Annotated[int, 'x']"),
        (tuple[int, ...], "tuple[int, Ellipsis]"),
        (str, "str"),
        (None, "None"),
    ],
)
def test_an_output_type_is_named_without_modules(lib: Any, kind: Any, name: str) -> None:
    assert lib.AgentOutputSchema(kind, strict_json_schema=False).name() == name


@pytest.mark.parametrize("kind", [str, None])
def test_a_schema_of_plain_text_reads_json(lib: Any, kind: Any) -> None:
    schema = lib.AgentOutputSchema(kind)
    assert schema.is_plain_text()
    with pytest.raises(lib.UserError):
        schema.json_schema()
    with pytest.raises(lib.ModelBehaviorError):
        schema.validate_json("hello")
    assert schema.validate_json('"hello"' if kind else "null") == ("hello" if kind else None)


async def test_an_agent_with_a_schema_of_plain_text_answers_with_text(lib: Any) -> None:
    model = lib.ScriptedModel([[lib.assistant_message("hi")]])
    agent = lib.Agent(name="a", output_type=lib.AgentOutputSchema(str), model=model)
    assert (await lib.Runner.run(agent, "x")).final_output == "hi"


async def test_items_know_the_origin_of_their_tool(lib: Any) -> None:
    @lib.function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    helper = lib.Agent(name="helper", model=lib.ScriptedModel([[lib.assistant_message("yes")]]))
    calls = [lib.function_call("pay", {}, call_id="1"), lib.function_call("ask", {"input": "q"}, call_id="2")]
    model = lib.ScriptedModel([calls, [lib.assistant_message("done")]])
    tools = [pay, helper.as_tool(tool_name="ask", tool_description="Ask.")]
    agent = lib.Agent(name="a", tools=tools, model=model)
    result = await lib.Runner.run(agent, "x")
    (waiting,) = result.interruptions
    function, nested = lib.ToolOriginType.FUNCTION, lib.ToolOriginType.AGENT_AS_TOOL
    assert str(function) == "ToolOriginType.FUNCTION"
    assert waiting.tool_origin == lib.ToolOrigin(type=function)
    state = result.to_state()
    state.reject(waiting)
    items = (await lib.Runner.run(agent, state)).new_items
    origins = [(item.type, item.tool_origin.type) for item in items if getattr(item, "tool_origin", None)]
    assert origins == [
        ("tool_call_item", function),
        ("tool_call_item", nested),
        ("tool_approval_item", function),
        ("tool_call_output_item", nested),
        ("tool_call_output_item", function),
    ]


def test_a_disabled_trace_has_no_ids_and_takes_no_errors(lib: Any) -> None:
    with lib.trace("off", disabled=True) as trace, lib.custom_span("x", {"a": 1}) as span:
        span.set_error({"message": "m", "data": None})
        assert (trace.name, trace.trace_id, trace.export()) == ("no-op", "no-op", None)
        assert (span.span_id, span.trace_id, span.export(), span.error) == ("no-op", "no-op", None, None)
        assert (span.started_at, span.ended_at, span.parent_id) == (None, None, None)
        assert lib.get_current_span() is span
        assert lib.get_current_trace() is trace
    assert span.ended_at is None


async def test_a_compaction_item_of_the_model_has_no_event_of_its_own(lib: Any) -> None:
    compaction = ResponseCompactionItem(id="c1", type="compaction", encrypted_content="e")
    output = [compaction, lib.assistant_message("hi")]
    result = await lib.Runner.run(lib.Agent(name="a", model=lib.ScriptedModel([output])), "x")
    assert [item.type for item in result.new_items] == ["compaction_item", "message_output_item"]


SENTENCE = "This is a rather long sentence that is spoken. "


def make_pipeline(lib: Any, parts: list[Any], fail_at: int) -> Any:
    class Workflow(lib.VoiceWorkflowBase):  # type: ignore[misc]
        async def run(self, transcription: str) -> AsyncIterator[str]:
            for part in parts:
                if isinstance(part, Exception):
                    raise part
                yield part

    class Recognition(lib.STTModel):  # type: ignore[misc]
        model_name = "stt"

        async def transcribe(self, *_: Any) -> str:
            return "hello"

        create_session: Callable[..., Any] = transcribe

    class Speech(lib.TTSModel):  # type: ignore[misc]
        model_name = "tts"
        count = 0

        async def run(self, text: str, settings: Any) -> AsyncIterator[bytes]:
            self.count += 1
            if self.count == fail_at:
                raise RuntimeError("no voice")
            yield b"\0" * 4800

    config = lib.VoicePipelineConfig(tracing_disabled=True)
    return lib.VoicePipeline(workflow=Workflow(), stt_model=Recognition(), tts_model=Speech(), config=config)


@pytest.mark.parametrize(
    ("parts", "fail_at", "events"),
    [
        ([], 0, ["session_ended"]),
        ([SENTENCE] * 2, 0, ["turn_started", "audio", "audio", "turn_ended", "session_ended"]),
        ([SENTENCE, ValueError("no answer")], 0, ["turn_started", "no answer"]),
        ([ValueError("no answer")], 0, ["no answer"]),
        ([SENTENCE] * 2, 1, ["turn_started", "session_ended", "no voice"]),
        ([SENTENCE] * 2, 2, ["turn_started", "audio", "session_ended", "no voice"]),
    ],
)
async def test_a_session_of_the_voice_pipeline_ends_unless_its_workflow_failed(
    lib: Any, parts: list[Any], fail_at: int, events: list[str]
) -> None:
    numpy = pytest.importorskip("numpy")
    audio = lib.AudioInput(buffer=numpy.zeros(2400, dtype=numpy.int16))
    result, seen = await make_pipeline(lib, parts, fail_at).run(audio), []
    try:
        async for event in result.stream():
            seen += [getattr(event, "event", "audio")]
    except (RuntimeError, ValueError) as error:
        seen.append(str(error))
    assert seen == events
