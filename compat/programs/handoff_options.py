import asyncio
import json

from agents import Agent, Handoff, ModelBehaviorError, RunContextWrapper, Runner, UserError, handoff
from pydantic import BaseModel


class Reason(BaseModel):
    why: str


async def note(context: RunContextWrapper[dict], data: Reason) -> None:
    context.context["why"] = data.why


other = Agent(name="Other One", handoff_description="Does other things.", model="gpt-4.1")
named = handoff(
    other,
    tool_name_override="go",
    tool_description_override="Go there.",
    on_handoff=note,
    input_type=Reason,
)


async def main() -> None:
    plain = handoff(other)
    print(
        plain.tool_name,
        plain.tool_description,
        plain.agent_name,
        plain.input_json_schema,
        plain.strict_json_schema,
        isinstance(plain, Handoff),
    )
    print(named.tool_name, named.tool_description, json.dumps(named.input_json_schema, sort_keys=True))
    print(Handoff.default_tool_name(other), Handoff.default_tool_description(other), plain.get_transfer_message(other))
    agent = Agent(name="A", model="gpt-4.1", handoffs=[named, handoff(other, is_enabled=False)])
    context: dict = {}
    result = await Runner.run(agent, 'call go {"why": "because"}', context=context)
    print(context, result.last_agent.name, [item.type for item in result.new_items])
    for bad in ("call go {}", 'call go {"why": 3}', "call transfer_to_other_one {}"):
        try:
            await Runner.run(agent, bad, context={})
        except ModelBehaviorError:
            print("behaviour", bad)
    for build in (
        lambda: handoff(other, on_handoff=lambda context: None, input_type=Reason),
        lambda: handoff(other, input_type=Reason),
        lambda: handoff(other, on_handoff=lambda: None),
    ):
        try:
            build()
            print("built")
        except UserError:
            print("user error")
        except (TypeError, AssertionError):
            print("refused")
    two = await Runner.run(agent, 'call go {"why": "a"} and call go {"why": "b"}', context=context)
    print(
        two.last_agent.name,
        [item.type for item in two.new_items],
        [item.output for item in two.new_items if item.type == "tool_call_output_item"],
    )
    copied = other.clone(name="Copy", model="gpt-4o")
    print(copied.name, copied.model, copied.handoff_description, copied == other)


asyncio.run(main())
