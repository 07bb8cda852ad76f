"""The order in which hooks and guardrails are called, and in which outputs are reported."""

from typing import Any

import pytest


def make_hooks(lib: Any, log: list[str]) -> tuple[Any, Any]:
    class ForRun(lib.RunHooks):  # type: ignore[misc]
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            log.append("run: start")

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            log.append("run: end")

        async def on_llm_start(self, *given: Any) -> None:
            log.append("run: model start")

        async def on_llm_end(self, *given: Any) -> None:
            log.append("run: model end")

    class ForAgent(lib.AgentHooks):  # type: ignore[misc]
        async def on_start(self, context: Any, agent: Any) -> None:
            log.append("agent: start")

        async def on_end(self, context: Any, agent: Any, output: Any) -> None:
            log.append("agent: end")

        async def on_llm_start(self, *given: Any) -> None:
            log.append("agent: model start")

        async def on_llm_end(self, *given: Any) -> None:
            log.append("agent: model end")

    return ForRun(), ForAgent()


def make_guardrails(lib: Any, log: list[str], owner: str, trips: str) -> dict[str, Any]:
    def make(name: str) -> Any:
        async def check(*given: Any) -> Any:
            log.append(name)
            return lib.GuardrailFunctionOutput(output_info=None, tripwire_triggered=name == trips)

        return check

    before, parallel, output = (f"{owner}: {kind}" for kind in ("before", "parallel", "output"))
    return {
        "input_guardrails": [
            lib.InputGuardrail(guardrail_function=make(parallel), name=parallel),
            lib.InputGuardrail(guardrail_function=make(before), name=before, run_in_parallel=False),
        ],
        "output_guardrails": [lib.OutputGuardrail(guardrail_function=make(output), name=output)],
    }


BEFORE = ["agent: before", "run: before"]
START = ["run: start", "agent: start", "agent: parallel", "run: parallel", "instructions"]
MODEL = ["run: model start", "agent: model start", "agent: model end", "run: model end"]
END = ["run: end", "agent: end", "agent: output", "run: output"]


@pytest.mark.parametrize(
    ("trips", "expected"),
    [
        ("none", BEFORE + START + MODEL + END),
        ("agent: before", BEFORE),
        ("run: output", BEFORE + START + MODEL + END),
    ],
)
async def test_hooks_and_guardrails(lib: Any, trips: str, expected: list[str]) -> None:
    log: list[str] = []
    run_hooks, agent_hooks = make_hooks(lib, log)

    def instruct(context: Any, agent: Any) -> str:
        log.append("instructions")
        return "Be brief."

    agent = lib.Agent(
        name="a",
        instructions=instruct,
        hooks=agent_hooks,
        model=lib.ScriptedModel([[lib.assistant_message("hi")]]),
        **make_guardrails(lib, log, "agent", trips),
    )
    config = lib.RunConfig(**make_guardrails(lib, log, "run", trips))
    if trips == "none":
        result = await lib.Runner.run(agent, "hi", hooks=run_hooks, run_config=config)
        names = [one.guardrail.get_name() for one in result.input_guardrail_results + result.output_guardrail_results]
        assert names[-2:] == ["agent: output", "run: output"]
        assert sorted(names[:-2]) == sorted([*BEFORE, "agent: parallel", "run: parallel"])
    else:
        with pytest.raises((lib.InputGuardrailTripwireTriggered, lib.OutputGuardrailTripwireTriggered)):
            await lib.Runner.run(agent, "hi", hooks=run_hooks, run_config=config)
    assert log == expected


async def test_handoffs_that_are_not_made_are_answered_first(lib: Any) -> None:
    b = lib.Agent(name="b", model=lib.ScriptedModel([[lib.assistant_message("hi")]]))
    calls = [lib.function_call("transfer_to_b", {}, call_id=call_id) for call_id in ("first", "second")]
    agent = lib.Agent(name="a", model=lib.ScriptedModel([calls]), handoffs=[b])
    result = await lib.Runner.run(agent, "hi")
    outputs = [item for item in result.to_input_list() if item.get("type") == "function_call_output"]
    assert [item["call_id"] for item in outputs] == ["second", "first"]
    assert [item.type for item in result.new_items][2:] == [
        "tool_call_output_item",
        "handoff_output_item",
        "message_output_item",
    ]
