import asyncio

from agents import Agent, Runner, handoff
from pydantic import BaseModel


class Reason(BaseModel):
    reason: str


async def on_handoff(context, data: Reason) -> None:
    print("reason:", data.reason)


billing = Agent(name="Billing", model="gpt-4.1")
front = Agent(name="Front", handoffs=[handoff(billing, on_handoff=on_handoff, input_type=Reason)], model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(front, 'call transfer_to_billing {"reason": "refund"}')
    print(result.last_agent.name)


asyncio.run(main())
