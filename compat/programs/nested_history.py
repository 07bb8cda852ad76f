import asyncio
import json

from agents import (
    Agent,
    HandoffInputData,
    RunConfig,
    Runner,
    default_handoff_history_mapper,
    get_conversation_history_wrappers,
    handoff,
    nest_handoff_history,
    reset_conversation_history_wrappers,
    set_conversation_history_wrappers,
)

print(get_conversation_history_wrappers())
print(
    json.dumps(
        default_handoff_history_mapper([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])
    )
)
set_conversation_history_wrappers(start="<<", end=">>")
print(get_conversation_history_wrappers())
data = HandoffInputData(input_history="hello", pre_handoff_items=(), new_items=())
print(nest_handoff_history(data).input_history)
reset_conversation_history_wrappers()
print(get_conversation_history_wrappers())
b = Agent(name="B", model="gpt-4.1")
a = Agent(name="A", model="gpt-4.1", handoffs=[handoff(b, nest_handoff_history=True)])
c = Agent(name="C", model="gpt-4.1", handoffs=[b])


async def main() -> None:
    result = await Runner.run(a, "call transfer_to_b {}")
    print(result.final_output)
    print(json.dumps(result.to_input_list()))
    history = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "call transfer_to_b {}"},
    ]
    result = await Runner.run(c, history, run_config=RunConfig(nest_handoff_history=True))
    print(json.dumps(result.to_input_list()))
    result = await Runner.run(
        c,
        history,
        run_config=RunConfig(
            nest_handoff_history=True,
            handoff_history_mapper=lambda items: [{"role": "user", "content": f"{len(items)} items"}],
        ),
    )
    print(json.dumps(result.to_input_list()))


asyncio.run(main())
