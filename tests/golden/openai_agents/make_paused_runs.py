"""Write ``paused_runs_SCHEMA.json.gz`` with the installed version of openai-agents.

Run it with the Python of a virtual environment that has the wanted version, for example::

    python -m venv /tmp/oa && /tmp/oa/bin/pip install openai-agents==0.17.7 openai==2.36.0
    /tmp/oa/bin/python tests/golden/openai_agents/make_paused_runs.py

Versions before 0.11 need ``openai==2.24.0``, those before 0.18 ``openai==2.36.0``. Each run is paused in one process
and resumed in another, as openai-agents keeps the runs of nested agents in the memory of the process.
"""

import asyncio
import gzip
import json
import sys
from collections.abc import Coroutine
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import agents
from paused_runs import PROGRAMS, Scripts, decide, describe, make_tools, resume_to_the_end

FOLDER = Path(__file__).parent
EARLIER = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "yes"}]


async def pause(name: str) -> dict[str, Any] | None:
    build, program = PROGRAMS[name]
    scripts, made = Scripts(agents, program.scripts), list[str]()
    agent = build(agents, scripts, make_tools(agents, made))
    session = agents.SQLiteSession("ann") if program.session else None
    if session is not None:
        await session.add_items(EARLIER)
    config = agents.RunConfig(**program.config)
    result = await agents.Runner.run(
        agent, program.input, context=program.context, session=session, run_config=config, **program.settings
    )
    state = result.to_state()
    for words in program.decisions[: program.decided]:
        decide(state, words)
    if program.added_input is not None:
        if not hasattr(state, "add_input"):
            return None
        state.add_input(program.added_input)
    kept = await session.get_items() if session is not None else None
    before = {"requests": scripts.requests, "made": made, "session": kept}
    return {"state": state.to_json(), "used": scripts.used, "before": before}


async def resume(name: str, paused: dict[str, Any]) -> dict[str, Any]:
    build, program = PROGRAMS[name]
    scripts, made = Scripts(agents, program.scripts, used=dict(paused["used"])), list[str]()
    agent = build(agents, scripts, make_tools(agents, made))
    session = agents.SQLiteSession("ann") if program.session else None
    if session is not None:
        await session.add_items(paused["before"]["session"])
    state = await agents.RunState.from_json(agent, paused["state"])
    result, paused_for = await resume_to_the_end(agents, agent, state, program, session=session)
    done = {**describe(result, scripts, made), "paused_for": paused_for}
    if session is not None:
        done["session"] = await session.get_items()
    return done


def run_apart(work: Any, *args: Any) -> Any:
    """Run a coroutine function in a process of its own; what it returns passes through JSON."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return json.loads(pool.submit(run_here, work, *args).result())


def run_here(work: Any, *args: Any) -> str:
    job: Coroutine[Any, Any, Any] = work(*args)
    return json.dumps(asyncio.run(job), default=str)


def main() -> None:
    agents.set_tracing_disabled(True)
    runs: dict[str, Any] = {}
    for name, (_, program) in PROGRAMS.items():
        try:
            made = run_apart(pause, name)
            # A completed run is not resumed: that would ask the model once more.
            if made is not None and program.decisions:
                made["resumed"] = run_apart(resume, name, made)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            runs |= {name: made} if made is not None else {}
    schema = runs["plain"]["state"]["$schemaVersion"]
    text = json.dumps({"package": version("openai-agents"), "schema": schema, "runs": runs})
    (FOLDER / f"paused_runs_{schema}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    print(schema, len(text), len(runs))


if __name__ == "__main__":
    main()
