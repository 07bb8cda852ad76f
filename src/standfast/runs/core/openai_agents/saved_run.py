"""Read paused runs that openai-agents saved, from schema 1.0 to 1.21.

What :class:`RunState` of openai-agents writes is converted to the state of a run here, which can be resumed and saved
like any other. Agents are found by following the handoffs of the run, and by name where these do not help.
"""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from standfast.agents.approvals import RecordedDecision
from standfast.agents.graph import AgentGraph
from standfast.agents.tool_identity import LOCAL_CALL_TYPES, ToolRef
from standfast.agents.tools import LocalTool
from standfast.base.item_pairs import get_call_id
from standfast.base.items import Item
from standfast.runs.core.openai_agents.values import (
    AgentFinder,
    iter_decisions,
    parse_tool_key,
    read_context,
    read_guardrails,
    read_trace,
    read_usage,
)
from standfast.runs.core.serialization import (
    CURRENT_SCHEMA_VERSION,
    SavedRun,
    UnreadableState,
    validate_approvals,
    validate_state,
)
from standfast.runs.core.state import (
    CallRecord,
    CallStatus,
    ConversationMode,
    EntryKind,
    GuardrailLog,
    InlineConversation,
    InputSelection,
    ResponseLog,
    ResponseRecord,
    RunTranscript,
    ServerConversation,
    State,
    TranscriptEntry,
    UsageRecord,
)

OLDEST, NEWEST = (1, 0), (1, 21)
KINDS: dict[str, EntryKind] = {
    "message_output_item": "message",
    "reasoning_item": "reasoning",
    "tool_call_item": "call",
    "tool_call_output_item": "output",
    "handoff_call_item": "handoff",
    "handoff_output_item": "handed",
    "tool_search_call_item": "search",
    "tool_search_output_item": "found",
    "mcp_list_tools_item": "tools_listed",
    "mcp_approval_request_item": "approval_asked",
    "mcp_approval_response_item": "approval_answer",
    "compaction_item": "compaction",
    "input_item": "input",
}


class ForeignVersion(UnreadableState):
    """openai-agents saved the run, in a schema version that is not known here."""

    code = "foreign-state-version"

    def __init__(self, found: Any) -> None:
        super().__init__(
            f"openai-agents wrote it with schema version {found!r}, and this standfast reads the versions 1.0 to"
            f" {NEWEST[0]}.{NEWEST[1]} of openai-agents. Resume it with openai-agents, or update standfast",
            path="$schemaVersion",
        )


def is_openai_agents_run(saved: Any) -> bool:
    """Return whether the saved run was written by openai-agents."""
    return isinstance(saved, dict) and "run" not in saved and {"original_input", "current_agent"} <= saved.keys()


def read_openai_agents_run(saved: dict[str, Any], graph: AgentGraph) -> SavedRun:
    """Return a run that openai-agents saved, as it would be saved here.

    What cannot be carried on raises :class:`UnreadableState`, which names it. What is left out without changing how the
    run continues is named in a warning.
    """
    _check_version(saved.get("$schemaVersion"))
    try:
        reader = _Reader(saved, graph)
        state = reader.read_state()
        context = read_context(saved.get("context") or {})
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise UnreadableState(f"openai-agents wrote it, but it is damaged ({type(error).__name__}: {error})") from error
    for text in reader.left_out:
        warnings.warn(f"the run that openai-agents saved: {text}", UserWarning, stacklevel=3)
    validate_state(state)
    validate_approvals(state, graph)
    return SavedRun(CURRENT_SCHEMA_VERSION, state, (), context)


def _check_version(found: Any) -> None:
    try:
        version = tuple(map(int, str(found).split(".")))
    except ValueError:
        version = ()
    if len(version) != 2 or not OLDEST <= version <= NEWEST:
        raise ForeignVersion(found)


class _Reader:
    """Converts one run; the runs of nested agents get readers of their own."""

    def __init__(
        self,
        saved: dict[str, Any],
        graph: AgentGraph,
        *,
        start: str | None = None,
        outer_decisions: Iterable[RecordedDecision] = (),
    ) -> None:
        self.saved, self.graph = saved, graph
        self.outer_decisions = tuple(outer_decisions)
        self.left_out: list[str] = []
        self.items: list[dict[str, Any]] = saved.get("session_items") or saved.get("generated_items") or []
        self.finder = AgentFinder(graph, self.items, start)
        self.given = _as_items(saved["original_input"])

    def read_state(self) -> State:
        saved, context = self.saved, self.saved.get("context") or {}
        self._check_parts()
        transcript = self._read_transcript()
        responses = self._read_responses(transcript)
        agent = self.finder.find_current(saved["current_agent"])
        started = bool(responses or self.items)
        calls = tuple(self._iter_calls(transcript, responses, agent)) if started else ()
        return State(
            run_id=self._make_run_id(),
            input=saved["original_input"],
            transcript=RunTranscript(transcript if started else ()),
            responses=ResponseLog(responses),
            conversation=self._read_conversation(responses),
            input_taken=started,
            stored=self._count_stored(transcript, responses) if started else 0,
            view=self._read_view(transcript) if started else None,
            agent=agent,
            start_hooks_run=bool(responses) and transcript[responses[-1].stop - 1].agent == agent,
            input_checked=bool(responses),
            turn=len(responses),
            max_turns=saved.get("max_turns"),
            calls=calls,
            pending_input=tuple(saved.get("pending_input") or ()),
            tools_used=self._read_tools_used(agent),
            guardrails=GuardrailLog(read_guardrails(saved, agent, self.finder)),
            approvals=tuple(self._iter_decisions(context, calls)),
            usage=read_usage(context.get("usage") or {}),
            tool_input=context.get("tool_input"),
            reasoning_item_id_policy=saved.get("reasoning_item_id_policy"),
            trace=read_trace(saved.get("trace")),
        )

    def _check_parts(self) -> None:
        for name, value in self.saved.items():
            if "sandbox" in name and value:
                raise UnreadableState(
                    "openai-agents wrote it, and it belongs to a sandbox of openai-agents, which cannot be taken over."
                    " Resume it with openai-agents",
                    path=f"$.{name}",
                )
        if self.saved.get("generated_prompt_cache_key"):
            self.left_out.append("its prompt cache key is not used")

    # --- items ------------------------------------------------------------------------------------

    def _read_transcript(self) -> list[TranscriptEntry]:
        entries = [TranscriptEntry(item, "given") for item in self.given]
        for item, agent in zip(self.items, self.finder.paths, strict=True):
            if item["type"] == "tool_approval_item":
                continue
            entries.append(self._read_entry(item, agent))
        return entries

    def _read_entry(self, item: dict[str, Any], agent: str) -> TranscriptEntry:
        raw, kind = item["raw_item"], KINDS.get(item["type"])
        if kind is None:
            raise UnreadableState(f"openai-agents wrote it, and its item {item['type']!r} is not known here")
        value = item.get("output") if kind == "output" and item.get("output") != raw.get("output") else None
        return TranscriptEntry(
            raw,
            kind,
            agent=agent,
            tool=self._find_tool(raw, agent) if kind == "call" else None,
            value=value,
            custom_data=item.get("custom_data") if kind == "output" else None,
            target=self.finder.find_target(item) if kind == "handed" else None,
            input_id=item.get("input_id") if kind == "input" else None,
        )

    def _find_tool(self, call: Item, agent: str) -> ToolRef | None:
        """Return the tool that carries the call out, or ``None`` if the provider does."""
        kind = call.get("type")
        if kind == "function_call":
            return ToolRef.from_call(call["name"], call.get("namespace"))
        if kind not in LOCAL_CALL_TYPES:
            return None
        for tool in getattr(self.graph.find(agent), "tools", ()):
            if isinstance(tool, LocalTool) and tool.call_type == kind and call.get("name") in (None, tool.name):
                return None if tool.is_run_by_provider() else ToolRef("local", tool.name, kind)
        raise UnreadableState(
            f"openai-agents wrote it, and the agent at {agent!r} has no tool for its {kind}. Give it one, or resume it"
            " with openai-agents",
            path="$.generated_items",
        )

    def _read_responses(self, transcript: Sequence[TranscriptEntry]) -> list[ResponseRecord]:
        """Return the responses. One whose items a handoff filter removed has none here."""
        records, place = list[ResponseRecord](), len(self.given)
        for response in self.saved.get("model_responses") or ():
            start, output = place, response.get("output") or []
            if output:
                found = _find_run(transcript, output, place)
                start = place if found is None else found
                place = start if found is None else start + len(output)
            records.append(
                ResponseRecord(
                    start,
                    place,
                    read_usage(response.get("usage") or {}),
                    response.get("response_id"),
                    response.get("request_id"),
                )
            )
        return records

    def _read_view(self, transcript: Sequence[TranscriptEntry]) -> InputSelection | None:
        """Return what the model is shown, if a handoff filter or a nested history chose it."""
        shown_items = [item["raw_item"] for item in self._iter_shown()]
        if shown_items == [entry.item for entry in transcript[len(self.given) :]]:
            return None
        shown: list[int | Item] = list(range(len(self.given)))
        place = len(self.given)
        for raw in shown_items:
            found = next((at for at in range(place, len(transcript)) if transcript[at].item == raw), None)
            shown.append(raw if found is None else found)
            place = place if found is None else found + 1
        return InputSelection(tuple(shown), len(transcript))

    def _iter_shown(self) -> Iterator[dict[str, Any]]:
        return (item for item in self.saved.get("generated_items") or () if item["type"] != "tool_approval_item")

    def _count_stored(self, transcript: Sequence[TranscriptEntry], responses: Sequence[ResponseRecord]) -> int:
        """Return how many entries the session has, if the run has one: earlier turns, and part of the latest."""
        before = responses[-1].start if responses else len(transcript)
        return min(before + int(self.saved.get("current_turn_persisted_item_count") or 0), len(transcript))

    def _read_conversation(self, responses: Sequence[ResponseRecord]) -> ConversationMode:
        saved = self.saved
        server = saved.get("conversation_id"), saved.get("previous_response_id")
        auto = bool(saved.get("auto_previous_response_id"))
        if server == (None, None) and not auto:
            return InlineConversation()
        return ServerConversation(*server, auto=auto, acknowledged=responses[-1].stop if responses else 0)

    # --- calls ------------------------------------------------------------------------------------

    def _iter_calls(
        self, transcript: Sequence[TranscriptEntry], responses: Sequence[ResponseRecord], agent: str
    ) -> Iterator[CallRecord]:
        """Yield the calls of the latest turn, if the run waits in it."""
        step = self.saved.get("current_step") or {}
        if step.get("type") != "next_step_interruption" or not responses:
            return
        waiting = {get_call_id(item["raw_item"]) for item in step["data"]["interruptions"]}
        functions = (self.saved.get("last_processed_response") or {}).get("functions") or ()
        nested = {get_call_id(call["tool_call"]): call.get("agent_run_state") for call in functions}
        latest = responses[-1]
        answered = {get_call_id(e.item) for e in transcript[latest.stop :] if e.kind in ("output", "approval_answer")}
        for place in range(latest.start, latest.stop):
            entry = transcript[place]
            if entry.tool is None and entry.kind not in ("handoff", "approval_asked"):
                continue
            call_id = get_call_id(entry.item)
            assert call_id is not None  # noqa: S101 - calls have an id
            child = None
            status: CallStatus = "done" if call_id in answered else "waiting" if call_id in waiting else "asked"
            if nested.get(call_id) and status != "done":
                child, status = self._read_child(nested[call_id], agent, entry.item), "waiting"
            elif status == "asked" and self._is_agent_tool(agent, entry.item):
                self.left_out.append(
                    f"the run of the agent that {entry.item['name']!r} calls was not saved: it begins again, and asks"
                    " for approval again"
                )
            yield _make_call(entry, call_id, place, status, child)

    def _read_child(self, saved: dict[str, Any], agent: str, call: Item) -> State:
        path = self._find_agent_tool(agent, call)
        # Until schema 1.17 decisions about the calls of nested runs were kept in the outer run.
        decisions = [made for made in self._iter_decisions(self.saved.get("context") or {}, ()) if made.call_id]
        reader = _Reader(saved, self.graph, start=path, outer_decisions=[*self.outer_decisions, *decisions])
        state = reader.read_state()
        self.left_out += reader.left_out
        # Usage is counted once, in the outer run.
        return msgspec.structs.replace(state, usage=UsageRecord())

    def _is_agent_tool(self, agent: str, call: Item) -> bool:
        return self._find_agent_tool(agent, call) is not None

    def _find_agent_tool(self, agent: str, call: Item) -> str | None:
        for tool in getattr(self.graph.find(agent), "tools", ()):
            if getattr(tool, "agent_tool", None) is not None and tool.name == call.get("name"):
                return self.graph.get_path(tool.agent_tool.agent)
        return None

    # --- decisions and results --------------------------------------------------------------------

    def _iter_decisions(self, context: Mapping[str, Any], calls: Iterable[CallRecord]) -> Iterator[RecordedDecision]:
        yield from self.outer_decisions
        hosted = {call.tool.name: call.tool for call in calls if call.kind == "mcp" or call.tool.kind == "local"}
        for key, decision in (context.get("approvals") or {}).items():
            ref = hosted.get(key) or parse_tool_key(key)
            yield from iter_decisions(ref, decision, None)
        for entry in context.get("function_tool_approvals") or ():
            owner = self.finder.find(entry["agent"])
            yield from iter_decisions(parse_tool_key(entry["tool_key"]), entry["decision"], owner)
        for entry in context.get("hosted_mcp_approvals") or ():
            identity = entry["identity"]
            if identity.get("type") == "server_tool":
                ref = ToolRef("hosted_mcp", identity["tool_name"], identity["server_label"])
                yield from iter_decisions(ref, entry["decision"], None)

    def _read_tools_used(self, agent: str) -> dict[str, tuple[str, ...]]:
        used: dict[str, tuple[str, ...]] = {}
        for identity, names in (self.saved.get("tool_use_tracker") or {}).items():
            path = self.finder.find({"name": identity.split("#")[0], "identity": identity}, default=agent)
            used[path] = tuple(dict.fromkeys((*used.get(path, ()), *names)))
        return used

    def _make_run_id(self) -> str:
        """Return an id made of what the run did, so that its calls have the same keys however often it is loaded."""
        identity = [self.saved["original_input"], self.items, self.saved.get("model_responses")]
        return f"run_{hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:32]}"


def _as_items(original: Any) -> list[Item]:
    return [{"content": original, "role": "user"}] if isinstance(original, str) else list(original)


def _find_run(transcript: Sequence[TranscriptEntry], output: Sequence[Item], start: int) -> int | None:
    """Return the position of the items of a response, which follow each other in the transcript."""
    for place in range(start, len(transcript) - len(output) + 1):
        if all(_is_same_item(transcript[place + at].item, item) for at, item in enumerate(output)):
            return place
    return None


def _is_same_item(left: Item, right: Item) -> bool:
    call_id = get_call_id(left)
    if call_id is not None:
        return call_id == get_call_id(right) and left.get("type") == right.get("type")
    return left == right


def _make_call(entry: TranscriptEntry, call_id: str, place: int, status: CallStatus, child: State | None) -> CallRecord:
    item = entry.item
    if entry.kind == "approval_asked":
        tool = ToolRef("hosted_mcp", item["name"], item["server_label"])
        return CallRecord(call_id, place, tool, kind="mcp", status=status)
    if entry.kind == "handoff":
        return CallRecord(call_id, place, ToolRef.from_call(item["name"]), kind="handoff", status="asked")
    assert entry.tool is not None  # noqa: S101 - a function call has a tool
    return CallRecord(call_id, place, entry.tool, status=status, child=child)
