import asyncio

from agents import Agent, ItemHelpers, Runner, trace

spanish = Agent(name="spanish", instructions="Translate to Spanish.")
picker = Agent(name="picker", instructions="Pick the best translation.")


async def main() -> None:
    with trace("Parallel translation"):
        results = await asyncio.gather(*(Runner.run(spanish, "Good morning") for _ in range(3)))
        outputs = [ItemHelpers.text_message_outputs(result.new_items) for result in results]
        best = await Runner.run(picker, "Input: Good morning. Translations: " + " / ".join(outputs))
    print(best.final_output)


asyncio.run(main())
