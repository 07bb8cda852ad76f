"""An agent whose tool blocks the event loop until a file exists."""

import os
import time
from pathlib import Path

from standfast import Agent, FunctionModel, function_tool


@function_tool
async def nap() -> str:
    """Sleep."""
    print("asleep", flush=True)
    while not Path(os.environ["WAKE_UP"]).exists():  # noqa: ASYNC240
        time.sleep(0.02)  # noqa: ASYNC251 - the fault
    return "slept"


blocker = Agent("blocker", model=FunctionModel(lambda request: FunctionModel.call("nap")), tools=[nap])
