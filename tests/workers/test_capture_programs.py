"""Random programs of cells: a captured workspace is what an undisturbed worker has, or the report names the difference."""

import json
import random

import pytest

from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession, fork_server

pytest.importorskip("cloudpickle")

CONFIG = SessionConfig(sandbox=SandboxPolicy(require="namespaces"), preload=("numpy", "pandas"))

CELLS = r"""
a = [1, 2, 3]
b = a
a = {'list': a, 'again': a}
b = [a, {'inner': a}]; a = None
a = [[]] * 3; b = a[0]
a = (b, [b])
a = {1, 2, 'three'}; b = frozenset(a)
a = bytearray(b'abc'); b = a
c = []; c.append(c)
c = {'self': None}; c['self'] = c
s = 'text' * 1000; t = s
big = 10 ** 50; number = 1.5; flag = True; nothing = None
import random; random.seed(5); r = random.random()
import random; r = [random.gauss(0, 1) for _ in range(3)]
import random; own = random.Random(3); own.random()
import numpy as np; n = np.arange(30_000.0); m = [n]
import numpy as np; n = np.zeros((3, 4), order='F'); n[1, 2] = 7
import numpy as np; n = np.array(['a', 'b'], dtype=object)
import numpy as np; np.random.seed(3); n = np.random.rand(3)
import numpy as np; rng = np.random.default_rng(9); rng.random()
import numpy as np; n = np.ones(5); n.flags.writeable = False
import numpy as np; n = np.arange(12.0).reshape(3, 4); m = [n[1], n.T]; n[1, 2] += 1
import pandas as pd; df = pd.DataFrame({'x': [1, 2], 'y': ['a', 'b']}); part = df['x']
import pandas as pd; df = pd.DataFrame({'x': range(20_000)}); holder = {'df': df}
import pandas as pd; df = pd.Series([1.5, 2.5], name='s', index=['p', 'q'])
def f(x, y=[], *, z={}): y.append(x); z[x] = y; return y
f = lambda x: (x, globals().get('a'))
def f(): return f
def outer(): return [v for v in range(3)]
def make():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    def get(): return n\n    return up, get\nup, get = make(); up()
def decorate(g):\n    def inner(*args): return inner.calls.append(args) or g(*args)\n    inner.calls = []\n    return inner\n@decorate\ndef h(x): return x\nh(1)
async def co(): return 1
class C:\n    items = []\n    def __init__(self): self.items.append(self)\n    def name(self): return type(self).__name__\no = C()
class C:\n    limit = 3\nC.limit = 4; C.extra = [1]; o = C(); o.me = o
class Base:\n    def who(self): return 'base'\nclass D(Base):\n    def who(self): return 'derived ' + super().who()\nd = D()
class S:\n    __slots__ = ('x', 'y')\ns1 = S(); s1.x = [1]; s2 = s1
from dataclasses import dataclass, field\n@dataclass(order=True)\nclass P:\n    x: int\n    y: list = field(default_factory=list)\np = P(1); ps = [p, P(2)]
import enum\nclass E(enum.Enum):\n    A = 1\n    B = [2]\ne = E.A; es = {E.A: 1}
from collections import namedtuple, deque, defaultdict, Counter, OrderedDict\nN = namedtuple('N', 'x y'); nt = N(1, [2]); dq = deque([1, 2], maxlen=3)
from collections import defaultdict\ndd = defaultdict(list); dd['k'].append(dd)
from collections import Counter\ncnt = Counter('hello')
import functools; part2 = functools.partial(print, 'x', sep='')
import abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\nclass B(A):\n    def m(self): return 1\nbb = B()
class W:\n    @property\n    def v(self): return self._v\n    @v.setter\n    def v(self, value): self._v = value\n    @staticmethod\n    def st(): return 's'\n    @classmethod\n    def cl(cls): return cls\nw = W(); w.v = 5; bound = w.cl
class M(type):\n    def __call__(cls, *args): return super().__call__()\nclass K(metaclass=M): pass\nk = K(1)
import datetime, decimal, fractions, re, uuid, pathlib\ntimes = [datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), decimal.Decimal('1.10'), fractions.Fraction(1, 3), re.compile('a+'), uuid.UUID(int=5), pathlib.Path('x/y')]
from typing import Optional, List\nT = Optional[List[int]]\nannotated: int = 3
it = iter([1, 2, 3]); next(it)
gen = (n for n in range(5)); next(gen)
import threading; lock = threading.Lock()
handle = open('handle.txt', 'w'); handle.write('x')
err = ValueError('bad', [1])
try: 1 / 0\nexcept ZeroDivisionError as problem: kept = problem
import weakref\nclass R: pass\nr0 = R(); ref = weakref.ref(r0)
_private = {'p': 1}
import math as maths; from os.path import join as j
import io; buffer = io.StringIO('abc'); buffer.read(1); raw = io.BytesIO(b'xyz')
open('one.txt', 'w').write('one')
open('one.txt', 'a').write(' more')
import os; os.makedirs('deep/er', exist_ok=True); open('deep/er/two.bin', 'wb').write(bytes(range(256)) * 5000)
import os; os.path.exists('one.txt') and os.rename('one.txt', 'renamed.txt')
import os; os.path.exists('renamed.txt') and os.remove('renamed.txt')
import os; open('mode.sh', 'w').write('#!'); os.chmod('mode.sh', 0o750)
import os; os.path.exists('link') or os.symlink('one.txt', 'link')
open('helper.py', 'w').write('class Thing:\\x0a    def __init__(self): self.x = 1'); import helper; thing = helper.Thing()
1 / 0
globals().pop('a', None)
for name in ('b', 'c', 'f', 'n'): globals().pop(name, None)
a = [up, get] if 'up' in globals() else 0
[1, 2, 3]
me = globals()
import sys; out = sys.stdout
class L(list): pass\nl = L([1]); l.attr = 'x'
class Bad:\n    def __reduce__(self): raise RuntimeError('no')\nbad = Bad(); worse = [bad]
x1 = [1]; x2 = [x1]; x3 = {'x': x2}; x4 = (x3, x1)
""".strip().split("\n")
CELLS = [cell.replace("\\n", "\n") for cell in CELLS]

PROBE = """
def probe():
    import io, os, random, sys, types
    main = vars(sys.modules["__main__"])
    numbers, kept = {}, []
    plain = (str, bytes, int, float, complex, bool, type(None), range)
    def own(value):
        return sorted(vars(value).items()) if hasattr(value, "__dict__") else None
    def visit(value):
        kind = type(value)
        if kind in plain:
            return repr(value)
        if value is main:
            return "the namespace"
        if isinstance(value, types.ModuleType):
            return value.__name__
        if id(value) in numbers:
            return numbers[id(value)]
        if kind is not tuple and kind is not frozenset:
            numbers[id(value)] = len(numbers)
        kept.append(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, (set, frozenset)):
            return name, sorted(map(repr, value))
        if isinstance(value, dict):
            parts = [part for pair in value.items() for part in pair]
            return name, [visit(part) for part in parts], visit(own(value))
        if isinstance(value, (list, tuple)) or name == "collections.deque":
            return name, [visit(part) for part in value], visit(own(value))
        if kind is types.FunctionType:
            code = value.__code__
            cells = [visit(cell) for cell in value.__closure__ or ()]
            return (name, value.__qualname__, code.co_code.hex(), repr(code.co_names), cells, value.__doc__,
                    visit(value.__defaults__), visit(value.__kwdefaults__), visit(value.__dict__), value.__module__,
                    value.__globals__ is main)
        if kind is types.CellType:
            try: return name, visit(value.cell_contents)
            except ValueError: return name, "empty"
        if isinstance(value, type):
            if value.__module__ != "__main__":
                return repr(value)
            hidden = ("__dict__", "__weakref__", "_abc_impl", "__abstractmethods__", "__slotnames__")
            shown = {key: part for key, part in vars(value).items() if key not in hidden
                   and type(part).__name__ not in ("member_descriptor", "getset_descriptor")}
            return name, value.__qualname__, visit(value.__bases__), [(key, visit(shown[key])) for key in sorted(shown)]
        if isinstance(value, (staticmethod, classmethod)):
            return name, visit(value.__func__)
        if isinstance(value, property):
            return name, visit(value.fget), visit(value.fset)
        if name == "numpy.ndarray":
            return name, value.tolist() if value.size < 99 else float(value.sum()), str(value.dtype), value.flags.writeable
        if name.startswith("pandas"):
            return name, value.to_json(), str(getattr(value, "name", ""))
        if name in ("random.Random", "numpy.random._generator.Generator"):
            return name, value.random()
        if isinstance(value, types.MethodType):
            return name, visit(value.__self__), visit(value.__func__)
        if isinstance(value, BaseException):
            return name, visit(value.args)
        if isinstance(value, (io.StringIO, io.BytesIO)):
            return name, value.getvalue(), value.tell()
        if kind.__module__ == "__main__":
            slots = [(slot, visit(getattr(value, slot, None))) for slot in getattr(kind, "__slots__", ())]
            return name, visit(kind), visit(own(value)), slots
        if name == "builtins.list_iterator":
            return name, value.__length_hint__()
        return name, "" if "object at" in repr(value) else repr(value)
    internal = ("__builtins__", "__name__", "__doc__", "__package__", "__loader__", "__spec__", "__warningregistry__")
    names = sorted(name for name in main if name not in internal and name not in LOST)
    result = [(name, repr(visit(main[name]))) for name in names]
    work = os.path.abspath(".")
    for folder, _, files in sorted(os.walk(work)):
        for file in sorted(files):
            path = os.path.join(folder, file)
            if "__pycache__" not in path and not os.path.islink(path):
                result.append((path, oct(os.stat(path).st_mode), open(path, "rb").read().hex()[:2000]))
    result.append(("random", random.random(), random.gauss(0, 1)))
    if "numpy.random" in sys.modules:
        result.append(("numpy", float(sys.modules["numpy.random"].rand())))
    return result
RESULT = probe()
"""


async def look(session, lost):
    """Describe everything that a worker has, with a number for each object, without leaving a trace in it."""
    code = f"__import__('json').dumps((lambda space: exec({PROBE!r}, space) or space['RESULT'])({{'LOST': {sorted(lost)!r}}}))"
    point = await session.snapshot()
    result = await session.run(code, timeout=120)
    assert result.error is None, result.error.traceback
    await session.rollback(point)
    await session.drop(point)
    return json.loads(result.value)


async def run_program(seed):
    """Run random cells; capture after each, move to another worker at random, and compare at the end of each stretch."""
    rng = random.Random(seed)
    chunks, manifest = {}, ()

    async def fetch(digest):
        return chunks[digest]

    history = []
    session = WorkerSession(CONFIG)
    await session.start()
    try:
        for _ in range(rng.randint(2, 10)):
            cell = rng.choice(CELLS)
            history.append(cell)
            await session.run(cell, timeout=120)
            capture = await session.capture(manifest)
            chunks |= {digest: data async for digest, data in capture}
            manifest = capture.manifest
            if rng.random() < 0.5:
                continue
            other = WorkerSession(CONFIG)
            await other.start()
            try:
                report = await other.restore_workspace(manifest, fetch)
                lost = {*report.lost, "_"} if "_" in report.lost else set(report.lost)
                there, here = await look(other, lost), await look(session, lost)
                different = [entry for entry in there if entry not in here] + [
                    entry for entry in here if entry not in there
                ]
                assert not different, (history, different)
            except BaseException:
                await other.terminate()
                raise
            await session.terminate()
            session = other
            history.append("# moved")
    finally:
        await session.terminate()


async def test_a_workspace_moves_as_it_is():
    async with fork_server(CONFIG):
        for seed in range(8):
            await run_program(seed)


@pytest.mark.soak
async def test_workspaces_move_as_they_are():
    async with fork_server(CONFIG):
        for seed in range(1000, 2000):
            await run_program(seed)
