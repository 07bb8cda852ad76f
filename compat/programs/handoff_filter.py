import asyncio

from agents import Agent, HandoffInputData, Runner, handoff


def keep_first(data: HandoffInputData) -> HandoffInputData:
    return data.clone(input_history=tuple(data.input_history)[:1], pre_handoff_items=(), new_items=())


billing = Agent(name="Billing", model="gpt-4.1")
front = Agent(name="Front", handoffs=[handoff(billing, input_filter=keep_first)], model="gpt-4.1")


async def main() -> None:
    items = [{"role": "user", "content": "hello"}, {"role": "user", "content": "call transfer_to_billing {}"}]
    result = await Runner.run(front, items)
    print(result.last_agent.name, result.final_output)
    print([item.get("type") or item["role"] for item in result.to_input_list()])


asyncio.run(main())
