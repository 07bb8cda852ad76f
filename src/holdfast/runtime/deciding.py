"""Answers to questions: each is given once, and written in one commit with what it does to its run."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.agents.approvals import Decision, digest
from holdfast.agents.context import RunContextWrapper
from holdfast.agents.tool_refs import ToolRef
from holdfast.base.errors import ApprovalMoved, RunMoved
from holdfast.runs.steps import Decided
from holdfast.runs.toolbox import Toolbox
from holdfast.runtime.arguments import misfit
from holdfast.runtime.contract import Approval, Verdict
from holdfast.runtime.errors import ApprovalSettled, InvalidDecision
from holdfast.runtime.filing import approval_of, saved, standing_name
from holdfast.runtime.home import Home
from holdfast.runtime.records import ENDED, JournalEntry, Settled, header_of, logged
from holdfast.store.contract import ApprovalRecord, Journal, Op, RunRecord, SaveRun
from holdfast.toolcalls.output import told

EXPIRED = "Nobody approved the call in time."
ANSWER = ("status", "decided_by", "decided_at", "message", "always")
STATUS: dict[str, Any] = {"approve": "approved", "reject": "rejected", "done": "done"}


async def decide(
    home: Home,
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
        record, run = await open_question(home, approval_id)
        asked = approval_of(record)
        _check(asked, verdict, arguments=arguments, output=output, always=always)
        edited = None if arguments is None else await _edited(home, asked, run, arguments)
        answered = replace(
            asked,
            status=STATUS[verdict],
            decided_by=by,
            decided_at=home.clock(),
            message=message,
            edited=edited,
            output=None if verdict != "done" else _text(output),
            always=always,
        )
        try:
            alike = await _alike(home, answered) if always else []
            await home.backend.commit(*await _ops(home, record, run, answered, verdict, alike))
        except (ApprovalMoved, RunMoved):
            continue
        home.feeds.written(run.run_id)
        return answered


async def expire(home: Home, record: ApprovalRecord) -> str | None:
    """Answer a question with no because its time is up; gives the run's id, if it was still open."""
    run = await home.backend.run(record.run_id)
    if run is None or run.status in ENDED:
        return None
    expired = replace(approval_of(record), status="expired", decided_at=home.clock(), message=EXPIRED)
    try:
        await home.backend.commit(*await _ops(home, record, run, expired, "expired"))
    except (ApprovalMoved, RunMoved):
        return None
    home.feeds.written(run.run_id)
    return run.run_id


async def open_question(home: Home, approval_id: str) -> tuple[ApprovalRecord, RunRecord]:
    """The question and its run, if it can still be answered; :class:`ApprovalSettled` says why not."""
    record = await home.question(approval_id)
    approval = approval_of(record)
    if record.status != "pending":
        raise ApprovalSettled(approval_id, status=record.status, by=approval.decided_by, at=approval.decided_at)
    run = await home.record(record.run_id)
    if run.status in ENDED:
        raise ApprovalSettled(approval_id, status="withdrawn", reason=f"the run {run.run_id!r} is {run.status}")
    if record.expires_at is not None:
        await home.set_clock()
        if record.expires_at <= home.clock():
            await expire(home, record)
            raise ApprovalSettled(approval_id, status="expired", at=record.expires_at)
    return record, run


def _check(asked: Approval, verdict: str, *, arguments: Any, output: Any, always: bool) -> None:
    if verdict not in STATUS:
        raise InvalidDecision(f"a decision is 'approve', 'reject' or 'done', not {verdict!r}")
    if verdict == "done" and (asked.kind != "uncertain" or output is None):
        raise InvalidDecision("'done' needs output=, and answers only the question whether an uncertain call happened")
    if verdict != "done" and output is not None:
        raise InvalidDecision(f"output= is for 'done', not for {verdict!r}")
    if verdict != "approve" and arguments is not None:
        raise InvalidDecision(f"arguments= are for 'approve', not for {verdict!r}")
    if always and (asked.kind == "uncertain" or arguments is not None):
        raise InvalidDecision("always= is neither for uncertain calls nor for edited arguments")


async def _edited(home: Home, asked: Approval, run: RunRecord, arguments: Any) -> str:
    """The arguments as JSON, if the tool's schema allows them."""
    graph = home.graphs.get(header_of(run).agent)
    agent = None if graph is None else graph.find(asked.agent_path)
    if agent is None:
        raise InvalidDecision(f"edited arguments are checked against the tool: this runtime has no {asked.agent!r}")
    tool = (await Toolbox.of(agent, RunContextWrapper(None))).find(ToolRef.of_key(asked.tool_key))
    if tool is None:
        raise InvalidDecision(f"the agent {asked.agent!r} has no tool {asked.tool!r} any more")
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, allow_nan=False)
        given = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidDecision(f"the arguments of a call must be a JSON object: {error}") from None
    problem = misfit(given, tool.params_json_schema)
    if problem is not None:
        raise InvalidDecision(f"{asked.tool} does not take these arguments: {problem}")
    return text


async def _alike(home: Home, answered: Approval) -> list[tuple[ApprovalRecord, Approval]]:
    """Other open questions of the run that the answer is about as well, with that answer."""
    found = await home.backend.approvals(
        status="pending", run_id=answered.run_id, session_id=None, limit=1000, after=""
    )
    same = ("kind", "agent_path", "tool_key", "route")
    return [
        (record, replace(other, **{name: getattr(answered, name) for name in ANSWER}))
        for record in found
        if (other := approval_of(record)).id != answered.id
        and all(getattr(other, name) == getattr(answered, name) for name in same)
    ]


async def _ops(
    home: Home,
    record: ApprovalRecord,
    run: RunRecord,
    answered: Approval,
    verdict: str,
    alike: Sequence[tuple[ApprovalRecord, Approval]] = (),
) -> list[Op]:
    settled = [(record, answered), *alike]
    status = "woken" if run.status == "waiting" else run.status
    ops: list[Op] = [saved(approval, expected=before.revision) for before, approval in settled]
    ops += [
        SaveRun(run_id=run.run_id, expected=run.revision, status=status, data=run.data, session_id=run.session_id),
        Journal(run_id=run.run_id, entries=tuple(_noted(approval, verdict) for _, approval in settled)),
    ]
    if answered.always and answered.session_id is not None:
        ops += await _standing(home, answered, answered.session_id)
    return ops


def _noted(answered: Approval, verdict: str) -> tuple[str, bytes]:
    told_model = answered.output if verdict == "done" else answered.message
    decision = Decision(verdict == "approve", told_model, answered.edited, digest(answered.arguments))
    tool = ToolRef.of_key(answered.tool_key)
    decided = Decided(answered.call_id, tool, decision, owner=answered.agent_path, always=answered.always)
    return logged(JournalEntry(Settled(answered.id, verdict, decided, answered.decided_by), answered.route))


async def _standing(home: Home, answered: Approval, session_id: str) -> list[Op]:
    """The same answer for every further call of that agent's tool in the session, if that is still there."""
    name = await standing_name(home.backend, session_id)
    if name is None:
        return []
    known = f"always:{digest([name, answered.agent_path, *answered.tool_key])}"
    before = await home.backend.approval(known)
    return [saved(replace(answered, id=known, run_id=name), expected=before.revision if before else 0)]


def _text(output: Any) -> str:
    found = told(output)
    return found if isinstance(found, str) else json.dumps(found)
