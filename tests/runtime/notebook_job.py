"""An agent that runs a random program, cell by cell, and the program."""

import random
from typing import Any

from standfast import Agent, python_tool
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call

CELLS = (
    "a = [{n}]; b = a",
    "b.append({n}); a",
    "d = dict(x={n}, y=a); d['y'] is a",
    "class Point:\n    def __init__(self, x):\n        self.x = x\np = Point({n})",
    "f = (lambda k: (lambda z: z + k))({n}); f(1)",
    "import random; random.seed({n})",
    "import random; random.random()",
    "import numpy as np; m = np.arange({n}.0); float(m.sum())",
    "open('f{k}', 'w').write('{n}')",
    "import os; os.path.exists('f{k}') and os.rename('f{k}', 'g{k}')",
    "import os; [os.remove(n) for n in os.listdir('.') if n.startswith('g')]",
    "1 / 0",
    "print({n}); a = list(range({k}))",
)
SUMMARY = (
    "import os; print(a, b, a is b, {n: open(n).read() for n in sorted(os.listdir('.'))}, "
    "vars(p) if 'p' in globals() else None, f(1) if 'f' in globals() else None, "
    "m.tolist() if 'm' in globals() else None, d if 'd' in globals() else None)"
)


def make_program(seed: int, length: int) -> list[str]:
    choose = random.Random(seed)
    middle = [choose.choice(CELLS).replace("{n}", str(choose.randint(1, 9))) for _ in range(length)]
    return [
        "import random; random.seed(1); a = []; b = a",
        *(cell.replace("{k}", str(choose.randint(1, 3))) for cell in middle),
        SUMMARY,
    ]


def notebook(pool: Any, program: list[str]) -> Agent[Any]:
    """An agent that runs the cells of a program, one a turn. Any process can resume its runs."""

    def answer(call: Any) -> list[Any]:
        done = sum(item.get("type") == "function_call_output" for item in call.input)
        if done == len(program):
            return [assistant_message("done")]
        return [function_call("run_python", {"code": program[done]}, call_id=f"cell{done}")]

    steps = [ModelStep.respond(answer) for _ in range(1000)]
    return Agent("notebook", tools=[python_tool(pool)], model=ScriptedModel(steps))
