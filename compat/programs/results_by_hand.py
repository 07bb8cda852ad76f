import asyncio

from agents import Agent, RunContextWrapper, Runner, RunResult, RunResultStreaming


async def main() -> None:
    agent = Agent(name="Assistant")
    fields = {
        "input": "Hi",
        "new_items": [],
        "raw_responses": [],
        "final_output": "Hello",
        "input_guardrail_results": [],
        "output_guardrail_results": [],
        "tool_input_guardrail_results": [],
        "tool_output_guardrail_results": [],
        "context_wrapper": RunContextWrapper(context=None),
    }
    result = RunResult(**fields, _last_agent=agent)
    print(result.final_output, result.last_agent.name, result.to_input_list(), result.last_response_id)
    streamed = RunResultStreaming(
        **fields,
        current_agent=agent,
        current_turn=2,
        max_turns=5,
        _current_agent_output_schema=None,
        trace=None,
        is_complete=True,
    )
    print(streamed.current_agent.name, streamed.current_turn, streamed.max_turns, streamed.last_agent.name)
    print(streamed.is_complete, streamed.final_output_as(str), streamed.run_loop_exception)

    result = await Runner.run(agent, "Hi")
    result.release_agents()
    print(result.new_items[0].agent.name)


asyncio.run(main())
