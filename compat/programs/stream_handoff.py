import asyncio

from agents import Agent, Runner

billing = Agent(name="Billing", model="gpt-4.1")
front = Agent(name="Front", handoffs=[billing], model="gpt-4.1")


async def main() -> None:
    result = Runner.run_streamed(front, "call transfer_to_billing {}")
    print(
        [
            getattr(event, "name", event.type)
            async for event in result.stream_events()
            if event.type != "raw_response_event"
        ]
    )


asyncio.run(main())
