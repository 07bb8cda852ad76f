"""The calls that the model makes: judged and made once, answered for certain, whatever happens meanwhile."""

import asyncio
from collections.abc import Awaitable, Collection
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from holdfast.agents.approvals import Decision, digest
from holdfast.agents.errors import ModelBehaviorError
from holdfast.base.errors import Closed
from holdfast.lifecycle.finishing import told_to_stop
from holdfast.realtime import answering
from holdfast.realtime.answering import EXPIRED, Answer, Record
from holdfast.realtime.changing import Changing
from holdfast.realtime.events import RealtimeToolApprovalExpired, RealtimeToolApprovalRequired, RealtimeToolEnd
from holdfast.realtime.model_events import RealtimeModelToolCallEvent
from holdfast.realtime.model_inputs import RealtimeModelSendToolOutput
from holdfast.realtime.nesting import Nesting
from holdfast.realtime.room import Room, log
from holdfast.realtime.snapshot import Snapshot
from holdfast.toolcalls.call import Call
from holdfast.toolcalls.judge import Verdict, judge

RETRY_FIRST, RETRY_LONGEST = 0.1, 5.0
REMEMBERED = 1024


class Calls:
    """Every call by its id. Each has a task of its own that ends when the model has the answer."""

    def __init__(self, room: Room, changing: Changing) -> None:
        self._room, self._changing = room, changing
        self._records: dict[str, Record] = {}
        self._nesting = Nesting(room)
        self._beside = room.run_config.get("async_tool_calls", True)
        self._handoff_turns: WeakKeyDictionary[Snapshot, asyncio.Lock] = WeakKeyDictionary()
        self._one_by_one = asyncio.Lock()

    def take(self, event: RealtimeModelToolCallEvent) -> Awaitable[None] | None:
        """Accept a call. Without ``async_tool_calls`` it gives what waits until it is answered or asks a person."""
        record = self._accepted(event)
        if record is None:
            return None
        room = self._room
        record.task = room.start(self._carry_out(record), f"call {event.name} ({event.call_id})")
        # A handoff needs the reader that would wait here, and so does the answer to the session's settings.
        needed = event.name in record.snapshot.handoffs or self._changing.under_way or not room.up.is_set()
        return None if needed else self.settled(record)

    def decide(self, call_id: str, decision: Decision, *, always: bool) -> Record | None:
        """What a person says about a waiting call. ``None`` if no call of that id waits any more."""
        record = self._records.get(call_id)
        if record is None or record.undecided is None or record.call is None:
            return self._nesting.decide(call_id, decision, always=always)
        if record.undecided.done():
            return None
        approvals, call = self._room.context.approvals, record.call
        if always:
            approvals.record(call.ref, None, decision, owner=call.owner)
        # Bound to the arguments that the person saw.
        approvals.record(call.ref, call.id, msgspec.structs.replace(decision, asked=digest(call.asked)))
        record.parked.clear()
        for waiting in self._records.values():
            if waiting.undecided is not None and not waiting.undecided.done() and self._is_decided(waiting):
                waiting.undecided.set_result(None)
        return record

    def barge_in(self) -> None:
        """The user speaks: running tools go on, stop, or lower their voice, as each of them says."""
        for record in self._records.values():
            if record.answer is None and record.running and record.tool is not None:
                policy = record.tool.on_barge_in
                if policy == "cancel" and not record.cut and record.task is not None:
                    record.cut = True
                    record.task.cancel()
                record.silent = record.silent or policy == "finish_silently"

    def let_go(self) -> None:
        """Somebody waits for what the model will tell: no call keeps its reader any longer."""
        for record in self._records.values():
            record.parked.set()

    def replayed(self, call_ids: Collection[str | None]) -> None:
        """A new connection was told the answers to these calls."""
        for record in self._records.values():
            if record.id in call_ids and record.answer is not None and not record.sent:
                self._room.owed.answer |= record.answer.speak
                record.sent = True
                record.again.set()

    def settled(self, record: Record) -> Awaitable[None] | None:
        """What waits for the end of a call or its next question; nothing if calls are made beside the conversation."""
        return None if self._beside or record.task is None else self._answered_or_parked(record.task, record)

    @property
    def unsent(self) -> tuple[str, ...]:
        return tuple(r.id for r in self._records.values() if r.answer is not None and not r.sent)

    @property
    def undecided(self) -> tuple[str, ...]:
        return (*(r.id for r in self._records.values() if r.undecided is not None), *self._nesting.undecided)

    @property
    def threads(self) -> tuple[str, ...]:
        """Tools that are plain functions and still run: they cannot be stopped."""
        return tuple(f"thread of {r.event.name} ({r.id})" for r in self._records.values() if r.blocks_a_thread)

    def _accepted(self, event: RealtimeModelToolCallEvent) -> Record | None:
        room = self._room
        if not event.call_id:
            room.fail(ModelBehaviorError(f"the model called {event.name!r} without an id, so it cannot be answered"))
            return None
        known = self._records.get(event.call_id)
        if known is not None:
            if (known.event.name, known.event.arguments) != (event.name, event.arguments):
                room.fail(ModelBehaviorError(f"the call {event.call_id!r} came back as another call; it is ignored"))
            known.again.set()
            return None
        response = room.responses.of(event.response_id, room.snapshot, now=room.now())
        record = self._records[event.call_id] = Record(event, response.snapshot, room.now())
        while len(self._records) > REMEMBERED and (sent := next((r for r in self._records.values() if r.sent), None)):
            del self._records[sent.id]
        new = room.ledger.called(event)
        room.added(event.id or event.call_id) if new else room.updated()
        return record

    async def _carry_out(self, record: Record) -> None:
        try:
            answer = await self._answer(record)
        except asyncio.CancelledError:
            if told_to_stop() and not self._cut_off(record):
                raise
            answer = answering.cancelled(by_user=record.cut)
        except Exception as error:  # noqa: BLE001 - the model is told, and the program by an event
            log.warning("the call of %s failed: %s", record.event.name, error, exc_info=error)
            self._room.fail(error)
            answer = answering.failed(error)
        record.running = False
        record.answer = replace(answer, speak=answer.speak and not record.silent)
        await self._deliver(record, record.answer)

    async def _answer(self, record: Record) -> Answer:
        room, name = self._room, record.event.name
        handoff = record.snapshot.handoffs.get(name)
        if handoff is not None:
            async with self._handoff_turns.setdefault(record.snapshot, asyncio.Lock()):
                if not await answering.still_enabled(room, record, handoff):
                    return self._not_found(record)
                return await answering.hand_over(room, self._changing, record, handoff)
        tool = record.snapshot.tools.get(name)
        if tool is None or not await answering.still_enabled(room, record, tool):
            return self._not_found(record)
        call = record.call = answering.bound(room, record, tool)
        verdict = await self._verdict(record, call)
        if verdict.status == "rejected":
            return await answering.refused(room, call, verdict)
        if verdict.arguments is not None:
            call = record.call = replace(call, arguments=verdict.arguments)
        make = partial(answering.make, room) if tool.agent_tool is None else self._nesting.make
        async with nullcontext() if self._beside else self._one_by_one:
            return await make(record, call)

    async def _verdict(self, record: Record, call: Call) -> Verdict:
        """What may be done with a call, after a person was asked if need be."""
        room, execution = self._room, self._room.run_config.get("tool_execution", {})
        guard_first = execution.get("pre_approval_tool_input_guardrails", False)
        verdict = await judge(call, room.context, guard_first=guard_first)
        if verdict.status != "waiting":
            return verdict
        agent, info = record.snapshot.agent, room.info
        room.emit(RealtimeToolApprovalRequired(agent, call.tool, record.id, call.arguments, info))
        record.undecided = asyncio.get_running_loop().create_future()
        record.parked.set()
        await asyncio.wait({record.undecided}, timeout=execution.get("approval_timeout"))
        decided, record.undecided = record.undecided.done(), None
        if decided:
            return await judge(call, room.context)
        room.emit(RealtimeToolApprovalExpired(agent, call.tool, record.id, info))
        return Verdict("rejected", message=EXPIRED)

    def _is_decided(self, record: Record) -> bool:
        call = record.call
        find = self._room.context.approvals.find
        return call is not None and find(call.ref, call.id, owner=call.owner, arguments=call.asked) is not None

    async def _deliver(self, record: Record, answer: Answer) -> None:
        """Send the answer until it is sent; the tool is not run again for that."""
        room, event = self._room, record.event
        room.ledger.answered(event.call_id, answer.text)
        message = RealtimeModelSendToolOutput(event, answer.text, answer.speak)
        delay = RETRY_FIRST
        while not record.sent:
            record.again.clear()
            try:
                await room.connected()
                if record.sent:  # The new connection was told already.
                    break
                room.owed.answer |= answer.speak
                await room.model.send_event(message)
                record.sent = True
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - told, and tried again
                if delay == RETRY_FIRST:
                    room.fail(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await record.again.wait()
                delay = min(delay * 2, RETRY_LONGEST)
        room.measure("tool_gap", (room.now() - record.arrived_at) * 1000, event.call_id)
        room.updated()
        if record.tool is not None:
            agent, arguments = record.snapshot.agent, record.event.arguments
            room.emit(RealtimeToolEnd(agent, record.tool, arguments, answer.output, room.info, call_id=event.call_id))

    def _cut_off(self, record: Record) -> bool:
        """Whether the user's speech, and nobody else, has cancelled the call: then it is still to be answered."""
        task = asyncio.current_task()
        return record.cut and task is not None and task.uncancel() == 0

    def _not_found(self, record: Record) -> Answer:
        answer = answering.missing(record)
        self._room.fail(ModelBehaviorError(answer.text))
        return answer

    async def _answered_or_parked(self, task: "asyncio.Task[None]", record: Record) -> None:
        parked = asyncio.ensure_future(record.parked.wait())
        either: set[asyncio.Future[Any]] = {task, parked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            parked.cancel()
