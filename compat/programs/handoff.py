import asyncio

from agents import Agent, Runner

billing = Agent(name="Billing", handoff_description="Bills.", model="gpt-4.1")
front = Agent(name="Front", handoffs=[billing], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(front, "call transfer_to_billing {}")
    print(result.last_agent.name, result.final_output)
    print([item.type for item in result.new_items])


asyncio.run(main())
