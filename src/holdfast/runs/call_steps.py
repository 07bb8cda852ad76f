"""The calls of one turn: judging them, making them, and what the model is told of those that are not made."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.agents.errors import ModelBehaviorError
from holdfast.agents.hosted_tools import MCPToolApprovalRequest
from holdfast.agents.tool_refs import find_tool
from holdfast.agents.types import resolved
from holdfast.base.items import Item
from holdfast.runs.config import ToolExecutionConfig
from holdfast.runs.error_handling import formatted
from holdfast.runs.events import EVENT_NAMES, RunItemStreamEvent
from holdfast.runs.live import Live
from holdfast.runs.nested import run_nested
from holdfast.runs.persistence import keep
from holdfast.runs.state import CallRecord, Entry, GuardrailRecord, State
from holdfast.runs.steps import CallsMade, Judged
from holdfast.runs.verdicts import verdict_record
from holdfast.toolcalls.batch import NotBegun, all_of
from holdfast.toolcalls.call import Call
from holdfast.toolcalls.invoke import Made, Unfinished, invoke
from holdfast.toolcalls.judge import REJECTED, judge
from holdfast.toolcalls.output import output_item, plain_value


async def judge_calls(run: Live, calls: tuple[CallRecord, ...]) -> Judged:
    """Find out which calls may be made. Those that were under way when a process died follow their tool's policy."""
    judged, results = [], []
    for record in calls:
        if record.kind == "mcp":
            judged.append(await _judge_mcp(run, record))
            continue
        if record.child is not None:  # it was approved before it began
            judged.append(replace(record, status="approved"))
            continue
        call = await bound(run, record)
        unknown = record.status == "unknown"
        early = _execution(run).pre_approval_tool_input_guardrails and not unknown
        verdict = await judge(call, run.context, guard_first=early)
        if unknown and verdict.status == "approved":
            status: Any = _after_a_crash(run, call)
            judged.append(replace(record, status=status, uncertain=status == "waiting"))
            continue
        results += verdict.results
        changed = {"arguments": verdict.arguments, "message": verdict.message}
        judged.append(replace(record, status=verdict.status, **changed))
    return Judged(tuple(judged), _recorded(run, results))


async def make_calls(run: Live, calls: tuple[CallRecord, ...]) -> CallsMade:
    """Make the calls at the same time, as far as they may. What one of them returned is kept whatever the others do."""
    made = [_Made(record) for record in calls]
    make = _make if run.keeper is None else _make_and_keep
    work: list[Callable[[], Awaitable[None]]] = [partial(make, run, one) for one in made]
    ended, cancelled = await all_of(work, limit=_execution(run).max_function_tool_concurrency)
    error: BaseException | None = cancelled
    entries: list[Entry] = []
    records: list[CallRecord] = []
    results: list[Any] = []
    for one, outcome in zip(made, ended, strict=True):
        if one.kept:
            if isinstance(outcome, Exception):
                error = error or outcome
            continue
        results += one.call.results
        if isinstance(outcome, BaseException):
            if not isinstance(outcome, NotBegun | asyncio.CancelledError):
                error = error or outcome
            if one.entry is None:
                records.append(replace(one.record, status=_left(outcome, one.call)))
                continue
        if one.entry is not None:
            position = len(run.state.transcript) + len(entries)
            run.raws[position] = one.call.output
            entries.append(one.entry)
        if one.record.status == "done":
            run.context.approvals.spend(one.record.tool, one.record.id)
        records.append(one.record)
    if error is None and any(isinstance(outcome, asyncio.CancelledError) for outcome in ended):
        error = asyncio.CancelledError()
    return CallsMade(tuple(records), tuple(entries), _recorded(run, results), error)


@dataclass
class _Made:
    """A call while it is made; ``entry`` is there when the model can be told something."""

    record: CallRecord
    call: Made = field(default_factory=Made)
    entry: Entry | None = None
    kept: bool = False

    def keep(self, child: State) -> None:
        """Remember how far the nested run came."""
        self.record = replace(self.record, child=child)

    def end(self, entry: Entry) -> None:
        """The model can be told what came of it."""
        self.entry, self.record = entry, replace(self.record, status="done", child=None, message=None)


async def _make(run: Live, one: _Made) -> None:
    record = one.record
    if record.kind == "mcp":
        one.entry = _mcp_answer(run, record, approve=record.status == "started")
        one.call.output = one.entry.item
    elif record.status == "rejected":
        one.call.output = record.message or await formatted(run, "approval_rejected", record, REJECTED)
        item = output_item(record.id, one.call.output)
        one.entry = Entry(item, "output", agent=run.state.agent, tool=record.tool)
    else:
        call = await bound(run, record)
        perform = partial(run_nested, run, call, one.keep, record.child) if call.tool.agent_tool is not None else None
        try:
            await invoke(call, run.context, one.call, hooks=run.hooks, perform=perform, again=record.child is not None)
        except Unfinished:
            one.record = replace(one.record, status="waiting")
            return
        except BaseException:
            if one.call.item is not None:  # it has an output: what failed came after it
                one.end(_output(run, one))
            raise
        one.entry = _output(run, one)
    one.end(one.entry)


def _output(run: Live, one: "_Made") -> Entry:
    return Entry(
        one.call.item or {},
        "output",
        agent=run.state.agent,
        tool=one.record.tool,
        value=_value(one.call.output, one.call.item),
        custom_data=None if one.call.custom_data is None else plain_value(one.call.custom_data),
    )


async def _make_and_keep(run: Live, one: _Made) -> None:
    """Make a call and write down what came of it, whatever the others are doing."""
    try:
        await _make(run, one)
    finally:
        if one.record.status == "done" and one.entry is not None:
            await _keep(run, one, one.entry)


async def _keep(run: Live, one: _Made, entry: Entry) -> None:
    verdicts = tuple(verdict_record(result, agent=run.state.agent) for result in one.call.results)
    run.context.approvals.spend(one.record.tool, one.record.id)
    one.kept = True
    await keep(run, CallsMade((one.record,), (entry,), verdicts))
    transcript = run.state.transcript
    position = next(place for place in reversed(range(len(transcript))) if transcript[place] is entry)
    run.raws[position] = one.call.output
    await tell(run, position, position + 1)


async def tell(run: Live, start: int, stop: int | None = None) -> None:
    """Let whoever listens see the entries of the transcript from ``start`` on."""
    if run.emit is None:
        return
    for position in range(start, len(run.state.transcript) if stop is None else stop):
        name = EVENT_NAMES.get(run.state.transcript[position].kind)
        if name is not None:
            await run.emit(RunItemStreamEvent(name, run.item(position)))


async def bound(run: Live, record: CallRecord) -> Call:
    """The call with the tool it means; :class:`ToolMissing` when the agent does not have it any more."""
    state = run.state
    box = await run.toolbox(state.agent)
    item = state.transcript[record.position].item
    return Call(
        tool=find_tool(box.by_ref, record.tool, agent_name=run.current_agent.name),
        ref=record.tool,
        item=item,
        raw=run.raws.get(record.position, item),
        agent=run.current_agent,
        owner=state.agent,
        arguments=record.arguments if record.arguments is not None else item.get("arguments") or "",
        idempotency_key=idempotency_key(state, run.route, record),
        run_config=run.config,
        conversation=run.conversation,
    )


def idempotency_key(state: State, route: tuple[str, ...], record: CallRecord) -> str:
    """What the call's tool is told to know it by, however often it is made. ``route`` leads to the run of ``state``."""
    return ":".join((state.run_id, *route, record.id))


def _execution(run: Live) -> ToolExecutionConfig:
    return run.config.tool_execution or ToolExecutionConfig()


def _after_a_crash(run: Live, call: Call) -> str:
    """What becomes of a call that may have happened already."""
    if run.keeper is not None and call.tool.agent_tool is not None:
        return "approved"  # a keeper would know if the nested run had begun
    if call.tool.idempotent or call.tool.on_uncertain == "retry":
        return "approved"
    if call.tool.on_uncertain == "ask":
        return "waiting"
    raise ModelBehaviorError(
        f"the call {call.id!r} of {call.ref} was under way when its process ended, and may not be made again"
    )


def _left(outcome: BaseException, made: Made) -> Any:
    """The status of a call that did not come to its end. One that was made is not simply made again."""
    if isinstance(outcome, NotBegun):
        return "approved"
    return "started" if made.returned or isinstance(outcome, asyncio.CancelledError) else "failed"


def _value(output: Any, item: Item | None) -> Any:
    plain = plain_value(output)
    return None if item is not None and plain == item.get("output") else plain


async def _judge_mcp(run: Live, record: CallRecord) -> CallRecord:
    decision = run.context.approvals.find(record.tool, record.id, owner=run.state.agent)
    if decision is not None:
        return replace(record, status="approved" if decision.approved else "rejected", message=decision.message)
    box = await run.toolbox(run.state.agent)
    server = box.hosted_mcp(record.tool.namespace)
    if server is None or server.on_approval_request is None:
        return replace(record, status="waiting")
    raw = run.raws.get(record.position, run.state.transcript[record.position].item)
    answer = await resolved(server.on_approval_request(MCPToolApprovalRequest(run.context, raw)))
    return replace(record, status="approved" if answer["approve"] else "rejected", message=answer.get("reason"))


def _mcp_answer(run: Live, record: CallRecord, *, approve: bool) -> Entry:
    item: Item = {"type": "mcp_approval_response", "approval_request_id": record.id, "approve": approve}
    if record.message and not approve:
        item["reason"] = record.message
    return Entry(item, "approval_answer", agent=run.state.agent)


def _recorded(run: Live, results: list[Any]) -> tuple[GuardrailRecord, ...]:
    start = len(run.state.guardrails)
    run.verdicts.update((start + index, result) for index, result in enumerate(results))
    return tuple(verdict_record(result, agent=run.state.agent) for result in results)
