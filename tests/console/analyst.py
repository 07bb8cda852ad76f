"""An agent that computes in Python, for the tests of workers."""

from contextlib import asynccontextmanager

from standfast import Agent, FunctionModel, python_tool
from standfast.workers import PoolConfig, SessionConfig, SessionPool

CELLS = (
    "rain = {'Oslo': [3, 0, 11], 'Bergen': [28, 19, 8]}",
    "totals = {city: sum(days) for city, days in rain.items()}\nopen('totals.csv', 'w').write(str(totals))",
    "rain['Oslo'].append(5)\ndel totals",
)


def choose_cell(request):
    if request.input[-1].get("type") == "function_call_output":
        return "It is done."
    done = sum(item.get("type") == "function_call_output" for item in request.input)
    return FunctionModel.call("run_python", code=CELLS[done])


@asynccontextmanager
async def analyst():
    async with SessionPool(PoolConfig(session=SessionConfig(grace=5.0), min_idle=0, max_sessions=20)) as pool:
        yield Agent("analyst", model=FunctionModel(choose_cell), tools=[python_tool(pool)])
