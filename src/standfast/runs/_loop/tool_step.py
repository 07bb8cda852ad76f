"""The tool calls of one turn: check approvals, make the calls, and record their outputs."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from standfast.agents.errors import ModelBehaviorError, RecipientChanged, ToolMissing
from standfast.agents.hosted_tools import MCPToolApprovalRequest
from standfast.agents.tool_identity import find_tool, get_call_arguments
from standfast.agents.types import maybe_await
from standfast.base.items import Item
from standfast.history.encryption.workspace_seal import find_seal
from standfast.lifecycle.scope import run_to_end
from standfast.models.interface import wrap_attributes
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import ToolExecutionConfig
from standfast.runs.core.state import CallRecord, State, TranscriptEntry, make_idempotency_key
from standfast.runs.core.steps import ApprovalsChecked, CallsInvoked
from standfast.runs.error_handlers import format_tool_error
from standfast.runs.items import EVENT_NAMES, RunItemStreamEvent
from standfast.runs.nested_run import run_nested
from standfast.runs.sandbox import add_sandbox_version
from standfast.runs.session_io import record_outcome
from standfast.tool_calls.call import (
    NOT_REPEATED_MESSAGE,
    REJECTION_MESSAGE,
    ApprovalCheck,
    CallSuspended,
    ToolCall,
    check_approval,
)
from standfast.tool_calls.execution import NotStarted, ToolCallOutcome, invoke_tool, run_all
from standfast.tool_calls.output import make_rejection, to_plain_value

_DEFAULT_EXECUTION = ToolExecutionConfig()


async def check_approvals(run: ActiveRun, calls: tuple[CallRecord, ...]) -> ApprovalsChecked:
    """Determine which calls may be made. Calls that a dead process left uncertain follow ``on_uncertain``."""
    checked, results = [], []
    for record in calls:
        if record.kind == "mcp":
            checked.append(await _check_mcp_approval(run, record))
            continue
        if record.child is not None:  # it was approved before its nested run started
            checked.append(replace(record, status="approved"))
            continue
        call = await bind_call(run, record)
        unknown = record.status == "unknown"
        early = _get_tool_execution(run).pre_approval_tool_input_guardrails and not unknown
        verdict = await check_approval(call, run.context, run_guardrails_first=early)
        if verdict.status != "rejected":
            _check_recipient(call, record)
        if unknown and verdict.status == "approved":
            status: Any = _resolve_uncertain_status(run, call)
            checked.append(replace(record, status=status, uncertain=status == "waiting"))
            continue
        if verdict.status == "waiting" and (decide := getattr(call.declared_tool, "on_approval", None)) is not None:
            answer = await maybe_await(decide(run.context, run.make_approval_item(state=run.state, call=record)))
            verdict = ApprovalCheck("approved" if answer["approve"] else "rejected", message=answer.get("reason"))
        results += verdict.guardrail_results
        if verdict.status == "approved" and verdict.arguments is None and not early:
            run.approved_calls[record.position] = call
        changed = {"arguments": verdict.arguments, "message": verdict.message, "shown": verdict.shown}
        if verdict.status == "waiting":
            changed["recipient"] = _get_recipient(call)
        checked.append(replace(record, status=verdict.status, **changed))
    return ApprovalsChecked(tuple(checked), run.record_guardrails(results))


async def find_missing_calls(run: ActiveRun) -> list[CallRecord]:
    """Return the open calls whose tool or handoff the agent no longer has."""
    calls = [call for call in run.state.calls if call.status not in ("done", "rejected") and call.kind != "mcp"]
    if not calls:
        return []
    box = await run.get_toolbox(run.state.agent, refresh=True)
    return [
        call
        for call in calls
        if (call.tool.name not in box.handoffs_by_name if call.kind == "handoff" else box.find_tool(call.tool) is None)
    ]


async def reject_missing_calls(run: ActiveRun, missing: list[CallRecord]) -> ApprovalsChecked:
    """Reject the calls, whose output is then that there is no such tool; raise :class:`ToolMissing` if that is set."""
    if run.config.tool_not_found_behavior != "return_error_to_model":
        box = await run.get_toolbox(run.state.agent)
        names = [*map(str, box.tools_by_ref), *box.handoffs_by_name]
        raise ToolMissing(str(missing[0].tool), agent_name=run.current_agent.name, known_tools=names)
    rejected = []
    for call in missing:
        message = await format_tool_error(run, "tool_not_found", call, f"Tool '{call.tool}' not found.")
        changed = {"status": "rejected", "kind": "function", "uncertain": False, "message": message, "child": None}
        rejected.append(replace(call, **changed))
    return ApprovalsChecked(tuple(rejected))


async def invoke_calls(run: ActiveRun, calls: tuple[CallRecord, ...]) -> CallsInvoked:
    """Make the calls concurrently, up to the configured limit. The output of one is kept even if others fail."""
    attempts = [_CallAttempt(record) for record in calls]
    invoke = _invoke_call if run.recorder is None else _invoke_and_record
    work: list[Callable[[], Awaitable[None]]] = [partial(invoke, run, attempt) for attempt in attempts]
    outcomes, cancelled = await run_all(work, limit=_get_tool_execution(run).max_function_tool_concurrency)
    error: BaseException | None = cancelled
    entries: list[TranscriptEntry] = []
    records: list[CallRecord] = []
    results: list[Any] = []
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        if attempt.recorded:
            if isinstance(outcome, Exception):
                error = error or outcome
            continue
        results += attempt.invocation.guardrail_results
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, NotStarted | asyncio.CancelledError):
                error = error or outcome
            if attempt.entry is None:
                status = _get_unfinished_status(outcome, attempt)
                records.append(replace(attempt.record, status=status))
                continue
        if attempt.entry is not None:
            position = len(run.state.transcript) + len(entries)
            run.raw_items[position] = attempt.invocation.output
            entries.append(attempt.entry)
        if attempt.record.status == "done":
            run.context.approvals.consume(attempt.record.tool, attempt.record.id)
        records.append(attempt.record)
    if error is None and any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes):
        error = asyncio.CancelledError()
    return CallsInvoked(tuple(records), tuple(entries), run.record_guardrails(results), error)


@dataclass
class _CallAttempt:
    """A call while it is made; ``entry`` is its output for the transcript, once there is one."""

    record: CallRecord
    invocation: ToolCallOutcome = field(default_factory=ToolCallOutcome)
    entry: TranscriptEntry | None = None
    recorded: bool = False
    nested: bool = False
    recorded_call: Any = None

    def save_child(self, child: State) -> None:
        """Keep the state of the nested run."""
        self.record = replace(self.record, child=child)

    def complete(self, entry: TranscriptEntry) -> None:
        """Mark the call as done, with its output."""
        self.entry, self.record = entry, replace(self.record, status="done", child=None, message=None)


async def _invoke_call(run: ActiveRun, attempt: _CallAttempt) -> None:
    record = attempt.record
    if record.kind == "mcp":
        attempt.entry = _make_mcp_response(run, record, approve=record.status == "started")
        attempt.invocation.output = attempt.entry.item
    elif record.status == "rejected":
        default = NOT_REPEATED_MESSAGE if record.uncertain else REJECTION_MESSAGE
        attempt.invocation.output = record.message or await format_tool_error(run, "approval_rejected", record, default)
        item = make_rejection(record.tool, record.id, attempt.invocation.output)
        attempt.entry = TranscriptEntry(item, "output", agent=run.state.agent, tool=record.tool)
    else:
        call = await bind_call(run, record)
        _check_recipient(call, record)
        attempt.nested = call.tool.agent_tool is not None
        if run.recorder is not None and not attempt.nested:
            attempt.recorded_call = run.recorder.open_call(run, record)
            call = dataclasses.replace(call, recorded_call=attempt.recorded_call)
        perform = (
            partial(run_nested, run, call, attempt.save_child, record.child)
            if call.tool.agent_tool is not None
            else None
        )
        try:
            await invoke_tool(
                call,
                run.context,
                attempt.invocation,
                hooks=run.hooks,
                invoker=perform,
                resumed=record.child is not None,
            )
        except CallSuspended:
            attempt.record = replace(attempt.record, status="waiting")
            return
        except BaseException:
            if attempt.invocation.item is not None:  # the tool has returned; what failed came after it
                attempt.complete(_make_output_entry(run, attempt))
            raise
        attempt.entry = _make_output_entry(run, attempt)
    attempt.complete(attempt.entry)


def _make_output_entry(run: ActiveRun, attempt: "_CallAttempt") -> TranscriptEntry:
    return TranscriptEntry(
        attempt.invocation.item or {},
        "output",
        agent=run.state.agent,
        tool=attempt.record.tool,
        value=_get_plain_value(attempt.invocation.output, attempt.invocation.item),
        custom_data=None if attempt.invocation.custom_data is None else to_plain_value(attempt.invocation.custom_data),
    )


async def _invoke_and_record(run: ActiveRun, attempt: _CallAttempt) -> None:
    """Make a call and record its output without waiting for the other calls."""
    try:
        await _invoke_call(run, attempt)
    finally:
        try:
            if attempt.record.status == "done" and attempt.entry is not None:
                await run_to_end(_record_call(run, attempt, attempt.entry), grace=None)
        finally:
            if attempt.recorded_call is not None:
                attempt.recorded_call.finish()


async def _record_call(run: ActiveRun, attempt: _CallAttempt, entry: TranscriptEntry) -> None:
    run.context.approvals.consume(attempt.record.tool, attempt.record.id)
    attempt.recorded = True
    async with add_sandbox_version(run, attempt.recorded_call, attempt.record.id):
        guardrails = run.record_guardrails(attempt.invocation.guardrail_results)
        await record_outcome(run, CallsInvoked((attempt.record,), (entry,), guardrails), attempt.recorded_call)
    transcript = run.state.transcript
    position = next(place for place in reversed(range(len(transcript))) if transcript[place] is entry)
    run.raw_items[position] = attempt.invocation.output
    await emit_items(run, position, position + 1)


async def emit_items(run: ActiveRun, start: int, stop: int | None = None) -> None:
    """Emit an event for each entry of the transcript from ``start`` to ``stop``."""
    if run.emit is None:
        return
    for position in range(start, len(run.state.transcript) if stop is None else stop):
        entry = run.state.transcript[position]
        name = None if entry.hidden else EVENT_NAMES.get(entry.kind)
        if name is not None:
            await run.emit(RunItemStreamEvent(name, run.get_item(position)))


async def bind_call(run: ActiveRun, record: CallRecord) -> ToolCall:
    """Return the call with its tool; raises :class:`ToolMissing` when the agent no longer has the tool."""
    state, agent = run.state, run.current_agent
    tool = find_tool((await run.get_toolbox(state.agent)).tools_by_ref, record.tool, agent_name=agent.name)
    # An approved call is used once: the tool gets its parsed arguments and may change them.
    approved = run.approved_calls.pop(record.position, None)
    if approved is not None and approved.tool is tool and record.arguments is None:
        return approved
    item = state.transcript[record.position].item
    run.workspace.is_confidential |= find_seal(run.session) is not None
    return ToolCall(
        tool=tool,
        ref=record.tool,
        item=item,
        raw=run.raw_items.get(record.position) or wrap_attributes(item),
        agent=agent,
        owner=state.agent,
        arguments=record.arguments if record.arguments is not None else get_call_arguments(item) or "",
        idempotency_key=make_idempotency_key(state, run.route, record),
        run_config=run.config,
        conversation_key=run.conversation_key,
        workspace=run.workspace,
    )


def _get_recipient(call: ToolCall) -> str:
    return call.tool.recipient or "local"


def _check_recipient(call: ToolCall, record: CallRecord) -> None:
    """Raise :class:`RecipientChanged` if the tool of this name is not the one that a person was asked about."""
    if record.recipient is not None and record.recipient != _get_recipient(call):
        raise RecipientChanged(str(call.ref), agent_name=call.agent.name)


def _get_tool_execution(run: ActiveRun) -> ToolExecutionConfig:
    return run.config.tool_execution or _DEFAULT_EXECUTION


def _resolve_uncertain_status(run: ActiveRun, call: ToolCall) -> str:
    """Return the status of a call that may have been made already: made again, waiting for a person, or an error."""
    if run.recorder is not None and call.tool.agent_tool is not None:
        return "approved"  # a nested run that had started would be in the journal
    if call.tool.idempotent or call.tool.on_uncertain == "retry":
        return "approved"
    if call.tool.on_uncertain == "ask":
        return "waiting"
    raise ModelBehaviorError(
        f"the call {call.id!r} of {call.ref} was in progress when its process ended, and on_uncertain is 'fail'"
    )


def _get_unfinished_status(outcome: BaseException, attempt: _CallAttempt) -> Any:
    """Return the status of a call without an output. A tool that was called is not simply called again."""
    if attempt.record.status == "rejected":
        return "rejected"
    nothing_done = attempt.nested and attempt.record.child is None
    if isinstance(outcome, NotStarted) or not attempt.invocation.invoked or nothing_done:
        return "approved"
    return "started" if attempt.invocation.returned or isinstance(outcome, asyncio.CancelledError) else "failed"


def _get_plain_value(output: Any, item: Item | None) -> Any:
    plain = to_plain_value(output)
    return None if item is not None and plain == item.get("output") else plain


async def _check_mcp_approval(run: ActiveRun, record: CallRecord) -> CallRecord:
    decision = run.context.approvals.find(record.tool, record.id, owner=run.state.agent)
    if decision is not None:
        return replace(record, status="approved" if decision.approved else "rejected", message=decision.message)
    toolbox = await run.get_toolbox(run.state.agent)
    server = toolbox.find_hosted_mcp(record.tool.namespace)
    complete = run.state.transcript[record.position].item.get("arguments") is not None
    if server is None or server.on_approval_request is None or not complete:
        return replace(record, status="waiting")
    raw = run.raw_items.get(record.position) or wrap_attributes(run.state.transcript[record.position].item)
    answer = await maybe_await(server.on_approval_request(MCPToolApprovalRequest(run.context, raw)))
    return replace(record, status="approved" if answer["approve"] else "rejected", message=answer.get("reason"))


def _make_mcp_response(run: ActiveRun, record: CallRecord, *, approve: bool) -> TranscriptEntry:
    item: Item = {"type": "mcp_approval_response", "approval_request_id": record.id, "approve": approve}
    if record.message and not approve:
        item["reason"] = record.message
    return TranscriptEntry(item, "approval_answer", agent=run.state.agent)
