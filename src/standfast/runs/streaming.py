"""The result of a streamed run, with its events."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from standfast.agents.agent import Agent
from standfast.base.errors import Closed
from standfast.lifecycle.channel import Channel
from standfast.runs.active_run import ActiveRun
from standfast.runs.driver import drive
from standfast.runs.result import RunResultBase, collect_result_fields
from standfast.runs.stream_events import StreamEvent

MAX_BUFFERED_EVENTS = 1024
"""How many events a run may be ahead of its reader before it waits."""


@dataclass(eq=False)
class RunResultStreaming(RunResultBase):
    """A running run. ``current_agent`` and ``current_turn`` are always up to date; the other fields are set at its end.

    Leaving the iteration early cancels the run. A cancelled run can be resumed from ``to_state()``.
    """

    is_complete: bool = False
    run_loop_task: "asyncio.Task[Any] | None" = field(default=None, repr=False)
    _channel: Channel[StreamEvent] = field(default_factory=lambda: Channel(MAX_BUFFERED_EVENTS), repr=False)
    _error: BaseException | None = field(default=None, repr=False)
    _cancelled: bool = False

    @classmethod
    def start(cls, run: ActiveRun) -> "RunResultStreaming":
        """Start the run in its own task."""
        result = cls(**collect_result_fields(run))
        run.emit = result._emit
        result.run_loop_task = asyncio.create_task(result._drive(), name=f"run {run.state.run_id}")
        result.run_loop_task.add_done_callback(result._mark_complete)
        return result

    @property
    def current_agent(self) -> Agent[Any]:
        return self._run.current_agent

    @property
    def current_turn(self) -> int:
        """The number of model responses so far."""
        return self._run.state.turn

    @property
    def run_loop_exception(self) -> BaseException | None:
        """The exception that ended the run, if it failed."""
        return self._error

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield every event in order, then raise the run's error, if any. The run has ended when the iteration ends."""
        try:
            async for event in self._channel:
                yield event
        finally:
            if not self.is_complete:
                self.cancel()
            await self._wait_ended()
        if self._error is not None:
            raise self._error

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """Stop the run: now, or when the current turn is complete and stored. It can be resumed from ``to_state()``."""
        if mode == "after_turn":
            self._run.stop_after_turn = True
            return
        if mode != "immediate":
            raise ValueError(f"mode must be 'immediate' or 'after_turn', not {mode!r}")
        self._cancelled = True
        self._channel.close()
        if self.run_loop_task is not None:
            self.run_loop_task.cancel()

    def ensure_sandbox_cleanup_on_completion(self) -> None:
        """Do nothing: a run owns no sandbox."""

    async def _emit(self, event: StreamEvent) -> None:
        try:
            await self._channel.send(event)
        except Closed:
            # The reader has left and the task is being cancelled; what it does until then is still recorded.
            return

    async def _drive(self) -> None:
        try:
            await drive(self._run)
        except asyncio.CancelledError as error:
            if not self._cancelled:
                self._error = error
                raise
        except BaseException as error:  # noqa: BLE001 - raised to the reader of the events
            self._error = error
        finally:
            self.is_complete = True
            for name, value in collect_result_fields(self._run).items():
                setattr(self, name, value)
            self._channel.close()

    def _mark_complete(self, _: "asyncio.Task[Any]") -> None:
        self.is_complete = True  # a task that is cancelled before it starts never runs _drive

    async def _wait_ended(self) -> None:
        if self.run_loop_task is not None and not self.run_loop_task.done():
            await asyncio.wait({self.run_loop_task})
