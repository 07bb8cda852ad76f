"""Answers to questions: each is given once, and written in one commit with what it does to its run."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.agents.approvals import ApprovalDecision, digest_arguments
from holdfast.agents.context import RunContextWrapper
from holdfast.agents.tool_refs import ToolRef
from holdfast.base.errors import ApprovalMoved, RunMoved
from holdfast.runs.steps import Decided
from holdfast.runs.toolbox import Toolbox
from holdfast.runtime.arguments import find_schema_error
from holdfast.runtime.contract import Approval, Verdict
from holdfast.runtime.errors import ApprovalSettled, InvalidDecision
from holdfast.runtime.filing import decode_approval, get_standing_key, make_save_op
from holdfast.runtime.home import RuntimeContext
from holdfast.runtime.records import ENDED_STATUSES, ApprovalDecided, JournalEntry, decode_header, encode_entry
from holdfast.store.contract import AppendJournal, ApprovalRecord, Op, RunRecord, SaveRun
from holdfast.toolcalls.output import format_output

EXPIRED_MESSAGE = "Nobody approved the call in time."
DECISION_FIELDS = ("status", "decided_by", "decided_at", "message", "always")
STATUS_BY_VERDICT: dict[str, Any] = {"approve": "approved", "reject": "rejected", "done": "done"}


async def decide_approval(
    ctx: RuntimeContext,
    approval_id: str,
    verdict: Verdict,
    *,
    arguments: Any,
    message: str | None,
    output: Any,
    by: str | None,
    always: bool,
) -> Approval:
    """Answer a question; its run is woken by the same commit."""
    while True:
        record, run = await load_open_approval(ctx, approval_id)
        asked = decode_approval(record)
        _validate_decision(asked, verdict, arguments=arguments, output=output, always=always)
        edited = None if arguments is None else await _validate_arguments(ctx, asked, run, arguments)
        answered = replace(
            asked,
            status=STATUS_BY_VERDICT[verdict],
            decided_by=by,
            decided_at=ctx.clock(),
            message=message,
            edited=edited,
            output=None if verdict != "done" else _format_output(output),
            always=always,
        )
        try:
            alike = await _find_similar(ctx, answered) if always else []
            await ctx.backend.commit(*await _build_decision_ops(ctx, record, run, answered, verdict, alike))
        except (ApprovalMoved, RunMoved):
            continue
        ctx.subscriptions.notify_written(run.run_id)
        return answered


async def expire_approval(ctx: RuntimeContext, record: ApprovalRecord) -> str | None:
    """Answer a question with no because its time is up; gives the run's id, if it was still open."""
    run = await ctx.backend.get_run(record.run_id)
    if run is None or run.status in ENDED_STATUSES:
        return None
    expired = replace(decode_approval(record), status="expired", decided_at=ctx.clock(), message=EXPIRED_MESSAGE)
    try:
        await ctx.backend.commit(*await _build_decision_ops(ctx, record, run, expired, "expired"))
    except (ApprovalMoved, RunMoved):
        return None
    ctx.subscriptions.notify_written(run.run_id)
    return run.run_id


async def load_open_approval(ctx: RuntimeContext, approval_id: str) -> tuple[ApprovalRecord, RunRecord]:
    """The question and its run, if it can still be answered; :class:`ApprovalSettled` says why not."""
    record = await ctx.get_approval(approval_id)
    approval = decode_approval(record)
    if record.status != "pending":
        raise ApprovalSettled(approval_id, status=record.status, by=approval.decided_by, at=approval.decided_at)
    run = await ctx.get_run(record.run_id)
    if run.status in ENDED_STATUSES:
        raise ApprovalSettled(approval_id, status="withdrawn", reason=f"the run {run.run_id!r} is {run.status}")
    if record.expires_at is not None:
        await ctx.sync_clock()
        if record.expires_at <= ctx.clock():
            await expire_approval(ctx, record)
            raise ApprovalSettled(approval_id, status="expired", at=record.expires_at)
    return record, run


def _validate_decision(approval: Approval, verdict: str, *, arguments: Any, output: Any, always: bool) -> None:
    if verdict not in STATUS_BY_VERDICT:
        raise InvalidDecision(f"a decision is 'approve', 'reject' or 'done', not {verdict!r}")
    if verdict == "done" and (approval.kind != "uncertain" or output is None):
        raise InvalidDecision("'done' needs output=, and answers only the question whether an uncertain call happened")
    if verdict != "done" and output is not None:
        raise InvalidDecision(f"output= is for 'done', not for {verdict!r}")
    if verdict != "approve" and arguments is not None:
        raise InvalidDecision(f"arguments= are for 'approve', not for {verdict!r}")
    if always and (approval.kind == "uncertain" or arguments is not None):
        raise InvalidDecision("always= is neither for uncertain calls nor for edited arguments")


async def _validate_arguments(ctx: RuntimeContext, approval: Approval, run: RunRecord, arguments: Any) -> str:
    """The arguments as JSON, if the tool's schema allows them."""
    graph = ctx.graphs.get(decode_header(run).agent)
    agent = None if graph is None else graph.find(approval.agent_path)
    if agent is None:
        raise InvalidDecision(f"edited arguments are checked against the tool: this runtime has no {approval.agent!r}")
    tool = (await Toolbox.from_agent(agent, RunContextWrapper(None))).find_tool(
        ToolRef.from_lookup_key(approval.tool_key)
    )
    if tool is None:
        raise InvalidDecision(f"the agent {approval.agent!r} has no tool {approval.tool!r} any more")
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, allow_nan=False)
        given = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidDecision(f"the arguments of a call must be a JSON object: {error}") from None
    problem = find_schema_error(given, tool.params_json_schema)
    if problem is not None:
        raise InvalidDecision(f"{approval.tool} does not take these arguments: {problem}")
    return text


async def _find_similar(ctx: RuntimeContext, decided: Approval) -> list[tuple[ApprovalRecord, Approval]]:
    """Other open questions of the run that the answer is about as well, with that answer."""
    found = await ctx.backend.list_approvals(
        status="pending", run_id=decided.run_id, session_id=None, limit=1000, after=""
    )
    same = ("kind", "agent_path", "tool_key", "route")
    return [
        (record, replace(other, **{name: getattr(decided, name) for name in DECISION_FIELDS}))
        for record in found
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
    told_model = approval.output if verdict == "done" else approval.message
    decision = ApprovalDecision(verdict == "approve", told_model, approval.edited, digest_arguments(approval.arguments))
    tool = ToolRef.from_lookup_key(approval.tool_key)
    decided = Decided(approval.call_id, tool, decision, owner=approval.agent_path, always=approval.always)
    return encode_entry(
        JournalEntry(ApprovalDecided(approval.id, verdict, decided, approval.decided_by), approval.route)
    )


async def _build_standing_ops(ctx: RuntimeContext, approval: Approval, session_id: str) -> list[Op]:
    """The same answer for every further call of that agent's tool in the session, if that is still there."""
    name = await get_standing_key(ctx.backend, session_id)
    if name is None:
        return []
    known = f"always:{digest_arguments([name, approval.agent_path, *approval.tool_key])}"
    before = await ctx.backend.get_approval(known)
    return [make_save_op(replace(approval, id=known, run_id=name), expected=before.revision if before else 0)]


def _format_output(output: Any) -> str:
    found = format_output(output)
    return found if isinstance(found, str) else json.dumps(found)
