"""A data analyst that writes Python: each conversation has a sandboxed worker from a pool and keeps its variables.

    pip install '.[examples]' pandas matplotlib          (it also works without the last two)
    python examples/data_analyst/analyst.py
    python examples/data_analyst/analyst.py my.csv --ask "What sells best, and when?" --model gpt-4.1

Without arguments it analyses north.csv and south.csv at the same time, in two workers, and saves a chart of each.
Without --model the code is written by fixed rules; workers, files and charts are real either way.

Points of interest:

- ``PythonSessions.for_pool(pool).session(conversation.conversation_key)`` gives access to the files of a
  conversation's worker. The worker itself has no access to files of this machine or to the network.
- ``preload`` imports pandas and matplotlib once for all workers.
- The second question uses the table that the first one has loaded.
"""

import argparse
import asyncio
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from standfast import Agent, FunctionModel, ItemHelpers, LocalModel, Runner, SQLiteSession, python_tool
from standfast.models import ModelRequest
from standfast.workers import PoolConfig, PythonSessions, SessionConfig, SessionPool

FOLDER = Path(__file__).parent
LIBRARIES = tuple(name for name in ("pandas", "matplotlib.pyplot") if find_spec(name.partition(".")[0]))
INSTRUCTIONS = f"""You analyse data.csv, which is in the working directory, with run_python. Variables stay between
calls. Installed beyond the standard library: {", ".join(LIBRARIES) or "nothing"}. Save one chart as chart.png (without
matplotlib: chart.svg). Answer in one or two sentences with numbers that you computed."""


async def analyse(pool: SessionPool, data: Path, questions: list[str], *, model: Any, out: Path) -> list[str]:
    """Answer questions about a file in one conversation, and save its charts in ``out``."""
    agent = Agent("analyst", instructions=INSTRUCTIONS, model=model, tools=[python_tool(pool)])
    conversation, name = SQLiteSession(data.stem), data.stem
    async with PythonSessions.for_pool(pool).session(conversation.conversation_key) as worker:
        await worker.files.write("data.csv", data.read_bytes())
    answers = []
    for question in questions:
        print(f"[{name}] you: {question}")
        run = Runner.run_streamed(agent, question, session=conversation)
        async for event in run.stream_events():
            if event.type == "run_item_stream_event":
                show(name, event.item)
        answers.append(str(run.final_output))
        print(f"[{name}] analyst: {run.final_output}")
    async with PythonSessions.for_pool(pool).session(conversation.conversation_key) as worker:
        for entry in await worker.files.list():
            if entry.path.startswith("chart."):
                path = out / f"{name}-{entry.path}"
                path.write_bytes(await worker.files.read(entry.path))
                print(f"[{name}] saved {path}")
    conversation.close()
    return answers


def show(name: str, item: Any) -> None:
    if item.type == "tool_call_item":
        print(f"[{name}] runs Python, {len(item.raw_item.arguments)} characters")
    elif item.type == "tool_call_output_item":
        text = item.output if isinstance(item.output, str) else "an image"
        print("\n".join(f"[{name}]   {line}" for line in text.splitlines()))


# --- a model without an API key ---------------------------------------------------------------------------------------

LOAD_WITH_PANDAS = """\
import pandas as pd
table = pd.read_csv("data.csv")
totals = table.groupby("product").euros.sum().sort_values(ascending=False).round(2).to_dict()
months = table.groupby("month").euros.sum().to_dict()
"""
LOAD = """\
import csv
table, totals, months = list(csv.DictReader(open("data.csv"))), {}, {}
for row in table:
    for sums, name in ((totals, row["product"]), (months, row["month"])):
        sums[name] = round(sums.get(name, 0) + float(row["euros"]), 2)
totals = dict(sorted(totals.items(), key=lambda item: -item[1]))
"""
PRINT_TOTALS = """\
for name, euros in totals.items():
    print(f"{name} {euros:.2f}")
"""
DRAW_WITH_MATPLOTLIB = """\
import matplotlib.pyplot as plt
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.bar(list(totals), list(totals.values()))
left.set_title("euros by product")
right.plot([month[5:] for month in months], list(months.values()), marker="o")
right.set_ylim(0, 1.1 * max(months.values()))
right.set_title("euros by month")
figure.savefig("chart.png", dpi=120)
plt.close(figure)
"""
DRAW = """\
highest, bars = max(totals.values()), ""
for row, (name, euros) in enumerate(totals.items()):
    bars += f'<text x="5" y="{row * 30 + 20}">{name}</text>'
    bars += f'<rect x="80" y="{row * 30 + 5}" height="20" width="{300 * euros / highest:.0f}" fill="steelblue"/>'
with open("chart.svg", "w") as file:
    file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="{len(totals) * 30}">{bars}</svg>')
"""
WORST = "worst = min(months, key=months.get); print(worst, round(months[worst], 2))"


def choose_step(request: ModelRequest) -> str | dict[str, object]:
    """Choose the next step from the last message or output."""
    conversation = ItemHelpers.input_to_new_input_list(request.input)
    last = conversation[-1]
    if last.get("type") != "function_call_output":
        if "month" in str(last["content"]):
            return FunctionModel.call("run_python", code=WORST)
        load = LOAD_WITH_PANDAS if "pandas" in LIBRARIES else LOAD
        return FunctionModel.call("run_python", code=load + PRINT_TOTALS)
    outputs = [item["output"] for item in conversation if item.get("type") == "function_call_output"]
    if len(outputs) == 1:
        return FunctionModel.call("run_python", code=DRAW_WITH_MATPLOTLIB if len(LIBRARIES) == 2 else DRAW)
    if len(outputs) == 2:
        product, euros = str(outputs[0]).splitlines()[0].split()
        return f"Mostly {product}, for {euros} euros. I have drawn a chart."
    month, euros = str(outputs[-1]).split()
    return f"{month} was the worst month, with {euros} euros."


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("files", nargs="*", type=Path, default=[FOLDER / "north.csv", FOLDER / "south.csv"])
    options.add_argument("--ask", action="append", help="a question; may be repeated")
    options.add_argument("--model", help="a model's name, or `local` for the embedded one")
    options.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()), help="where charts are saved")
    arguments = options.parse_args()
    questions = arguments.ask or ["What do we sell?", "And which month was the worst?"]
    model = LocalModel() if arguments.model == "local" else arguments.model or FunctionModel(choose_step)
    print(f"Model: {arguments.model or 'fixed rules, no key needed'}.")
    print(f"In the workers: Python with {', '.join(LIBRARIES) or 'nothing else'}.")
    session = SessionConfig(preload=LIBRARIES, environment={"MPLBACKEND": "Agg"})
    async with (
        SessionPool(PoolConfig(session=session, min_idle=2, max_sessions=4)) as pool,
        asyncio.TaskGroup() as tasks,
    ):
        for data in arguments.files:
            tasks.create_task(analyse(pool, data, questions, model=model, out=arguments.out))


if __name__ == "__main__":
    asyncio.run(main())
