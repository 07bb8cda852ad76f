"""Questions to people as they are stored."""

import hashlib

import msgspec
from msgspec.structs import replace

from holdfast.agents.approvals import Decision, Recorded
from holdfast.agents.tool_refs import ToolRef
from holdfast.base.ids import new_id
from holdfast.runs.call_steps import idempotency_key
from holdfast.runs.state import CallRecord, State
from holdfast.runtime.contract import Approval
from holdfast.store.contract import ApprovalRecord, Backend, Op, RunRecord, SaveApproval

QUESTION = "approval"
"""How the ids of questions begin. In every listing they come after those of standing decisions (``always:...``)."""

_approvals = msgspec.json.Decoder(Approval)


def approval_of(record: ApprovalRecord) -> Approval:
    return _approvals.decode(record.data)


def filed(state: State, call: CallRecord, record: RunRecord, *, agent: str, route: tuple[str, ...]) -> Approval:
    """The question about a call."""
    item = state.transcript[call.position].item
    arguments = call.arguments if call.arguments is not None else item.get("arguments") or ""
    return Approval(
        id=new_id(QUESTION),
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
        idempotency_key=idempotency_key(state, route, call),
        agent_path=state.agent,
        tool_key=call.tool.lookup_key,
        route=route,
    )


def dated(approval: Approval, *, now: float, ttl: float | None) -> Approval:
    """The question as asked now, to be answered in time."""
    return replace(approval, requested_at=now, expires_at=None if ttl is None else now + ttl)


def saved(approval: Approval, *, expected: int) -> SaveApproval:
    return SaveApproval(
        approval_id=approval.id,
        expected=expected,
        run_id=approval.run_id,
        session_id=approval.session_id,
        status=approval.status,
        data=msgspec.json.encode(approval),
        expires_at=approval.expires_at,
    )


async def standing_name(backend: Backend, session_id: str) -> str | None:
    """Under which name the standing decisions of a session are kept, in place of a run's; none if there is no session.

    One that is deleted takes them along: another session of its name has another tape.
    """
    record = await backend.record(session_id)
    return None if record is None else f"session:{record.tape}:{session_id}"


async def withdrawals(backend: Backend, run_id: str) -> list[Op]:
    """What takes back the questions of a run that ends."""
    records = await backend.approvals(status="pending", run_id=run_id, session_id=None, limit=1000, after="")
    return [saved(replace(approval_of(one), status="withdrawn"), expected=one.revision) for one in records]


async def standing(backend: Backend, session_id: str | None) -> list[Recorded]:
    """What was decided for every call of a tool in this session."""
    name = None if session_id is None else await standing_name(backend, session_id)
    if name is None:
        return []
    records = await backend.approvals(status=None, run_id=name, session_id=None, limit=1000, after="")
    found = []
    for record in records:
        approval = approval_of(record)
        decision = Decision(approval.status == "approved", approval.message)
        found.append(Recorded(ToolRef.of_key(approval.tool_key), decision, owner=approval.agent_path))
    return found
