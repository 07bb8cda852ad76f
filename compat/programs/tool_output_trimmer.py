import asyncio

from agents import Agent, RunConfig, Runner
from agents.extensions import ToolOutputTrimmer

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "x" * 900}
    users = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    config = RunConfig(call_model_input_filter=ToolOutputTrimmer(recent_turns=2, preview_chars=20))
    print((await Runner.run(agent, [users[0], call, output, *users[1:]], run_config=config)).final_output)


asyncio.run(main())
