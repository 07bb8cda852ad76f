"""Questions to people as they are stored."""

import hashlib

import msgspec
from msgspec.structs import replace

from holdfast.agents.approvals import ApprovalDecision, RecordedDecision
from holdfast.agents.tool_refs import ToolRef
from holdfast.base.ids import new_id
from holdfast.runs.call_steps import make_idempotency_key
from holdfast.runs.state import CallRecord, State
from holdfast.runtime.contract import Approval
from holdfast.store.contract import ApprovalRecord, Backend, Op, RunRecord, SaveApproval

APPROVAL_PREFIX = "approval"
"""How the ids of questions begin. In every listing they come after those of standing decisions (``always:...``)."""

_approval_decoder = msgspec.json.Decoder(Approval)


def decode_approval(record: ApprovalRecord) -> Approval:
    return _approval_decoder.decode(record.data)


def make_approval(state: State, call: CallRecord, record: RunRecord, *, agent: str, route: tuple[str, ...]) -> Approval:
    """The question about a call."""
    item = state.transcript[call.position].item
    arguments = call.arguments if call.arguments is not None else item.get("arguments") or ""
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
    """The question as asked now, to be answered in time."""
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
    """Under which name the standing decisions of a session are kept, in place of a run's; none if there is no session.

    One that is deleted takes them along: another session of its name has another tape.
    """
    record = await backend.get_session(session_id)
    return None if record is None else f"session:{record.tape}:{session_id}"


async def build_withdrawal_ops(backend: Backend, run_id: str) -> list[Op]:
    """What takes back the questions of a run that ends."""
    records = await backend.list_approvals(status="pending", run_id=run_id, session_id=None, limit=1000, after="")
    return [make_save_op(replace(decode_approval(one), status="withdrawn"), expected=one.revision) for one in records]


async def load_standing_decisions(backend: Backend, session_id: str | None) -> list[RecordedDecision]:
    """What was decided for every call of a tool in this session."""
    name = None if session_id is None else await get_standing_key(backend, session_id)
    if name is None:
        return []
    records = await backend.list_approvals(status=None, run_id=name, session_id=None, limit=1000, after="")
    found = []
    for record in records:
        approval = decode_approval(record)
        decision = ApprovalDecision(approval.status == "approved", approval.message)
        found.append(RecordedDecision(ToolRef.from_lookup_key(approval.tool_key), decision, owner=approval.agent_path))
    return found
