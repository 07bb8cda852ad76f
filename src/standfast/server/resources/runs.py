"""``/runs``: start, list, follow, cancel, resume, fork and delete durable runs."""

import hashlib
from typing import Any

import msgspec

from standfast.base.ids import new_id
from standfast.runs.config import DEFAULT_MAX_TURNS
from standfast.runtime.types import PruneReport, RunInfo, RunOutcome
from standfast.server.answers import RunStepView
from standfast.server.endpoints import OPERATE, READ_RUNS, WRITE, EndpointTable
from standfast.server.exchange import Exchange, choose_owner, make_page, validate_page_size
from standfast.server.resources.workspaces import describe_workspace
from standfast.server.streams import EventStream, StreamPosition, read_position, stream_run
from standfast.server.types import (
    CancelRequest,
    EventListing,
    NewRun,
    Page,
    ResumeRequest,
    RunForkRequest,
    RunListing,
    RunPruneRequest,
    StepQuery,
)

endpoints = EndpointTable()


@endpoints.add("POST", "/runs", WRITE, body=NewRun, result=RunInfo, status=201, has_key=True, can_stream=True)
async def start_run(exchange: Exchange) -> RunInfo | EventStream:
    """Start a run. It is stored when the answer arrives, and continues whether its events are read or not.

    The same request with the same `Idempotency-Key` gives the same run. Its session belongs to the owner of the
    credential. With `Accept: text/event-stream` the answer is the stream of its events until its end; the header
    `Location` names the run, whose `/events` continue a stream that was cut.
    """
    new, key = exchange.body, exchange.idempotency_key
    if exchange.wants_events:
        exchange.service.streams.check_limit(exchange.principal.owner)
    session_id = new.session_id or (new_id("session") if key is None else make_session_id(key))
    is_new = not new.session_id and key is None
    owner = exchange.principal.owner if is_new else await exchange.require_access_or_absence(session_id)
    run = await exchange.runtime.start(
        new.agent,
        new.input,
        session_id=session_id,
        context=new.context,
        key=key,
        on_busy=new.on_busy,
        max_turns=DEFAULT_MAX_TURNS if new.max_turns is msgspec.UNSET else new.max_turns,
        owner=owner,
    )
    exchange.headers["location"] = f"{exchange.request.scope.get('root_path', '')}/runs/{run.id}"
    exchange.path["run_id"] = run.id  # for the log, and for the access to its events
    if not exchange.wants_events:
        return await run.info()
    seen = run if exchange.reads is exchange.runtime else await exchange.reads.run(run.id)
    return EventStream(exchange, stream_run(exchange.service, seen, StreamPosition(), until="end"), status=201)


def make_session_id(key: str) -> str:
    """Return the session of a run that was started with this key and without a session: the same each time."""
    return f"session_{hashlib.sha256(key.encode()).hexdigest()[:24]}"


@endpoints.add("GET", "/runs", READ_RUNS, query=RunListing, result=Page[RunInfo])
async def list_runs(exchange: Exchange) -> Page[RunInfo]:
    """List runs, the latest first."""
    query = exchange.query
    size = validate_page_size(exchange, query.limit)
    found = await exchange.reads.runs(
        status=query.status,
        session_id=query.session_id,
        owner=choose_owner(exchange, query.owner),
        limit=size + 1,
        after=query.after,
        newest_first=True,
    )
    return make_page(found, size, lambda info: info.run_id)


@endpoints.add("GET", "/runs/{run_id}", READ_RUNS, result=RunInfo)
async def get_run(exchange: Exchange) -> RunInfo:
    """Show a run."""
    return exchange.run_info


@endpoints.add("GET", "/runs/{run_id}/outcome", READ_RUNS, result=RunOutcome)
async def get_outcome(exchange: Exchange) -> RunOutcome:
    """Show the result of a run, or what it waits for; for a run that is under way, only its status."""
    info = exchange.run_info
    if info.status in ("queued", "running"):
        return RunOutcome(info.run_id, info.status)
    return await exchange.run.wait()


@endpoints.add("GET", "/runs/{run_id}/events", READ_RUNS, query=EventListing, media_type="text/event-stream")
async def follow_run(exchange: Exchange) -> EventStream:
    """Stream the events of a run: those that are stored, then new ones, until it ends.

    The id of a stored event is its number. The words of a model that is answering are `model.delta` events, whose ids
    are the number of the last stored event and a place after it. `Last-Event-ID` continues after that id, and `after`
    after that number: nothing is lost and nothing is repeated. A stream that is complete ends with the event `end`.
    """
    position = read_position(exchange)
    return EventStream(exchange, stream_run(exchange.service, exchange.run, position, until=exchange.query.until))


@endpoints.add("GET", "/runs/{run_id}/state", READ_RUNS, query=StepQuery, result=dict[str, Any])
async def get_state(exchange: Exchange) -> dict[str, Any]:
    """Show a run as a portable state, as it is now or as it was after a step."""
    state = await exchange.reads.state(exchange.run.id, at=exchange.query.at)
    return state.to_json()


@endpoints.add("POST", "/runs/{run_id}/cancel", WRITE, body=CancelRequest, result=RunInfo)
async def cancel_run(exchange: Exchange) -> RunInfo:
    """Stop a run at the end of its turn, or now. What it did is kept, and it can be resumed."""
    await exchange.run.cancel(exchange.body.mode)
    return await exchange.run.info()


@endpoints.add("POST", "/runs/{run_id}/resume", WRITE, body=ResumeRequest, result=RunInfo)
async def resume_run(exchange: Exchange) -> RunInfo:
    """Resume a run that failed, was cancelled, or does not fit the current code."""
    body = exchange.body
    run = await exchange.runtime.resume(exchange.run.id, accept_changes=body.accept_changes, agent=body.agent)
    return await run.info()


@endpoints.add("GET", "/runs/{run_id}/step", READ_RUNS, query=StepQuery, result=RunStepView)
async def get_step(exchange: Exchange) -> RunStepView:
    """Show what a run had done by a step: items, calls, usage, variables and files. A step is the id of an event."""
    step = await exchange.reads.step(exchange.run.id, at=exchange.query.at)
    if step.workspace is None or not step.workspace_version:
        return RunStepView(run=step)
    workspace = await exchange.reads.workspace(step.workspace, at=step.workspace_version)
    return RunStepView(run=step, workspace=describe_workspace(workspace))


@endpoints.add("POST", "/runs/{run_id}/fork", WRITE, body=RunForkRequest, result=RunInfo, status=201)
async def fork_run(exchange: Exchange) -> RunInfo:
    """Start a new run from a step of this one, in a fork of its session.

    With `input` it begins where this one began, with another input. `outputs` replaces outputs of tools that no model
    has seen at that step, and `agent` continues with another agent.
    """
    body = exchange.body
    if body.session_id is not None:  # whose it is by then, the commit of the fork checks again
        await exchange.require_access_or_absence(body.session_id)
    run = await exchange.runtime.fork(
        exchange.run.id,
        at=body.at,
        session_id=body.session_id,
        owner=exchange.owner or exchange.principal.owner,
        input=body.input,
        outputs=body.outputs,
        agent=body.agent,
    )
    return await run.info()


@endpoints.add("POST", "/runs/prune", OPERATE, body=RunPruneRequest, result=PruneReport)
async def prune_runs(exchange: Exchange) -> PruneReport:
    """Delete runs that ended long ago, of all owners. Without a limit, none is deleted."""
    report = await exchange.runtime.prune(older_than=exchange.body.older_than, keep=exchange.body.keep)
    await exchange.service.record_audit("runs pruned", exchange.principal, {"deleted": len(report.deleted)})
    return report


@endpoints.add("DELETE", "/runs/{run_id}", WRITE)
async def delete_run(exchange: Exchange) -> None:
    """Delete a run that has ended, with its events and approvals."""
    await exchange.runtime.delete(exchange.run.id)
