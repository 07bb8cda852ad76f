"""Approvals: request, decide and expire them. Each is decided once, in one commit with the change of its run."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from standfast.agents.approvals import ApprovalDecision, RecordedDecision, digest_arguments
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidArguments, UncertainCall
from standfast.agents.tool_identity import ToolRef
from standfast.base.errors import ApprovalMoved, InvalidDecision, NotFound, RunMoved
from standfast.base.ids import new_id
from standfast.base.text import sanitize_text
from standfast.runs.core.state import CallRecord, State, make_idempotency_key
from standfast.runs.core.steps import CallDecided
from standfast.runs.toolbox import Toolbox
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.records import ENDED_STATUSES, ApprovalDecided, JournalEntry, decode_header, encode_entry
from standfast.runtime._engine.run_cipher import is_locked, require_unlocked
from standfast.runtime.errors import ApprovalSettled
from standfast.runtime.types import Approval, Verdict
from standfast.store.audit_entries import Actor, get_subject
from standfast.store.backend import Backend
from standfast.store.operations import AppendJournal, Op, SaveApproval, SaveRun
from standfast.store.records import ApprovalRecord, RunRecord
from standfast.tool_calls.arguments import parse_arguments
from standfast.tool_calls.output import format_output

APPROVAL_PREFIX = "approval"
"""The prefix of approval ids. It sorts after that of standing decisions (``always:...``)."""

_approval_decoder = msgspec.json.Decoder(Approval)


def decode_approval(record: ApprovalRecord) -> Approval:
    require_unlocked(record)
    return _approval_decoder.decode(record.data)


def describe_approval(record: ApprovalRecord) -> Approval:
    """Return the approval for a listing: a locked one has only its ids, status and times."""
    if not is_locked(record):
        return _approval_decoder.decode(record.data)
    return Approval(
        id=record.approval_id,
        kind="approval",
        status=record.status,  # type: ignore[arg-type]
        run_id=record.run_id,
        session_id=record.session_id,
        agent="",
        tool="",
        call_id="",
        arguments="",
        digest="",
        requested_at=record.requested_at,
        expires_at=record.expires_at,
        locked=True,
    )


def make_approval(state: State, call: CallRecord, record: RunRecord, *, agent: str, route: tuple[str, ...]) -> Approval:
    """Return the pending approval of a call."""
    item = state.transcript[call.position].item
    arguments = call.arguments if call.arguments is not None else call.shown or item.get("arguments") or ""
    return Approval(
        id=new_id(APPROVAL_PREFIX),
        kind="uncertain" if call.uncertain else "approval",
        status="pending",
        run_id=record.run_id,
        session_id=record.session_id,
        agent=agent,
        tool=str(call.tool),
        call_id=call.id,
        arguments=arguments,
        digest=hashlib.sha256(arguments.encode()).hexdigest(),
        requested_at=0,
        idempotency_key=make_idempotency_key(state, route, call),
        agent_path=state.agent,
        tool_key=call.tool.lookup_key,
        route=route,
    )


def set_deadline(approval: Approval, *, now: float, ttl: float | None) -> Approval:
    """Return the approval with its time of request and of expiry."""
    return replace(approval, requested_at=now, expires_at=None if ttl is None else now + ttl)


def make_save_op(approval: Approval, *, expected: int) -> SaveApproval:
    return SaveApproval(
        approval_id=approval.id,
        expected=expected,
        run_id=approval.run_id,
        session_id=approval.session_id,
        status=approval.status,
        data=msgspec.json.encode(approval),
        expires_at=approval.expires_at,
    )


async def get_standing_key(backend: Backend, session_id: str) -> str | None:
    """Return the key that replaces the run id for standing decisions of a session; ``None`` without such a session.

    The key contains the tape: the decisions of a deleted session do not apply to a new session of the same name.
    """
    record = await backend.get_session(session_id)
    return None if record is None else record.approvals_id


async def build_withdrawal_ops(backend: Backend, run_id: str) -> list[Op]:
    """Return the operations that withdraw the pending approvals of a run that ends."""
    records = await backend.list_approvals(status="pending", run_id=run_id, session_id=None, limit=1000, after="")
    return [
        make_save_op(replace(decode_approval(record), status="withdrawn"), expected=record.revision)
        for record in records
    ]


async def load_standing_decisions(backend: Backend, session_id: str | None) -> list[RecordedDecision]:
    """Return the decisions about every call of a tool in this session."""
    key = None if session_id is None else await get_standing_key(backend, session_id)
    if key is None:
        return []
    records = await backend.list_approvals(status=None, run_id=key, session_id=None, limit=1000, after="")
    decisions = []
    for record in records:
        approval = decode_approval(record)
        decision = ApprovalDecision(approval.status == "approved", approval.message)
        tool = ToolRef.from_lookup_key(approval.tool_key)
        decisions.append(RecordedDecision(tool, decision, owner=approval.agent_path))
    return decisions


EXPIRED_MESSAGE = "The call was not approved in time."
EXPIRED_UNCERTAIN_MESSAGE = "It is not known whether the call had an effect. It was not decided in time."
UNCERTAIN_REMEDY = "find out, then decide 'done' with its output, 'reject', or 'again' to have it made again"
DECISION_FIELDS = ("status", "decided_by", "decided_at", "message", "always")
STATUS_BY_VERDICT: dict[str, Any] = {"approve": "approved", "reject": "rejected", "done": "done", "again": "approved"}


async def decide_approval(
    ctx: RuntimeContext,
    approval_id: str,
    verdict: Verdict,
    *,
    arguments: Any,
    message: str | None,
    output: Any,
    by: Actor | str | None,
    always: bool,
) -> Approval:
    """Decide an approval; the same commit makes its run runnable and has the entry of the audit log."""
    subject, message = _validate_text("by", get_subject(by)), _validate_text("message", message)
    if not isinstance(always, bool):
        raise InvalidDecision(f"always must be True or False, not {always!r}")
    while True:
        record, run = await load_open_approval(ctx, approval_id)
        pending = decode_approval(record)
        _validate_decision(pending, verdict, arguments=arguments, output=output, always=always)
        edited = None if arguments is None else await _validate_arguments(ctx, pending, run, arguments)
        decided = replace(
            pending,
            status=STATUS_BY_VERDICT[verdict],
            decided_by=subject,
            decided_at=ctx.clock(),
            message=message,
            edited=edited,
            output=None if verdict != "done" else _format_output(output),
            always=always,
        )
        try:
            similar = await _find_similar(ctx, decided) if always else []
            facts = {"approval_id": approval_id, "run_id": run.run_id, "decision": verdict}
            entry, _ = ctx.audit.make_operation("decided", by, facts)
            await ctx.backend.commit(*await _build_decision_ops(ctx, record, run, decided, verdict, similar), entry)
        except (ApprovalMoved, RunMoved):
            continue
        ctx.subscriptions.notify_written(run.run_id)
        return decided


async def expire_approval(ctx: RuntimeContext, record: ApprovalRecord) -> str | None:
    """Reject an expired approval; return the run's id if the approval was still pending."""
    run = await ctx.backend.get_run(record.run_id)
    if run is None or run.status in ENDED_STATUSES:
        return None
    pending = decode_approval(record)
    message = EXPIRED_UNCERTAIN_MESSAGE if pending.kind == "uncertain" else EXPIRED_MESSAGE
    expired = replace(pending, status="expired", decided_at=ctx.clock(), message=message)
    try:
        await ctx.backend.commit(*await _build_decision_ops(ctx, record, run, expired, "expired"))
    except (ApprovalMoved, RunMoved):
        return None
    ctx.subscriptions.notify_written(run.run_id)
    return run.run_id


async def load_open_approval(ctx: RuntimeContext, approval_id: str) -> tuple[ApprovalRecord, RunRecord]:
    """Return a pending approval and its run, or raise :class:`ApprovalSettled`."""
    record = await _get_pending_approval(ctx, approval_id)
    run = await ctx.get_run(record.run_id)
    if run.status in ENDED_STATUSES:
        await _get_pending_approval(ctx, approval_id)  # a decision made meanwhile may have let the run end
        raise ApprovalSettled(approval_id, status="withdrawn", reason=f"the run {run.run_id!r} is {run.status}")
    if record.expires_at is not None:
        await ctx.sync_clock()
        if record.expires_at <= ctx.clock():
            await expire_approval(ctx, record)
            raise ApprovalSettled(approval_id, status="expired", at=record.expires_at)
    return record, run


async def _get_pending_approval(ctx: RuntimeContext, approval_id: str) -> ApprovalRecord:
    record = await ctx.get_approval(approval_id)
    if record.status != "pending":
        approval = decode_approval(record)
        raise ApprovalSettled(approval_id, status=record.status, by=approval.decided_by, at=approval.decided_at)
    return record


def _validate_decision(approval: Approval, verdict: str, *, arguments: Any, output: Any, always: bool) -> None:
    if verdict not in STATUS_BY_VERDICT:
        raise InvalidDecision(f"the decision must be 'approve', 'reject', 'done' or 'again', not {verdict!r}")
    if verdict == "approve" and approval.kind == "uncertain":
        raise UncertainCall(approval.tool, approval.call_id, remedy=UNCERTAIN_REMEDY)
    if verdict == "again" and approval.kind != "uncertain":
        raise InvalidDecision("'again' is only for calls that may have happened; this one is new: 'approve' it")
    if verdict == "done" and (approval.kind != "uncertain" or output is None):
        raise InvalidDecision("'done' is only for uncertain calls and needs output=")
    if verdict != "done" and output is not None:
        raise InvalidDecision(f"output= is for 'done', not for {verdict!r}")
    if verdict not in ("approve", "again") and arguments is not None:
        raise InvalidDecision(f"arguments= are for 'approve' and 'again', not for {verdict!r}")
    if always and (approval.kind == "uncertain" or arguments is not None):
        raise InvalidDecision("always= is neither for uncertain calls nor for edited arguments")


def _validate_text(name: str, text: Any) -> str | None:
    if text is not None and not isinstance(text, str):
        raise InvalidDecision(f"{name} must be a string, not {type(text).__name__}: the journal keeps it")
    return None if text is None else sanitize_text(text)


async def find_tool(ctx: RuntimeContext, approval: Approval, run: RunRecord) -> Any:
    """Return the tool of a call that waits, or raise :class:`NotFound` if this runtime has no such agent or tool."""
    graph = ctx.graphs.get(decode_header(run).agent)
    agent = None if graph is None else graph.find(approval.agent_path)
    if agent is None:
        raise NotFound("agent", approval.agent, hint="; this runtime has no agent of this name, or it has changed")
    toolbox = await Toolbox.from_agent(agent, RunContextWrapper(None))
    tool = toolbox.find_tool(ToolRef.from_lookup_key(approval.tool_key))
    if tool is None:
        raise NotFound("tool", approval.tool, hint=f"; the agent {approval.agent!r} no longer has it")
    return tool


async def _validate_arguments(ctx: RuntimeContext, approval: Approval, run: RunRecord, arguments: Any) -> str:
    """Return the arguments as JSON text, or raise :class:`InvalidDecision` if the tool's schema forbids them."""
    try:
        tool = await find_tool(ctx, approval, run)
    except NotFound as problem:
        raise InvalidDecision(f"edited arguments are checked against the schema of the tool: {problem}") from None
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, allow_nan=False)
        parse_arguments(tool, text, edited=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDecision(f"the arguments of a call must be a JSON object: {error}") from None
    except InvalidArguments as error:
        raise InvalidDecision(f"the arguments do not fit the schema of {approval.tool}: {error.problem}") from None
    return text


async def _find_similar(ctx: RuntimeContext, decided: Approval) -> list[tuple[ApprovalRecord, Approval]]:
    """Return other pending approvals of the run that an ``always`` decision covers, with that decision."""
    records = await ctx.backend.list_approvals(
        status="pending", run_id=decided.run_id, session_id=None, limit=1000, after=""
    )
    same = ("kind", "agent_path", "tool_key", "route")
    return [
        (record, replace(other, **{name: getattr(decided, name) for name in DECISION_FIELDS}))
        for record in records
        if (other := decode_approval(record)).id != decided.id
        and all(getattr(other, name) == getattr(decided, name) for name in same)
    ]


async def _build_decision_ops(
    ctx: RuntimeContext,
    record: ApprovalRecord,
    run: RunRecord,
    decided: Approval,
    verdict: str,
    similar: Sequence[tuple[ApprovalRecord, Approval]] = (),
) -> list[Op]:
    settled = [(record, decided), *similar]
    status = "woken" if run.status == "waiting" else run.status
    ops: list[Op] = [make_save_op(approval, expected=before.revision) for before, approval in settled]
    ops += [
        SaveRun(run_id=run.run_id, expected=run.revision, status=status, data=run.data, session_id=run.session_id),
        AppendJournal(
            run_id=run.run_id, entries=tuple(_make_decision_entry(approval, verdict) for _, approval in settled)
        ),
    ]
    if decided.always and decided.session_id is not None:
        ops += await _build_standing_ops(ctx, decided, decided.session_id)
    return ops


def _make_decision_entry(approval: Approval, verdict: str) -> tuple[str, bytes]:
    message = approval.output if verdict == "done" else approval.message
    decision = ApprovalDecision(
        verdict in ("approve", "again"), message, approval.edited, digest_arguments(approval.arguments)
    )
    tool = ToolRef.from_lookup_key(approval.tool_key)
    decided = CallDecided(approval.call_id, tool, decision, owner=approval.agent_path, always=approval.always)
    return encode_entry(
        JournalEntry(ApprovalDecided(approval.id, verdict, decided, approval.decided_by), approval.route)
    )


async def _build_standing_ops(ctx: RuntimeContext, approval: Approval, session_id: str) -> list[Op]:
    """Return the operations that store a standing decision of the session, if it still exists.

    It outlives the run, so it has nothing of the call about which it was made.
    """
    key = await get_standing_key(ctx.backend, session_id)
    if key is None:
        return []
    standing_id = f"always:{digest_arguments([key, approval.agent_path, *approval.tool_key])}"
    before = await ctx.backend.get_approval(standing_id)
    standing = replace(
        approval, id=standing_id, run_id=key, call_id="", arguments="", digest="", idempotency_key="", route=()
    )
    return [make_save_op(standing, expected=before.revision if before else 0)]


def _format_output(output: Any) -> str:
    formatted = format_output(output)
    return sanitize_text(formatted) if isinstance(formatted, str) else json.dumps(formatted)
