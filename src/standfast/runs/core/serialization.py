"""The format of saved runs: versions, encoding, decoding and validation.

The newest version is always written, and every older version is upgraded when it is read, by a chain of functions that
each lead from one version to the next. To change what is saved, add a function to ``UPGRADES`` and a golden file to
the tests. A run that was truncated or tampered with is refused, and the error names the place.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import msgspec

from standfast.agents.approvals import Approvals
from standfast.agents.errors import UserError
from standfast.agents.graph import AgentGraph, AgentRef
from standfast.agents.tool_identity import index_tools_by_ref, match_tool
from standfast.base.item_pairs import get_call_id, get_item_type
from standfast.runs.core.context import SavedContext
from standfast.runs.core.state import (
    CallRecord,
    PersistedStruct,
    ServerConversation,
    SessionConversation,
    State,
    decode_hook,
    encode_hook,
)

VERSION_KEY = "$schemaVersion"

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


class UnreadableState(UserError):
    """The data is not a saved run, or not one that this version of standfast can read. ``path`` names the place."""

    code = "unreadable-state"

    def __init__(self, problem: str, *, path: str = "$") -> None:
        super().__init__(f"the saved run cannot be read: {problem}")
        self.path = path


class UnknownVersion(UnreadableState):
    """The run was saved in a format version that this standfast does not know, probably by a newer one."""

    code = "unknown-state-version"

    def __init__(self, found: str) -> None:
        super().__init__(
            f"it has version {found!r}, and this standfast reads versions up to {CURRENT_SCHEMA_VERSION!r}",
            path=VERSION_KEY,
        )
        self.found, self.known = found, CURRENT_SCHEMA_VERSION


def upgrade_to_1_0(saved: dict[str, Any]) -> dict[str, Any]:
    """The first version: one transcript, call records, decisions, and agents by path and signature."""
    return saved


def upgrade_to_2_0(saved: dict[str, Any]) -> dict[str, Any]:
    """The second version: a call may have the arguments that were shown to the person who decides."""
    return saved


def upgrade_to_2_1(saved: dict[str, Any]) -> dict[str, Any]:
    """Version 2.1: what a handoff made of the input is part of what the model is shown."""
    return saved


def upgrade_to_2_2(saved: dict[str, Any]) -> dict[str, Any]:
    """Version 2.2: a run may have the state of its sandbox."""
    return saved


def upgrade_to_2_3(saved: dict[str, Any]) -> dict[str, Any]:
    """Version 2.3: a tool may be called by items of a type of its own, such as ``shell_call``."""
    return saved


def upgrade_to_2_4(saved: dict[str, Any]) -> dict[str, Any]:
    """Version 2.4: a run refers to the variables and files of its Python, and may have them embedded."""
    return saved


def upgrade_to_2_5(saved: dict[str, Any]) -> dict[str, Any]:
    """Version 2.5: a call that waits for an approval says what it would reach."""
    return saved


# Each function makes its version from the one before it. A new major version has another shape; a minor one adds to it.
UPGRADES: dict[str, Upgrade] = {
    "1.0": upgrade_to_1_0,
    "2.0": upgrade_to_2_0,
    "2.1": upgrade_to_2_1,
    "2.2": upgrade_to_2_2,
    "2.3": upgrade_to_2_3,
    "2.4": upgrade_to_2_4,
    "2.5": upgrade_to_2_5,
}
# Versions were written without the minor number at first.
_FORMER_SPELLINGS = {"1": "1.0", "2": "2.0"}

CURRENT_SCHEMA_VERSION = list(UPGRADES)[-1]
SUPPORTED_SCHEMA_VERSIONS = frozenset(UPGRADES)
SCHEMA_VERSION_SUMMARIES = {
    version: (upgrade.__doc__ or "").strip().splitlines()[0] for version, upgrade in UPGRADES.items()
}


def upgrade_saved_run(saved: Any) -> dict[str, Any]:
    """Return the saved run in the newest version; an unknown version raises :class:`UnknownVersion`."""
    if not isinstance(saved, dict):
        raise UnreadableState(f"it must be a JSON object, not {type(saved).__name__}")
    found = saved.get(VERSION_KEY)
    if not isinstance(found, str):
        raise UnreadableState(f"it has no {VERSION_KEY}", path=VERSION_KEY)
    written = _FORMER_SPELLINGS.get(found, found)
    if written not in UPGRADES:
        raise UnknownVersion(found)
    plain: dict[str, Any] = saved | {VERSION_KEY: written}
    versions = list(UPGRADES)
    for version in versions[versions.index(written) + 1 :]:
        plain = {**UPGRADES[version](plain), VERSION_KEY: version}
    return plain


_ITEM_TYPES = {"function": "function_call", "handoff": "function_call", "mcp": "mcp_approval_request"}
_OUTPUT_KINDS = ("output", "handed", "approval_answer")


def validate_state(state: State, path: str = "$.run") -> None:
    """Raise :class:`UnreadableState` if the parts of a run contradict each other."""
    length = len(state.transcript)
    if not 0 <= state.stored <= length:
        raise UnreadableState(
            f"stored is {state.stored}, but the transcript has {length} entries", path=f"{path}.stored"
        )
    for index, response in enumerate(state.responses):
        if not 0 <= response.start <= response.stop <= length:
            raise UnreadableState("a response lies outside of the transcript", path=f"{path}.responses[{index}]")
    if state.turn != len(state.responses):
        raise UnreadableState(
            f"turn is {state.turn}, but there are {len(state.responses)} responses", path=f"{path}.turn"
        )
    if state.ended and state.calls:
        raise UnreadableState("a completed run has open calls", path=f"{path}.calls")
    _check_calls(state, path)
    _check_selection(state, path)


def _check_calls(state: State, path: str) -> None:
    outputs = Counter(get_call_id(entry.item) for entry in state.transcript if entry.kind in _OUTPUT_KINDS)
    for index, call in enumerate(state.calls):
        place = f"{path}.calls[{index}]"
        _check_call(state, call, place)
        if any(other.id == call.id for other in state.calls[:index]):
            raise UnreadableState(f"the call {call.id!r} appears twice", path=place)
        if call.status == "done" and not outputs[call.id]:
            raise UnreadableState(f"the call {call.id!r} is done, but its output is missing", path=place)
        if call.child is not None:
            validate_state(call.child, f"{place}.child")
    open_calls = {call.id for call in state.calls}
    for index, entry in enumerate(state.transcript):
        if entry.kind not in ("call", "handoff", "approval_asked"):
            continue
        is_call, call_id = get_item_type(entry.item) in _ITEM_TYPES.values(), get_call_id(entry.item)
        if is_call and not outputs[call_id] and call_id not in open_calls:
            raise UnreadableState("a call has no output and is not open", path=f"{path}.transcript[{index}]")


def _check_call(state: State, call: CallRecord, path: str) -> None:
    if not state.responses or not state.turn_start <= call.position < state.responses[-1].stop:
        raise UnreadableState("a call lies outside of the latest response", path=path)
    item = state.transcript[call.position].item
    local = call.tool.kind == "local"
    named = call.kind == "mcp" or local or item.get("name") == call.tool.name
    kind = call.tool.namespace if local else _ITEM_TYPES[call.kind]
    if get_call_id(item) != call.id or get_item_type(item) != kind or not named:
        raise UnreadableState(f"the call {call.id!r} differs from its item in the transcript", path=path)


def validate_approvals(state: State, graph: AgentGraph, path: str = "$.run") -> None:
    """Raise :class:`UnreadableState` if a call that needs approval is about to be made without one."""
    approvals = Approvals(list(state.approvals))
    tools = index_tools_by_ref(getattr(graph.find(state.agent), "tools", ()))
    for index, call in enumerate(state.calls):
        place = f"{path}.calls[{index}]"
        if call.child is not None:
            validate_approvals(call.child, graph, f"{place}.child")
        tool = match_tool(tools, call.tool)
        needs_approval = tool is not None and tool.needs_approval is True
        if not needs_approval or call.uncertain or call.status not in ("approved", "started", "failed"):
            continue
        decision = approvals.find(call.tool, call.id, owner=state.agent)
        if decision is None or not decision.approved:
            raise UnreadableState(f"the call {call.id!r} of {call.tool} was not approved", path=place)


def _check_selection(state: State, path: str) -> None:
    window = state.conversation.window if isinstance(state.conversation, SessionConversation) else 0
    server = state.conversation
    if isinstance(server, ServerConversation) and not 0 <= server.acknowledged <= len(state.transcript):
        raise UnreadableState(
            "more entries are acknowledged than the transcript has", path=f"{path}.conversation.acknowledged"
        )
    if state.view is None:
        return
    for index, part in enumerate(state.view.shown):
        if isinstance(part, int) and not 0 <= part < window + len(state.transcript):
            raise UnreadableState("the model is shown an item that does not exist", path=f"{path}.view.shown[{index}]")


class SavedRun(PersistedStruct, frozen=True):
    """The saved form of a run: its state, references to the agents that it names, and the program's context.

    ``embedded_workspace`` is a :class:`~standfast.workspaces.bundles.WorkspaceBundle`.
    """

    version: str = msgspec.field(name="$schemaVersion")
    run: State
    agents: tuple[AgentRef, ...]
    context: SavedContext | None = None
    embedded_workspace: bytes | None = None


_encoder = msgspec.json.Encoder(enc_hook=encode_hook)
_decoder = msgspec.json.Decoder(SavedRun, dec_hook=decode_hook)


def encode_run(
    state: State, graph: AgentGraph, context: SavedContext | None, embedded: bytes | None = None
) -> dict[str, Any]:
    """Return the run as JSON values that share nothing with it."""
    refs = tuple(
        graph.get_ref(graph.find(path)) if graph.find(path) else _raise_unlisted_agent(graph, path)
        for path in list_agent_paths(state)
    )
    saved = SavedRun(CURRENT_SCHEMA_VERSION, state, refs, context, embedded)
    values: dict[str, Any] = msgspec.to_builtins(saved, enc_hook=encode_hook)
    return values


def parse_text(text: str | bytes) -> Any:
    """Return the JSON values of a saved run that was written as text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableState(f"it is not JSON: {error}") from None


def decode_run(data: Any, graph: AgentGraph, *, tolerate: Collection[str] = ()) -> SavedRun:
    """Return the saved run in ``data``; it must be readable and its agents must be unchanged."""
    saved = decode_saved(data)
    for ref in saved.agents:
        graph.resolve(ref, tolerate=tolerate)
    validate_state(saved.run)
    validate_approvals(saved.run, graph)
    return saved


def decode_saved(data: Any) -> SavedRun:
    """Return the saved run in ``data``, of this or an earlier version, without a look at the agents of the program."""
    try:
        saved = _decoder.decode(msgspec.json.encode(upgrade_saved_run(data)))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        message = str(error)
        path = message.rsplit(" - at `", 1)[-1].rstrip("`") if " - at `" in message else "$"
        raise UnreadableState(message, path=path) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadableState(f"it is not valid JSON: {error}") from None
    named = {ref.path for ref in saved.agents}
    for path in list_agent_paths(saved.run):
        if path not in named:
            raise UnreadableState(f"the agent at {path!r} is not listed", path="$.agents")
    return saved


def list_agent_paths(state: State) -> list[str]:
    """Return the path of every agent that the run names, nested runs included, in order of appearance."""
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
        f"the agent at {path!r} was reached by a handoff that does not declare it, so it cannot be found again",
        path="$.agents",
    )
