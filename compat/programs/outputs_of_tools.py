"""What tools may return, how long they may take, and how failures are told to the model."""

import asyncio
from dataclasses import dataclass

from agents import (
    Agent,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    ToolTimeoutError,
    UserError,
    function_tool,
)
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: float | None = None


@dataclass
class Pair:
    left: int
    right: int


@function_tool
def give(kind: str):
    """Give something."""
    return {
        "none": None,
        "number": 1.5,
        "list": [1, "two", None],
        "dict": {"a": {"b": 1}},
        "model": Weather(city="Rome"),
        "dataclass": Pair(1, 2),
        "tuple": (1, 2),
        "bytes": b"abc",
        "text": ToolOutputText(text="words"),
        "image": ToolOutputImage(image_url="https://example.com/a.png", detail="low"),
        "file": ToolOutputFileContent(file_data="aGk=", filename="a.txt"),
        "several": [ToolOutputText(text="one"), ToolOutputImage(file_id="f1")],
        "set": {1},
        "exception": ValueError("v"),
        "true": True,
    }[kind]


@function_tool(timeout=0.05)
async def slow() -> str:
    """Slow."""
    await asyncio.sleep(5)
    return "late"


@function_tool(timeout=0.05, timeout_behavior="raise_exception")
async def slower() -> str:
    """Slower."""
    await asyncio.sleep(5)
    return "late"


def explain(context: RunContextWrapper, error: Exception) -> str:
    return f"It failed with {type(error).__name__}: {error}"


@function_tool(failure_error_function=explain)
def fail(reason: str) -> str:
    """Fail."""
    raise LookupError(reason)


@function_tool(failure_error_function=None)
def crash() -> str:
    """Crash."""
    raise ZeroDivisionError("crashed")


agent = Agent(name="Giver", model="gpt-4.1", tools=[give, slow, slower, fail, crash])


async def main() -> None:
    for kind in "none number list dict model dataclass tuple bytes text image file several set exception true".split():
        result = await Runner.run(agent, f'call give {{"kind": "{kind}"}}')
        item = next(item for item in result.new_items if item.type == "tool_call_output_item")
        print(kind, repr(item.output), item.raw_item["output"])
    for call in ("slow {}", 'fail {"reason": "why"}', "nothing {}"):
        try:
            print((await Runner.run(agent, f"call {call}")).final_output)
        except Exception as error:
            print(call, type(error).__name__, error)
    for call in ("slower {}", "crash {}"):
        try:
            await Runner.run(agent, f"call {call}")
        except ToolTimeoutError as error:
            print(type(error).__name__, error.tool_name, error.timeout_seconds)
        except UserError as error:
            print(error, repr(error.__cause__))
    config = RunConfig(tool_error_formatter=lambda args: f"{args.kind} of {args.tool_name}")
    print((await Runner.run(agent, 'call fail {"reason": "why"}', run_config=config)).final_output)


asyncio.run(main())
