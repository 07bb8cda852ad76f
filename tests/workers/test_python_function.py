"""``python_function`` with the tool decorator and runner of another framework."""

import pytest

from standfast.workers import PoolConfig, SessionPool, python_function

agents = pytest.importorskip("agents")


class Scripted(agents.Model):
    """A model that calls the tool twice and then repeats the output of the tool."""

    def __init__(self):
        self.turn = 0

    async def get_response(self, system_instructions, input, model_settings, tools, *args, **kwargs):
        from agents.items import ModelResponse
        from agents.usage import Usage
        from openai.types.responses import (
            ResponseFunctionToolCall,
            ResponseOutputMessage,
            ResponseOutputText,
        )

        self.turn += 1
        codes = {1: '{"code": "x = 6 * 7"}', 2: '{"code": "print(\'x is\', x)"}'}
        if self.turn in codes:
            output = [
                ResponseFunctionToolCall(
                    type="function_call",
                    call_id=f"c{self.turn}",
                    name=tools[0].name,
                    arguments=codes[self.turn],
                )
            ]
        else:
            output_text = [item["output"] for item in input if item.get("type") == "function_call_output"][-1]
            text = ResponseOutputText(type="output_text", text=output_text, annotations=[])
            output = [
                ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def test_an_agent_of_another_framework_runs_python_that_persists():
    agents.set_tracing_disabled(True)
    async with SessionPool(PoolConfig(min_idle=1, max_sessions=2)) as pool:
        run_python = python_function(pool)
        tool = agents.function_tool(run_python)
        assert "code" in tool.params_json_schema["properties"]
        agent = agents.Agent(name="analyst", tools=[tool], model=Scripted())
        result = await agents.Runner.run(agent, "compute")
        assert result.final_output == "x is 42"
        run_python.sessions.close()


def test_current_conversation_is_exported():
    from standfast.workers import WorkerSession, current_conversation

    assert WorkerSession
    current_conversation.reset(current_conversation.set("user-7"))
