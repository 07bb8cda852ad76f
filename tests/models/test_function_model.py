"""A model that is a function."""

import pytest

from standfast import Agent, FunctionModel, InvalidInput, Runner, function_tool
from standfast.models import ModelRequest, call_model


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def reckon(request):
    last = request.input[-1]
    return f"it is {last['output']}" if "output" in last else FunctionModel.call("add", a=20, b=22)


async def test_it_answers_with_texts_and_calls():
    result = await Runner.run(Agent("a", model=FunctionModel(reckon), tools=[add]), "20 + 22?")
    assert result.final_output == "it is 42"


async def test_it_streams_the_same():
    result = Runner.run_streamed(Agent("a", model=FunctionModel(reckon), tools=[add]), "20 + 22?")
    kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
    assert result.final_output == "it is 42"
    assert "response.output_text.delta" in kinds


async def test_it_may_be_asynchronous_and_sees_the_whole_request():
    async def answer(request):
        return f"{request.system_instructions} {[tool.name for tool in request.tools]}"

    result = await Runner.run(Agent("a", instructions="Be.", model=FunctionModel(answer), tools=[add]), "hi")
    assert result.final_output == "Be. ['add']"


@pytest.mark.parametrize(("said", "kind"), [([7], "int"), (7, "int"), (None, "NoneType")])
async def test_what_is_no_answer_is_refused(said, kind):
    with pytest.raises(InvalidInput, match=f"texts or items, not {kind}"):
        await Runner.run(Agent("a", model=FunctionModel(lambda request: said)), "hi")


async def test_the_input_is_a_list_of_items_even_when_it_was_a_text():
    model = FunctionModel(lambda request: f"you said {request.input[-1]['content']}")
    assert (await call_model(model, ModelRequest("hello"))).output[0].content[0].text == "you said hello"
