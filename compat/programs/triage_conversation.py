import asyncio
from dataclasses import dataclass

from agents import Agent, HandoffOutputItem, ItemHelpers, MessageOutputItem, RunContextWrapper, Runner, ToolCallItem
from agents import ToolCallOutputItem, TResponseInputItem, function_tool, handoff, trace
from pydantic import BaseModel


@dataclass
class Passenger:
    name: str = "Ann"
    seat: str | None = None


class Reason(BaseModel):
    reason: str


@function_tool(name_override="faq", description_override="Look up frequent questions.")
async def faq(question: str) -> str:
    return "One bag, 50 pounds." if "bag" in question else "I do not know."


@function_tool
async def update_seat(context: RunContextWrapper[Passenger], seat: str) -> str:
    """Update the seat.

    Args:
        seat: The new seat.
    """
    context.context.seat = seat
    return f"Seat of {context.context.name} is now {seat}"


async def on_seat(context: RunContextWrapper[Passenger], data: Reason) -> None:
    print("handed over because", data.reason)


faq_agent = Agent[Passenger](name="FAQ Agent", handoff_description="Answers questions.", tools=[faq], model="gpt-4.1")
seat_agent = Agent[Passenger](name="Seat Agent", tools=[update_seat], model="gpt-4.1", handoffs=[faq_agent])
triage = Agent[Passenger](
    name="Triage",
    instructions=lambda context, agent: f"You help {context.context.name}.",
    model="gpt-4.1",
    handoffs=[
        faq_agent,
        handoff(seat_agent, on_handoff=on_seat, input_type=Reason),
    ],
)


async def main() -> None:
    agent, items = triage, []
    passenger = Passenger()
    for text in (
        "call transfer_to_faq_agent {}",
        'call faq {"question": "bags"}',
        "thanks",
    ):
        items.append({"role": "user", "content": text})
        with trace("Customer service", group_id="c1"):
            result = await Runner.run(agent, items, context=passenger)
        for item in result.new_items:
            if isinstance(item, MessageOutputItem):
                print(item.agent.name, ItemHelpers.text_message_output(item))
            elif isinstance(item, HandoffOutputItem):
                print("from", item.source_agent.name, "to", item.target_agent.name)
            elif isinstance(item, ToolCallItem):
                print(item.agent.name, "calls", item.raw_item.name)
            elif isinstance(item, ToolCallOutputItem):
                print(item.agent.name, "output", item.output)
        items, agent = result.to_input_list(), result.last_agent
    result = await Runner.run(triage, 'call transfer_to_seat_agent {"reason": "seat"}', context=passenger)
    print(result.last_agent.name, len(result.to_input_list()))
    result = await Runner.run(seat_agent, 'call update_seat {"seat": "1A"}', context=passenger)
    print(result.final_output, passenger)


asyncio.run(main())
