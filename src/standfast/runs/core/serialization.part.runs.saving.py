"""A run as JSON, and back: strict about every part, and about the agents being the same."""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from holdfast.agents.graph import AgentGraph, AgentRef
from holdfast.runs.contexts import SavedContext
from holdfast.runs.soundness import validate_approvals, validate_state
from holdfast.runs.state import PersistedStruct, State, decode_hook, encode_hook
from holdfast.runs.upgrades import CURRENT_SCHEMA_VERSION, UnreadableState, upgrade_saved_run


class SavedRun(PersistedStruct, frozen=True):
    """What is written: the run, the agents that it names, and the program's context."""

    version: str = msgspec.field(name="$schemaVersion")
    run: State
    agents: tuple[AgentRef, ...]
    context: SavedContext | None = None


_encoder = msgspec.json.Encoder(enc_hook=encode_hook)
_decoder = msgspec.json.Decoder(SavedRun, dec_hook=decode_hook)


def encode_run(state: State, graph: AgentGraph, context: SavedContext | None) -> dict[str, Any]:
    """The run as JSON values that share nothing with it."""
    refs = tuple(
        graph.get_ref(graph.find(path)) if graph.find(path) else _raise_unlisted_agent(graph, path)
        for path in list_agent_paths(state)
    )
    saved = SavedRun(CURRENT_SCHEMA_VERSION, state, refs, context)
    found: dict[str, Any] = msgspec.to_builtins(saved, enc_hook=encode_hook)
    return found


def decode_run(data: Any, graph: AgentGraph, *, tolerate: Collection[str] = ()) -> SavedRun:
    """The saved run in ``data``, if it can be read and its agents are still the same."""
    try:
        saved = _decoder.decode(msgspec.json.encode(upgrade_saved_run(data)))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        message = str(error)
        path = message.rsplit(" - at `", 1)[-1].rstrip("`") if " - at `" in message else "$"
        raise UnreadableState(message, path=path) from None
    except (TypeError, RecursionError) as error:
        raise UnreadableState(f"it is not made of JSON: {error}") from None
    named = {ref.path for ref in saved.agents}
    for path in list_agent_paths(saved.run):
        if path not in named:
            raise UnreadableState(f"the agent at {path!r} has no signature", path="$.agents")
    for ref in saved.agents:
        graph.resolve(ref, tolerate=tolerate)
    validate_state(saved.run)
    validate_approvals(saved.run, graph)
    return saved


def list_agent_paths(state: State) -> list[str]:
    """Every agent that the run names, nested runs included, in order of appearance."""
    return list(dict.fromkeys(_iter_agent_paths(state)))


def _iter_agent_paths(state: State) -> Iterator[str]:
    yield state.agent
    for entry in state.transcript:
        yield entry.agent
        if entry.target is not None:
            yield entry.target
    for record in state.guardrails:
        yield record.agent
    for call in state.calls:
        if call.child is not None:
            yield from _iter_agent_paths(call.child)


def _raise_unlisted_agent(graph: AgentGraph, path: str) -> AgentRef:
    raise UnreadableState(
        f"the agent at {path!r} was reached by a handoff that does not declare it, so it could not be found again",
        path="$.agents",
    )
