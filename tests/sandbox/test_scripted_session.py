"""Sandbox sessions that answer by a script."""

import io
from pathlib import Path

import pytest

from standfast import RunConfig, Runner
from standfast.sandbox import ExecResult, SandboxAgent, SandboxRunConfig
from standfast.testing import (
    InvalidSandboxStep,
    SandboxCallMatcherError,
    ScriptedModel,
    UnconsumedSandboxSteps,
    UnexpectedSandboxCall,
    assistant_message,
    function_call,
    scripted_sandbox_session,
)

DONE = ExecResult(stdout=b"hi", stderr=b"", exit_code=0)


async def test_calls_take_the_steps_in_order():
    session = scripted_sandbox_session(
        [
            {"method": "exec", "result": DONE},
            {"method": "exec", "error": RuntimeError("no")},
            {"method": "read", "responder": lambda call: io.BytesIO(str(call.args[0]).encode())},
            {"method": "exec", "match": lambda call: call.args == ("a",), "result": DONE},
            {"method": "ls", "result": []},
        ]
    )
    async with session:
        assert await session.exec("ls") is DONE
        with pytest.raises(RuntimeError, match="no"):
            await session.exec("ls")
        assert (await session.read(Path("q"))).read() == b"q"
        with pytest.raises(SandboxCallMatcherError):
            await session.exec("b")
        with pytest.raises(UnexpectedSandboxCall, match="expects ls, not exec"):
            await session.exec("b")
        assert [call.method for call in session.calls] == ["exec", "exec", "read", "exec", "exec"]
    with pytest.raises(UnconsumedSandboxSteps) as caught:
        session.assert_complete()
    assert (caught.value.remaining_steps, caught.value.pending_methods) == (1, ("ls",))


async def test_an_agent_works_in_a_scripted_session():
    session = scripted_sandbox_session([{"method": "exec", "result": DONE}])
    model = ScriptedModel([[function_call("exec_command", {"cmd": "x"}, call_id="c")], [assistant_message("done")]])
    config = RunConfig(sandbox=SandboxRunConfig(session=session))
    result = await Runner.run(SandboxAgent("coder", model=model), "go", run_config=config)
    session.assert_complete()
    assert result.new_items[1].output.endswith("Output:\nhi")
    assert [tool.name for tool in model.calls[0].tools] == ["view_image", "apply_patch", "exec_command"]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("exec", "invalid_input"),
        ({"method": "fly"}, "unsupported_method"),
        ({"method": "exec", "colour": 1}, "unsupported_field"),
        ({"method": "exec", "result": 1, "error": ValueError()}, "missing_outcome"),
    ],
)
def test_malformed_steps_are_refused(step, reason):
    with pytest.raises(InvalidSandboxStep) as caught:
        scripted_sandbox_session([step])
    assert caught.value.reason == reason
