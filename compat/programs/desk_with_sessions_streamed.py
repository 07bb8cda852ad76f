"""A help desk: three agents, handoffs with typed input, one session, every turn streamed."""

import asyncio

from agents import Agent, ItemHelpers, RunContextWrapper, Runner, SQLiteSession, function_tool, handoff
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel


class Ticket(BaseModel):
    reason: str
    urgent: bool = False


tickets = []


async def open_ticket(context: RunContextWrapper[dict], ticket: Ticket) -> None:
    tickets.append((context.context["customer"], ticket))


@function_tool
def find_order(context: RunContextWrapper[dict], number: int) -> dict:
    """Find an order of the customer."""
    return {"customer": context.context["customer"], "number": number, "paid": True}


billing = Agent[dict](name="Billing", handoff_description="Knows invoices", tools=[find_order])
support = Agent[dict](name="Support", handoff_description="Repairs things")
desk = Agent[dict](
    name="Desk",
    instructions=lambda context, agent: f"{agent.name} serves {context.context['customer']}.",
    handoffs=[
        billing,
        handoff(support, on_handoff=open_ticket, input_type=Ticket, tool_name_override="escalate"),
    ],
)
billing.handoffs.append(desk)


async def say(agent, text, session):
    result = Runner.run_streamed(agent, text, session=session, context={"customer": "Ann"}, max_turns=5)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            if isinstance(event.data, ResponseTextDeltaEvent):
                print(event.data.delta, end="", flush=True)
        elif event.type == "agent_updated_stream_event":
            print(f"\nAgent updated: {event.new_agent.name}")
        elif event.item.type == "tool_call_item":
            print(f"-- {event.item.tool_name} {event.item.raw_item.arguments}")
        elif event.item.type == "tool_call_output_item":
            print(f"-- output: {event.item.output}")
        elif event.item.type == "handoff_output_item":
            print(f"-- {event.item.source_agent.name} -> {event.item.target_agent.name}")
        elif event.item.type == "message_output_item":
            print("\n--", ItemHelpers.text_message_output(event.item))
    return result.last_agent


async def main() -> None:
    session = SQLiteSession("ann")
    agent = desk
    for text in (
        "Hello!",
        "call transfer_to_billing {}",
        'call find_order {"number": 7}',
        "call transfer_to_desk {}",
        'call escalate {"reason": "broken", "urgent": true}',
        "Thank you.",
    ):
        agent = await say(agent, text, session)
    print(agent.name, tickets)
    for item in await session.get_items():
        print(item.get("type", "message"), item.get("role"), item.get("name"), item.get("output"), item.get("content"))


asyncio.run(main())
