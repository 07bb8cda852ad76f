"""The scripted model."""

import subprocess
import sys
from typing import Any

import pytest

from standfast import ModelResponse, ModelSettings, RequestUsage, Usage
from standfast.base.usage import InputTokensDetails, OutputTokensDetails
from standfast.models import AttributeDict, ModelRequest, call_model
from standfast.models.interface import parse_final_event
from standfast.testing import (
    InvalidModelStep,
    ModelStep,
    ScriptedModel,
    UnconsumedModelSteps,
    UnexpectedModelCall,
    assistant_message,
    function_call,
)


async def collect_events(model: ScriptedModel, request: ModelRequest | None = None) -> list[Any]:
    return [event async for event in (request or ModelRequest("x")).send_to(model.stream_response)]


async def test_steps_are_played_in_order_and_calls_are_recorded() -> None:
    model = ScriptedModel([[function_call("f", {"a": 1}, call_id="c1")], [assistant_message("done")]])
    first = await call_model(model, ModelRequest("hello", system_instructions="s", conversation_id="conv"))
    second = await call_model(model, ModelRequest([{"role": "user", "content": "more"}]))
    assert first.output[0].arguments == '{"a":1}'
    assert second.output[0].content[0].text == "done"
    assert second.items == [assistant_message("done")]
    assert type(second.items[0]) is dict
    assert model.first_call is not None
    assert (model.first_call.input, model.first_call.conversation_id, model.first_call.streamed) == (
        "hello",
        "conv",
        False,
    )
    assert model.last_call is model.calls[1]
    model.assert_complete()


async def test_a_stream_contains_the_same_response() -> None:
    output = [
        AttributeDict(id="rs", type="reasoning", summary=[{"type": "summary_text", "text": "hm"}]),
        assistant_message("hello world"),
        function_call("f", '{"a":1}', call_id="c1", namespace="n"),
        AttributeDict(id="ws", type="web_search_call", status="completed"),
    ]
    step = ModelStep(output, Usage(requests=1, input_tokens=3, output_tokens=4, total_tokens=7), request_id="req")
    model = ScriptedModel([step, step])
    complete = await call_model(model, ModelRequest("x"))
    events = await collect_events(model)
    answer = parse_final_event(events[-1])
    assert answer is not None
    assert answer == complete
    assert answer.items == output
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    assert [event.sequence_number for event in events] == list(range(len(events)))
    [text] = [event for event in events if event.type == "response.output_text.delta"]
    assert (text.delta, text.item_id, text.output_index) == ("hello world", "scripted-message", 1)


async def test_a_step_may_define_its_events() -> None:
    async def make_events(call: Any) -> Any:
        yield {"type": "response.output_text.delta", "delta": call.input}

    output = [assistant_message("q")]
    model = ScriptedModel(
        [ModelStep.stream([{"type": "x"}]), ModelStep.stream(make_events), ModelStep.stream([], output=output)]
    )
    assert (await collect_events(model))[0].type == "x"
    assert (await collect_events(model, ModelRequest("hi")))[0].delta == "hi"
    assert (await call_model(model, ModelRequest("x"))).output == output


async def test_a_step_may_be_a_function_of_the_call() -> None:
    async def later(call: Any) -> Any:
        return ModelStep.respond(lambda again: [assistant_message(again.input)])

    model = ScriptedModel([ModelStep.respond(later), ModelStep.respond(lambda call: ValueError("no"))])
    assert (await call_model(model, ModelRequest("echo"))).output[0].content[0].text == "echo"
    with pytest.raises(ValueError, match="no"):
        await call_model(model, ModelRequest("x"))


async def test_steps_are_counted_as_requests() -> None:
    counted = Usage(requests=1, input_tokens=3, total_tokens=3)
    model = ScriptedModel([[], [], ModelResponse([], Usage(requests=2), "r")], default_usage=counted)
    first, second = await call_model(model, ModelRequest("x")), await call_model(model, ModelRequest("x"))
    assert first.usage == second.usage == counted
    first.usage.add(second.usage)
    assert counted.input_tokens == 3
    assert (await call_model(model, ModelRequest("x"))).usage.requests == 2
    model.set_default_usage(None)
    model.enqueue([])
    assert (await call_model(model, ModelRequest("x"))).usage == Usage(requests=1)


async def test_a_call_too_many_and_a_step_too_many_are_errors() -> None:
    model = ScriptedModel([[assistant_message("a")]])
    with pytest.raises(UnconsumedModelSteps) as unconsumed:
        model.assert_complete()
    assert unconsumed.value.remaining_steps == model.remaining_steps == 1
    await call_model(model, ModelRequest("x"))
    with pytest.raises(UnexpectedModelCall) as unexpected:
        await collect_events(model, ModelRequest("again", model_settings=ModelSettings(temperature=1)))
    assert (unexpected.value.call_index, unexpected.value.call.input, unexpected.value.call.streamed) == (
        1,
        "again",
        True,
    )


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("text", "invalid_input"),
        (3, "invalid_input"),
        ([3], "invalid_input"),
        (None, "invalid_input"),
        (assistant_message("bare"), "invalid_input"),
        ({"outptu": []}, "unsupported_field"),
        (ModelStep(error="no"), "invalid_error"),  # type: ignore[arg-type]
        (ModelStep(responder=3), "invalid_responder"),  # type: ignore[arg-type]
        (ModelStep(stream_events="no"), "invalid_stream_events"),
        (ModelStep(retry_advice=True), "invalid_retry_advice"),  # type: ignore[arg-type]
        (ModelStep(error=ValueError(), responder=lambda call: []), "conflicting_outcomes"),
    ],
)
def test_an_invalid_step_is_rejected_when_it_is_added(step: Any, reason: str) -> None:
    model = ScriptedModel()
    with pytest.raises(InvalidModelStep) as caught:
        model.extend([[assistant_message("fine")], step])
    assert (caught.value.reason, caught.value.input_index, model.remaining_steps) == (reason, 1, 0)


def test_the_scripted_model_does_not_need_the_openai_library() -> None:
    code = """
import sys, asyncio
sys.modules["openai"] = None
from standfast.testing import ScriptedModel, assistant_message
from standfast.models import ModelRequest, call_model
print(asyncio.run(call_model(ScriptedModel([[assistant_message("hi")]]), ModelRequest("x"))).output[0].content[0].text)
"""
    path = {"PYTHONPATH": ":".join(sys.path)}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    assert process.stdout.strip() == "hi"


async def test_events_are_objects_of_the_openai_package_for_programs_that_use_its_types() -> None:
    from openai.types.responses import ResponseCompletedEvent, ResponseOutputMessage, ResponseTextDeltaEvent

    typed = ResponseOutputMessage.model_validate(assistant_message("typed").model_dump())
    model = ScriptedModel([[assistant_message("hello")], [typed]])
    events = await collect_events(model)
    [delta] = [event for event in events if isinstance(event, ResponseTextDeltaEvent)]
    assert (delta.delta, delta.item_id) == ("hello", "scripted-message")
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert events[-1].response.output == [assistant_message("hello")]
    done = (await collect_events(model))[-1]
    assert done.response.output[0] is typed


def test_events_are_dicts_with_attributes_until_openai_is_imported() -> None:
    program = """
import asyncio, sys
from standfast import Agent, FunctionModel, Runner

async def main():
    result = Runner.run_streamed(Agent(name="a", model=FunctionModel(lambda request: "hi")), "x")
    kinds = {type(event.data).__name__ async for event in result.stream_events() if event.type == "raw_response_event"}
    assert kinds == {"AttributeDict"}, kinds
    assert "openai" not in sys.modules

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_the_requests_of_a_usage_are_kept_in_a_stream() -> None:
    entry = RequestUsage(2, 1, 3, InputTokensDetails(), OutputTokensDetails())
    usage = Usage(requests=2, input_tokens=4, output_tokens=2, total_tokens=6, request_usage_entries=[entry, entry])
    events = await collect_events(ScriptedModel([ModelStep([assistant_message("x")], usage)]))
    response = parse_final_event(events[-1])
    assert response is not None
    assert response.usage == usage
