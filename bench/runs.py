"""Runs: what a turn and a snapshot cost, beside openai-agents, pydantic-ai and langgraph, with a model that answers
at once. Targets are about openai-agents; what the others take is reported."""

import sys
import time
from collections.abc import Iterable
from typing import Any

from bench.competitors.agent_library import EXCHANGES, LENGTHS, LONG, SHORT, SNAPSHOT
from bench.environments import AGENTS, Peer, PeerMissing, peers_started
from bench.progress import tell
from bench.quick import pick, quick
from bench.figures import Figure, Series, at_least, at_most, compared, micro, without_peer

OURS, MAIN = "standfast", "openai-agents"
PEERS = {
    MAIN: (AGENTS, ("bench.competitors.runners", "agents")),
    "pydantic-ai": (AGENTS, ("bench.competitors.pydantic_ai",)),
    "langgraph": (AGENTS, ("bench.competitors.langgraph",)),
}
STORES = {"no session": "", "SQLite": " stored"}
ROUNDS = pick(5, 2)
ENOUGH = pick(5.0, 1.0)  # seconds of one figure of one rival, after which it is not taken more often than ...
FEWEST = {OURS: pick(2, 1), MAIN: pick(2, 1)}  # ... these times, or once
PATIENCE = pick(30.0, 5.0)  # seconds of one round, after which a rival without targets is not asked for longer runs
Found = dict[str, dict[str, float]]


class Rounds:
    """Everybody's figures, the best of rounds in which they take turns. Who fails takes no further part."""

    def __init__(self, rivals: dict[str, Peer]) -> None:
        self.rivals = rivals
        self.found: Found = {name: {} for name in rivals}
        self.slow: set[str] = set()

    def take(self, keys: tuple[str, ...], what: str, *, drawn: bool = False, **details: Any) -> None:
        """Rounds of one figure; of one that is only drawn, one round of a slow rival will do."""
        spent = dict.fromkeys(self.rivals, 0.0)
        for number in range(ROUNDS):
            for name in [name for name in self.rivals if name not in self.slow]:
                if number >= (1 if drawn else FEWEST.get(name, 1)) and spent[name] > ENOUGH:
                    continue
                tell(f"runs: {' and '.join(keys) or what}, round {number + 1} of {ROUNDS}, {name}")
                begin = time.perf_counter()
                self.ask(name, keys, what, details)
                taken = time.perf_counter() - begin
                spent[name] += taken
                if taken > PATIENCE and name not in FEWEST:
                    tell(f"runs: no longer runs of {name}, which took {taken:.0f} s")
                    self.slow.add(name)

    def ask(self, name: str, keys: tuple[str, ...], what: str, details: dict[str, Any]) -> None:
        try:
            answer = self.rivals[name].ask(what, **details)
        except PeerMissing as reason:
            if name == OURS:
                raise
            tell(f"going on without {name}: {reason}")
            del self.rivals[name]
            return
        if answer is not None:
            best = self.found[name]
            for key, value in zip(keys, answer if isinstance(answer, list) else [answer], strict=True):
                best[key] = min(value, best.get(key, value))


def measured() -> Found:
    with peers_started(PEERS) as peers, Peer.started(OURS, sys.executable, "bench.competitors.runners", OURS) as ours:
        rounds = Rounds({OURS: ours, **peers})
        rounds.take((), "warm")
        for suffix in STORES.values():
            rounds.slow.clear()
            for turns in LENGTHS:
                drawn = turns not in (SHORT, LONG)
                rounds.take((f"turn {turns}{suffix}",), "turn", drawn=drawn, turns=turns, stored=bool(suffix))
        rounds.take(("first exchange", "exchange"), "exchanges")
        rounds.slow.clear()
        rounds.take(("snapshot", "bytes"), "snapshot")
        rounds.take(("import", "import, processor time"), "imported")
        return rounds.found


def goal(limit: float) -> float | None:
    """Targets speak about the full lengths."""
    return None if quick() else limit


def beside(found: Found, key: str, name: str, limit: float | None) -> Iterable[Figure]:
    """One line per rival that has the figure; the first has a target."""
    ours = found[OURS][key]
    if key not in found.get(MAIN, {}):
        yield without_peer(f"{name}, beside {MAIN}", micro(ours), f">= {limit}x" if limit else "")
    for rival, figures in found.items():
        if rival == OURS or key not in figures:
            continue
        texts, ratio = (micro(ours), micro(figures[key])), figures[key] / ours
        if rival == MAIN:
            yield at_least(f"{name}, beside {rival}", *texts, ratio, limit)
        else:
            yield compared(f"  ... beside {rival}", *texts, ratio)


def growth(found: Found, key: str, base: str, name: str) -> Iterable[Figure]:
    """How our own figure grows, which has a target, and how those of the others do."""
    for rival, figures in found.items():
        if key not in figures:
            continue
        texts, ratio = (micro(figures[key]), micro(figures[base])), figures[key] / figures[base]
        if rival == OURS:
            yield at_most(f"{name}, ours", *texts, ratio, goal(1.3))
        else:
            yield compared(f"  ... {rival}'s own", *texts, ratio)


def lines(found: Found) -> Iterable[Series]:
    """What is drawn: the cost of a turn by the length of the run."""
    for label, suffix in STORES.items():
        for rival, figures in found.items():
            at = tuple(turns for turns in LENGTHS if f"turn {turns}{suffix}" in figures)
            if at:
                yield Series(f"a turn, {label}", rival, at, tuple(figures[f"turn {turns}{suffix}"] for turns in at))


def figures() -> Iterable[Figure | Series]:
    found = measured()
    yield from lines(found)
    for label, suffix in STORES.items():
        short, long = f"turn {SHORT}{suffix}", f"turn {LONG}{suffix}"
        yield from beside(found, short, f"a turn of {SHORT}, {label}", 5)
        yield from beside(found, long, f"a turn of {LONG}, {label}", goal(30))
        yield from growth(found, long, short, f"{LONG} turns over {SHORT}, {label}")
    yield from beside(found, "exchange", f"exchange {EXCHANGES} of a conversation", goal(30))
    yield from growth(found, "exchange", "first exchange", f"exchange {EXCHANGES} over the first")
    yield from beside(found, "snapshot", f"to_json and from_json of {SNAPSHOT} turns", goal(10))
    yield size(found)
    yield from imports(found)


def size(found: Found) -> Figure:
    name, small = f"bytes of a snapshot of {SNAPSHOT} turns, beside {MAIN}", int(found[OURS]["bytes"])
    big = int(found.get(MAIN, {}).get("bytes", 0))
    if not big:
        return without_peer(name, f"{small:,}", "<= 0.333x")
    return at_most(name, f"{small:,}", f"{big:,}", small / big, 1 / 3)


def imports(found: Found) -> Iterable[Figure]:
    ours, work = found[OURS]["import"], found[OURS]["import, processor time"]
    yield at_most("import standfast; standfast.Runner", f"{ours:.2f} s", "0.3 s", ours / 0.3, 1)
    yield compared("  ... in processor time", f"{work:.2f} s", "0.3 s", work / 0.3)
    for rival, own in found.items():
        if rival != OURS and "import" in own:
            yield compared(f"  ... beside {rival}'s", f"{ours:.2f} s", f"{own['import']:.2f} s", own["import"] / ours)
