"""A model that answers nonsense raises a typed error that names the location, and the run can be resumed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from factories.runs import MinimalSession, run_agent
from standfast import (
    Agent,
    Model,
    ModelBehaviorError,
    ModelResponse,
    Runner,
    RunState,
    SQLiteSession,
    Usage,
    UserError,
    function_tool,
)
from standfast.testing import ScriptedModel, assistant_message, function_call


class Saying(Model):
    """A model that violates the interface of models."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def get_response(self, *_: Any, **__: Any) -> Any:
        return self.answer

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield {"type": "response.completed", "response": {"output": self.answer.output, "id": "r", "usage": None}}


@function_tool
async def add(a: int, b: int) -> int:
    return a + b


def message(*content: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(content)}


def calling(**parts: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": "add", "call_id": "1", "arguments": "{}", **parts}


OUTPUTS = [
    ([None], "got NoneType"),
    (["hi"], "got str"),
    ([{}], r"output\[0\]\.type"),
    ([message(), {"type": 7}], r"output\[1\]\.type"),
    ([{"type": "message", "content": "hi"}], r"output\[0\]\.content"),
    ([message(5)], r"content\[0\]"),
    ([message({"type": "output_text", "text": 5})], r"content\[0\]"),
    ([message({"type": "refusal"})], r"content\[0\]"),
    ([{**message(), "x": object()}], r"output\[0\]\.x: object objects cannot be stored as JSON"),
    ([{**message(), "x": float("nan")}], r"output\[0\]\.x: nan cannot be stored as JSON"),
    ([calling(call_id=5)], "call_id"),
    ([calling(call_id="")], "call_id"),
    ([calling(name=None)], "name"),
    ([calling(arguments={"a": 1})], "arguments of the call '1'"),
    ([calling(), calling(arguments='{"a": 1}')], "two calls with the id '1'"),
    ([{"type": "shell_call", "call_id": "1", "action": {}}], "no tool for a shell_call"),
]


@pytest.mark.parametrize("way", ["run", "streamed"])
@pytest.mark.parametrize(("output", "said"), OUTPUTS, ids=[said for _, said in OUTPUTS])
async def test_a_malformed_response_raises_a_typed_error_with_its_location(output: Any, said: str, way: str) -> None:
    agent, session = Agent("a", tools=[add], model=Saying(ModelResponse(output, Usage(), "r"))), MinimalSession()
    with pytest.raises(ModelBehaviorError, match=said) as raised:
        await run_agent(way, agent, "q", session=session)
    assert [item["role"] for item in session.items] == ["user"]
    state = await RunState.from_string(agent, raised.value.run_data.state.to_string())
    agent.model = ScriptedModel([[assistant_message("better")]])
    assert (await Runner.run(agent, state, session=session)).final_output == "better"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "got NoneType"),
        ({"output": []}, "got dict"),
        (ModelResponse(None, Usage(), None), "must be a list, got NoneType"),  # type: ignore[arg-type]
        (ModelResponse([], None, None), "must be a Usage"),  # type: ignore[arg-type]
        (ModelResponse([], Usage(), 5), "response_id"),  # type: ignore[arg-type]
    ],
)
async def test_a_response_of_another_type_raises_a_typed_error(answer: Any, said: str) -> None:
    with pytest.raises(ModelBehaviorError, match=said):
        await Runner.run(Agent("a", model=Saying(answer)), "q")


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_half_characters_are_replaced_wherever_they_come_from(way: str) -> None:
    @function_tool
    async def read(name: str) -> Any:
        return f"{name}: a\udcffb"

    @function_tool
    async def read_parts() -> Any:
        return [{"type": "text", "text": "c\ud83dd"}]

    cut = message({"type": "output_text", "text": "smile \ud83d", "annotations": []})
    calls = [
        function_call("read", '{"name": "\ud83d\ude00 \ud83d"}', call_id="1"),
        function_call("read_parts", {}, call_id="2"),
    ]
    agent = Agent("a", tools=[read, read_parts], model=ScriptedModel([calls, [cut]]))
    session = SQLiteSession("s")
    result = await run_agent(way, agent, "q", session=session)
    assert result.final_output == "smile \ufffd"
    stored = await session.get_items()
    assert [item["output"] for item in stored[3:5]] == [
        "\U0001f600 \ufffd: a\ufffdb",
        [{"type": "input_text", "text": "c\ufffdd"}],
    ]
    loaded = await RunState.from_string(agent, result.to_state().to_string())
    assert loaded.to_json() == result.to_state().to_json()
    agent.model = ScriptedModel([[assistant_message("again")]])
    assert (await Runner.run(agent, result.to_input_list())).final_output == "again"


@pytest.mark.parametrize("given", ["\ud800", [{"role": "user", "content": "\ud800"}]])
async def test_half_characters_in_the_input_are_refused_at_once(given: Any) -> None:
    with pytest.raises(UserError, match=r"items\[0\]\.content: the text is not valid Unicode"):
        await Runner.run(Agent("a", model=ScriptedModel([])), given)


async def test_a_huge_output_goes_through_session_and_snapshot() -> None:
    @function_tool
    async def dump() -> str:
        return "x" * 5_000_000

    model = ScriptedModel([[function_call("dump", {}, call_id="1")], [assistant_message("much")]])
    agent, session = Agent("a", tools=[dump], model=model), SQLiteSession("s")
    result = await Runner.run(agent, "q", session=session)
    assert len((await session.get_items())[2]["output"]) == 5_000_000
    text = result.to_state().to_string()
    assert len(text) < 5_100_000
    assert (await RunState.from_string(agent, text)).to_string() == text
