import asyncio
from dataclasses import dataclass
from typing import Literal

from agents import Agent, ItemHelpers, Runner, TResponseInputItem


@dataclass
class Feedback:
    feedback: str
    score: Literal["pass", "needs_improvement"]


author = Agent(name="author", instructions="Write an outline.")
judge = Agent[None](name="judge", instructions="Judge it.", output_type=Feedback)


async def main() -> None:
    items: list[TResponseInputItem] = [{"content": "A story about cats.", "role": "user"}]
    for _ in range(3):
        outline = await Runner.run(author, items)
        items = outline.to_input_list()
        print(ItemHelpers.text_message_outputs(outline.new_items))
        feedback: Feedback = (await Runner.run(judge, items)).final_output
        print(feedback.score, feedback.feedback)
        if feedback.score == "pass":
            break
        items.append({"content": f"Feedback: {feedback.feedback}", "role": "user"})


asyncio.run(main())
