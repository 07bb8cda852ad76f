import asyncio

from agents import (
    Agent,
    AsyncComputer,
    Button,
    ComputerProvider,
    ComputerTool,
    Environment,
    RunContextWrapper,
    Runner,
    dispose_resolved_computers,
    resolve_computer,
)


class Screen(AsyncComputer):
    def __init__(self) -> None:
        self.log = []

    @property
    def environment(self) -> Environment:
        return "browser"

    @property
    def dimensions(self) -> tuple[int, int]:
        return (800, 600)

    async def screenshot(self) -> str:
        self.log.append("screenshot")
        return "aGk="

    async def click(self, x: int, y: int, button: Button) -> None:
        self.log.append(f"click {x} {y} {button}")

    async def double_click(self, x: int, y: int) -> None: ...
    async def scroll(self, x: int, y: int, scroll_x: int, scroll_y: int) -> None:
        self.log.append(f"scroll {x} {y} {scroll_x} {scroll_y}")

    async def type(self, text: str) -> None:
        self.log.append(f"type {text}")

    async def wait(self) -> None: ...
    async def move(self, x: int, y: int) -> None: ...
    async def keypress(self, keys: list[str]) -> None:
        self.log.append(f"keys {keys}")

    async def drag(self, path: list[tuple[int, int]]) -> None: ...


async def create(*, run_context):
    print("create", run_context.context)
    return Screen()


async def dispose(*, run_context, computer):
    print("dispose", run_context.context, computer.log)


async def main() -> None:
    tool = ComputerTool(computer=ComputerProvider(create=create, dispose=dispose))
    agent = Agent(name="A", model="computer-use-preview", tools=[tool])
    result = await Runner.run(
        agent,
        'do computer_call {"action": {"type": "click", "x": 1, "y": 2, "button": "left"}, "pending_safety_checks": []}',
        context="ann",
    )
    print(result.final_output, [item.type for item in result.new_items])
    wrapper = RunContextWrapper("bob")
    screen = await resolve_computer(tool=tool, run_context=wrapper)
    print(await resolve_computer(tool=tool, run_context=wrapper) is screen)
    await dispose_resolved_computers(run_context=wrapper)
    plain = Screen()
    result = await Runner.run(
        Agent(name="B", model="computer-use-preview", tools=[ComputerTool(computer=plain)]),
        'do computer_call {"action": {"type": "type", "text": "hi"}, "pending_safety_checks": []}',
    )
    print(plain.log, result.final_output)


asyncio.run(main())
