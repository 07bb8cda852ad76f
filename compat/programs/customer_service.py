import asyncio
import random

from agents import (
    Agent,
    HandoffOutputItem,
    ItemHelpers,
    MessageOutputItem,
    RunContextWrapper,
    Runner,
    ToolCallItem,
    ToolCallOutputItem,
    TResponseInputItem,
    function_tool,
    handoff,
    trace,
)
from agents.extensions.handoff_prompt import RECOMMENDED_PROMPT_PREFIX
from pydantic import BaseModel


class AirlineContext(BaseModel):
    passenger: str | None = None
    confirmation: str | None = None
    seat: str | None = None
    flight: str | None = None


@function_tool(name_override="faq_lookup_tool", description_override="Look up frequently asked questions.")
async def faq_lookup_tool(question: str) -> str:
    return "One bag is allowed." if "bag" in question.lower() else "I do not know."


@function_tool
async def update_seat(context: RunContextWrapper[AirlineContext], confirmation: str, new_seat: str) -> str:
    """Update the seat.

    Args:
        confirmation: The confirmation number.
        new_seat: The new seat.
    """
    context.context.confirmation, context.context.seat = confirmation, new_seat
    assert context.context.flight is not None
    return f"Seat is {new_seat} for {confirmation}"


async def on_seat_handoff(context: RunContextWrapper[AirlineContext]) -> None:
    context.context.flight = f"FLT-{random.Random(1).randint(100, 999)}"


faq = Agent[AirlineContext](
    name="FAQ Agent",
    handoff_description="Answers questions.",
    instructions=f"{RECOMMENDED_PROMPT_PREFIX} Answer.",
    tools=[faq_lookup_tool],
)
seats = Agent[AirlineContext](
    name="Seat Agent",
    handoff_description="Changes seats.",
    instructions=f"{RECOMMENDED_PROMPT_PREFIX} Change seats.",
    tools=[update_seat],
)
triage = Agent[AirlineContext](
    name="Triage Agent",
    instructions=f"{RECOMMENDED_PROMPT_PREFIX} Delegate.",
    handoffs=[faq, handoff(agent=seats, on_handoff=on_seat_handoff)],
)
faq.handoffs.append(triage)
seats.handoffs.append(triage)


async def main() -> None:
    agent, items, context = triage, list[TResponseInputItem](), AirlineContext()
    for text in (
        "call transfer_to_faq_agent {}",
        'call faq_lookup_tool {"question": "bags?"}',
        "call transfer_to_triage_agent {}",
        "call transfer_to_seat_agent {}",
        'call update_seat {"confirmation": "C1", "new_seat": "1A"}',
    ):
        with trace("Customer service", group_id="conversation"):
            items.append({"content": text, "role": "user"})
            result = await Runner.run(agent, items, context=context)
            for item in result.new_items:
                name = item.agent.name
                if isinstance(item, MessageOutputItem):
                    print(f"{name}: {ItemHelpers.text_message_output(item)}")
                elif isinstance(item, HandoffOutputItem):
                    print(f"Handed off from {item.source_agent.name} to {item.target_agent.name}")
                elif isinstance(item, ToolCallItem):
                    print(f"{name}: calling a tool")
                elif isinstance(item, ToolCallOutputItem):
                    print(f"{name}: {item.output}")
            items, agent = result.to_input_list(), result.last_agent
    print(context)


asyncio.run(main())
