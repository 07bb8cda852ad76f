import asyncio

from agents import Agent, Computer, ComputerTool, ModelSettings, Runner


class Screen(Computer):
    environment = "browser"
    dimensions = (800, 600)

    def screenshot(self):
        return "AAAA"

    def click(self, x, y, button):
        print("click", x, y, button)

    def double_click(self, x, y): ...
    def scroll(self, x, y, scroll_x, scroll_y): ...
    def type(self, text):
        print("type", text)

    def wait(self): ...
    def move(self, x, y): ...
    def keypress(self, keys): ...
    def drag(self, path): ...


agent = Agent(
    name="A",
    tools=[ComputerTool(computer=Screen())],
    model_settings=ModelSettings(truncation="auto", verbosity="low", reasoning={"effort": "low"}),
    model="gpt-5.4",
)


async def main() -> None:
    result = await Runner.run(
        agent,
        'do computer_call {"pending_safety_checks": [], "action": {"type": "click", "x": 1, "y": 2, "button": "left"}}',
    )
    print(result.final_output)


asyncio.run(main())
