"""Hooks of runs and of agents, with a nested agent, a handoff, a failing tool and guardrails."""

import asyncio

from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    RunHooks,
    Runner,
    function_tool,
    input_guardrail,
    output_guardrail,
)


class RunLog(RunHooks):
    def __init__(self, prefix="run"):
        self.prefix = prefix
        self.count = 0

    def _log(self, *words):
        self.count += 1
        print(f"{self.count:2}", self.prefix, *words)

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        self._log("llm start", agent.name, system_prompt, len(input_items))

    async def on_llm_end(self, context, agent, response):
        self._log("llm end", agent.name, len(response.output), context.usage.requests)

    async def on_agent_start(self, context, agent):
        self._log("agent start", agent.name, len(context.turn_input))

    async def on_agent_end(self, context, agent, output):
        self._log("agent end", agent.name, output)

    async def on_tool_start(self, context, agent, tool):
        self._log("tool start", agent.name, tool.name, context.tool_call_id, context.tool_arguments)

    async def on_tool_end(self, context, agent, tool, result):
        self._log("tool end", agent.name, tool.name, result)

    async def on_handoff(self, context, from_agent, to_agent):
        self._log("handoff", from_agent.name, to_agent.name)


class AgentLog(AgentHooks):
    async def on_start(self, context, agent):
        print("   agent start", agent.name)

    async def on_end(self, context, agent, output):
        print("   agent end", agent.name, output)

    async def on_tool_start(self, context, agent, tool):
        print("   tool start", tool.name)

    async def on_tool_end(self, context, agent, tool, result):
        print("   tool end", tool.name, result)

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        print("   llm start", agent.name)

    async def on_llm_end(self, context, agent, response):
        print("   llm end", agent.name)


@input_guardrail
def polite(context, agent, text):
    return GuardrailFunctionOutput(output_info="polite", tripwire_triggered=False)


@output_guardrail
def short(context, agent, output):
    return GuardrailFunctionOutput(output_info=len(output), tripwire_triggered=False)


@function_tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


translator = Agent(name="Translator", instructions="Translate.", model="gpt-4.1", hooks=AgentLog())
expert = Agent(
    name="Expert",
    instructions="Know.",
    tools=[divide, translator.as_tool("translate", "Translate.", hooks=RunLog("nested"))],
    model="gpt-4.1",
    hooks=AgentLog(),
    output_guardrails=[short],
)
front = Agent(
    name="Front", instructions="Front.", model="gpt-4.1", handoffs=[expert], hooks=AgentLog(), input_guardrails=[polite]
)


async def main() -> None:
    hooks = RunLog()
    await Runner.run(front, "call transfer_to_expert {}", hooks=hooks)
    await Runner.run(expert, 'call divide {"a": 1, "b": 0} and call divide {"a": 6, "b": 3}', hooks=hooks)
    result = await Runner.run(expert, 'call translate {"input": "hello"}', hooks=hooks)
    print(result.final_output, [check.output.output_info for check in result.output_guardrail_results])


asyncio.run(main())
