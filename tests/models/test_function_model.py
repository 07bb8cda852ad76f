"""The model that is a Python function."""

import pytest

from standfast import Agent, FunctionModel, InvalidInput, Runner, function_tool
from standfast.models import ModelRequest, call_model


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def add_numbers(request):
    last = request.input[-1]
    return f"it is {last['output']}" if "output" in last else FunctionModel.call("add", a=20, b=22)


async def test_a_function_model_returns_texts_and_calls():
    result = await Runner.run(Agent("a", model=FunctionModel(add_numbers), tools=[add]), "20 + 22?")
    assert result.final_output == "it is 42"


async def test_a_function_model_streams_the_same_response():
    result = Runner.run_streamed(Agent("a", model=FunctionModel(add_numbers), tools=[add]), "20 + 22?")
    kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
    assert result.final_output == "it is 42"
    assert "response.output_text.delta" in kinds


async def test_the_function_may_be_async_and_receives_the_request():
    async def answer(request):
        return f"{request.system_instructions} {[tool.name for tool in request.tools]}"

    result = await Runner.run(Agent("a", instructions="Be.", model=FunctionModel(answer), tools=[add]), "hi")
    assert result.final_output == "Be. ['add']"


@pytest.mark.parametrize(("output", "kind"), [([7], "int"), (7, "int"), (None, "NoneType")])
async def test_an_invalid_return_value_is_rejected(output, kind):
    with pytest.raises(InvalidInput, match=f"texts or items, got {kind}"):
        await Runner.run(Agent("a", model=FunctionModel(lambda request: output)), "hi")


async def test_the_input_is_always_a_list_of_items():
    model = FunctionModel(lambda request: f"you said {request.input[-1]['content']}")
    assert (await call_model(model, ModelRequest("hello"))).output[0].content[0].text == "you said hello"
