"""Random programs whose processes are killed: cells, and the names that each of them depends on."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

from standfast import Agent, python_tool
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call
from standfast.workers import PythonSessions

LOST = ("[the Python session was lost", "An error occurred")
"""How the output of a call begins, or what it contains, that has changed nothing."""

# A cell that uses a name that no checkpoint can keep is listed under that name: its output may differ if the name was
# lost and the report says so. All other outputs may not.
CELLS: tuple[tuple[str, str], ...] = (
    ("", "a = [{n}]; b = a"),
    ("", "b.append({n}); a"),
    ("", "d = dict(x={n}, y=a); d['y'] is a"),
    (
        "",
        "class Point:\n    made = []\n    def __init__(self, x): self.x = x; self.made.append(x)\np = Point({n})",
    ),
    ("", "'Point' in globals() and (Point({n}).made, type(p) is Point)"),
    ("", "f = (lambda k: (lambda z: z + k))({n}); f(1)"),
    (
        "",
        "def make():\n    n = {n}\n    def up():\n        nonlocal n\n        n += 1\n        return n\n"
        "    return up, lambda: n\nup, get = make(); up()",
    ),
    ("", "'up' in globals() and (up(), get())"),
    ("", "import random; random.seed({n})"),
    ("", "import random; [random.random() for _ in range({k})]"),
    ("", "import os; os.chdir('.'); os.makedirs('deep/er', exist_ok=True); open('deep/er/x', 'a').write('{n}')"),
    ("", "open('f{k}', 'w').write('{n}' * {n})"),
    ("", "open('f{k}', 'a').write('{n}')"),
    ("", "import os; os.path.exists('f{k}') and os.rename('f{k}', 'g{k}')"),
    ("", "import os; [os.remove(n) for n in sorted(os.listdir('.')) if n.startswith('g')]"),
    ("", "1 / 0"),
    ("", "print({n}); a = list(range({k})); c = (a, a)"),
    ("", "big = bytes(range(256)) * 4000 * {k}; len(big)"),
    ("g", "g = (n for n in range(9)); next(g)"),
    ("g", "next(g) if 'g' in globals() else None"),
    ("h", "h = open('log', 'a'); h.write('{n}'); h.flush()"),
    ("h", "'h' in globals() and (h.write('{n}'), h.flush())"),
    ("", "'kept' in globals() and (kept.append({n}), kept)"),
    ("", "import os; 'kept' in globals() and (globals().pop('unused', 0), os.path.exists('u') and os.remove('u'))"),
    ("kept_lock", "'kept' in globals() and kept_lock.acquire(False)"),
)
NUMPY_CELLS: tuple[tuple[str, str], ...] = (
    ("", "import numpy as np; m = np.arange({n}.0); v = m[1:]; float(m.sum())"),
    ("", "'v' in globals() and len(v) and (v.__setitem__(0, {n}), m.tolist())"),
    ("", "import numpy as np; np.random.seed({n}); np.random.rand({k}).tolist()"),
    ("", "import numpy as np; np.random.rand({k}).tolist()"),
    ("", "import numpy as np; rng = np.random.default_rng({n}); rng.random()"),
    ("", "'rng' in globals() and rng.random()"),
    ("", "import pandas as pd; df = pd.DataFrame(dict(x=range({n}), y=1.5)); df['z'] = df.x * {k}; df.to_json()"),
    ("", "'df' in globals() and (df.__setitem__('w', {n}), df.sum().tolist())[1]"),
)
SUMMARY = (
    ("", "(a, b, a is b, globals().get('c'), globals().get('d'), vars(globals().get('p', type)).get('x'))"),
    ("", "(f(1) if 'f' in globals() else 0, get() if 'get' in globals() else 0, len(globals().get('big', '')))"),
    ("", "[x.tolist() if x is not None else x for x in (globals().get('m'), globals().get('v'))]"),
    ("", "df.to_json() if 'df' in globals() else None"),
    (
        "",
        "import os; [(p, n, open(os.path.join(p, n)).read()) for p, _, names in sorted(os.walk('.'))"
        " for n in sorted(names) if n != 'log']",
    ),
    ("h", "import os; os.path.exists('log') and open('log').read()"),
    ("", "globals().get('kept'), globals().get('unused')"),
    ("", "import random; random.random()"),
)  # fmt: skip


def make_program(seed: int) -> list[tuple[str, str]]:
    choose = random.Random(seed)
    cells = CELLS + (NUMPY_CELLS * 2 if seed % 4 == 0 else ())
    chosen = [choose.choice(cells) for _ in range(choose.randint(3, 8))]
    filled = [
        (name, code.replace("{n}", str(choose.randint(1, 9))).replace("{k}", str(choose.randint(1, 3))))
        for name, code in chosen
    ]
    first = "import random; random.seed(1); a = []; b = a"
    if seed % 4 == 0:
        first += "; import numpy as np; np.random.seed(1)"
    return [("", first), *filled, *SUMMARY]


def is_lost(output: str) -> bool:
    return any(mark in output for mark in LOST)


PREPARE = """
import random, threading
kept, unused, kept_lock = [], random.random() > 2, threading.Lock()
open('u', 'w').close()
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "notebook": {},
    "notebook-nested": {},
    "notebook-prepared": {},
    "notebook-prepared-snapshots": {"live_snapshots": 2},
    "notebook-snapshot": {"live_snapshots": 1},
    "notebook-snapshots": {"live_snapshots": 2},
    "notebook-pause": {"durability": "on_pause"},
}
"""The agents of the programs, with the settings of their Python sessions."""


def make_notebooks(pool: Any) -> list[Agent[Any]]:
    """Return the agents, which share a pool. Any process can resume their runs."""
    # On a busy machine an import may take longer than a call does by default; a call that is cut off differs.
    made = {name: PythonSessions(pool, timeout=600, **given) for name, given in SETTINGS.items()}
    return [stubborn_notebook(name, make_tool(name, sessions)) for name, sessions in made.items()]


def make_tool(name: str, sessions: PythonSessions) -> Any:
    """Return the tool of an agent: Python, or a nested agent that has it."""
    tool = python_tool(sessions, prepare=PREPARE if "prepared" in name else "")
    if "nested" not in name:
        return tool

    def answer(call: Any) -> list[Any]:
        outputs = [str(item["output"]) for item in call.input if item.get("type") == "function_call_output"]
        if outputs:
            return [assistant_message(outputs[-1])]
        code = next(item["content"] for item in call.input if item.get("role") == "user")
        return [function_call("run_python", {"code": code}, call_id="inner")]

    inner = Agent("inner", tools=[tool], model=ScriptedModel([ModelStep.respond(answer) for _ in range(10_000)]))
    return inner.as_tool("ask", "Runs code.")


def choose_agent(seed: int) -> str:
    return list(SETTINGS)[seed // 2 % len(SETTINGS)]


def stubborn_notebook(name: str, tool: Any) -> Agent[Any]:
    """An agent that runs the cells of the program of a number, one a turn, and each again until it was not lost."""

    def answer(call: Any) -> list[Any]:
        program = make_program(int(next(item["content"] for item in call.input if item.get("role") == "user")))
        outputs = [str(item["output"]) for item in call.input if item.get("type") == "function_call_output"]
        done = sum(not is_lost(output) for output in outputs)
        if done == len(program):
            return [assistant_message("done")]
        argument = {"input" if tool.name == "ask" else "code": program[done][1]}
        return [function_call(tool.name, argument, call_id=f"call{len(outputs)}")]

    steps = [ModelStep.respond(answer) for _ in range(5000)]
    return Agent(name, tools=[tool], model=ScriptedModel(steps))


# --- killing ----------------------------------------------------------------------------------------


async def kill_workers(choose: random.Random, kinds: list[str]) -> None:
    """Kill processes of these kinds below this one, one after the other, at random moments; print each."""
    for kind in kinds:
        await asyncio.sleep(choose.random() * 0.04)
        while not (pids := find_processes(kind)):  # noqa: ASYNC110 - it depends on other processes
            await asyncio.sleep(0.004)
        with contextlib.suppress(ProcessLookupError):
            os.kill(choose.choice(pids), signal.SIGKILL)
            print("killed", kind, flush=True)


def find_processes(kind: str) -> list[int]:
    """Return the processes of this kind: fork servers, supervisors, workers, or their forks, which write checkpoints
    or sleep as live snapshots."""
    servers = [pid for pid in list_children(os.getpid()) if is_fork_server(pid)]
    if kind == "server":
        return servers
    supervisors = [pid for server in servers for pid in list_children(server)]
    if kind == "supervisor":
        return supervisors
    families = [list_children(supervisor) for supervisor in supervisors]
    if kind == "worker":
        return [family[0] for family in families if family]
    return [fork for family in families for fork in family[1:]]


def list_children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return sorted(found)


def is_fork_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:4] == [b"-I", b"-X", b"utf8"]
    return False
