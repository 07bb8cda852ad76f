"""Cells that people run: each is a task with a log of its messages, which any number of readers follow."""

import asyncio
import base64
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from standfast.base.errors import Closed, NotFound
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.server.message_log import MessageLog
from standfast.server.problems import make_problem
from standfast.server.types import CellInfo, NewCell

if TYPE_CHECKING:
    from standfast.workers.results import InterruptResult
    from standfast.workers.session import WorkerSession
    from standfast.workers.wire.messages import Message
    from standfast.workspaces.session_python import SessionPython

_log = get_logger(__name__)
MAX_ENDED = 200
"""Ended cells whose results are kept in this process."""
MAX_LOG_BYTES = 2_000_000
MAX_LISTED_BYTES = 20_000
"""Of the code and the result of a cell in a listing. Longer ones are left out."""
_SHOWN = ("output", "display", "input", "result", "error")


@dataclass(eq=False)
class RunningCell:
    """A cell of one session, from its start until it is forgotten. It is the observer of its execution.

    A later session with the same id has another ``tape``, and does not have the cell.
    """

    session_id: str
    tape: int | None
    owner: str | None
    subject: str
    new: NewCell
    cell_id: str = field(default_factory=lambda: new_id("cell"))
    started_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.allow_input = self.new.allow_input
        self.log = MessageLog(MAX_LOG_BYTES)
        self.status: Literal["queued", "running", "waiting", "done", "failed"] = "queued"
        self._session: WorkerSession | None = None
        self._result: dict[str, Any] | None = None
        self._result_size = 0
        self._notes: list[str] = []
        self._code: str | None = None
        self._detail: str | None = None
        self._work: asyncio.Future[Any] | None = None
        self._is_withdrawn = False
        self.task: asyncio.Task[None] | None = None

    @property
    def info(self) -> CellInfo:
        return CellInfo(
            cell_id=self.cell_id,
            session_id=self.session_id,
            status=self.status,
            source=self.new.code,
            subject=self.subject,
            started_at=self.started_at,
            result=self._result,
            notes=self._notes,
            code=self._code,
            detail=self._detail,
        )

    @property
    def summary(self) -> CellInfo:
        """The cell as it is listed: without a long result, and with the beginning of long code."""
        info = self.info
        if self.size <= MAX_LISTED_BYTES:
            return info
        source = info.source[: MAX_LISTED_BYTES // 4]
        return msgspec.structs.replace(info, result=None, source=source, shortened=True)

    @property
    def size(self) -> int:
        """About how much an ended cell keeps, in bytes."""
        return len(self.new.code) + self._result_size + self.log.size

    @property
    def has_ended(self) -> bool:
        return self.status in ("done", "failed")

    # --- the observer's side ------------------------------------------------------------------------

    def start(self, session: "WorkerSession") -> None:
        self._session, self.status = session, "running"

    def receive(self, message: "Message") -> None:
        content = make_jsonable(msgspec.to_builtins(message, enc_hook=str, builtin_types=(bytes,)))
        if content.get("type") in _SHOWN:
            self.status = "waiting" if content["type"] == "input" else "running"
            self.log.append(content)

    # --- the server's side --------------------------------------------------------------------------

    async def run(self, python: "SessionPython", stop: asyncio.Event) -> None:
        """Run the cell to its end, or until ``stop`` is set: then it is stopped, and makes no version."""
        work = self._work = asyncio.ensure_future(python.run(self.new.code, timeout=self.new.timeout, observer=self))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            self._note_outcome(work)
        finally:
            stopping.cancel()
            self._session = None
            self.log.append({"type": "end", "status": self.status, "code": self._code, "detail": self._detail})
            self.log.close()

    def _note_outcome(self, work: "asyncio.Future[Any]") -> None:
        if work.cancelled():
            reason = "its workspace was deleted" if self._is_withdrawn else "the server is stopping"
            reason = "it was interrupted before it began" if self.status == "queued" else reason
            self._fail(Closed(f"the cell has changed nothing: {reason}"))
        elif (error := work.exception()) is not None:
            self._fail(error)
        else:
            call = work.result()
            self._result = make_jsonable(msgspec.to_builtins(call.result, enc_hook=str, builtin_types=(bytes,)))
            self._result_size = len(msgspec.json.encode(self._result))
            self._notes, self.status = list(call.notes), "done"

    def _fail(self, error: BaseException) -> None:
        problem = make_problem(error if isinstance(error, Exception) else Closed(repr(error)), request_id=self.cell_id)
        self.status, self._code, self._detail = "failed", problem.code, problem.detail

    async def answer(self, input_id: str, data: str, *, eof: bool) -> bool:
        """Answer an input request; return False if it is no longer open."""
        if self._session is None:
            return False
        answered = await self._session.input_response(input_id, data, eof=eof)
        if answered and self.status == "waiting":
            self.status = "running"
        return answered

    async def interrupt(self) -> "InterruptResult | None":
        """Stop the cell; ``None`` if it does not run. One that waits for others never runs."""
        if self._session is not None:
            return await self._session.interrupt()
        self.withdraw()
        return None

    def withdraw(self) -> None:
        """Stop the cell; it makes no version."""
        if self._work is not None and not self._work.done():
            self._is_withdrawn = True
            self._work.cancel()


class CellRegister:
    """The cells of this process: all that run, and the latest that have ended, within ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self._cells: dict[str, RunningCell] = {}
        self._max_bytes = max_bytes

    def start(self, cell: RunningCell, python: "SessionPython", stop: asyncio.Event) -> None:
        self._cells[cell.cell_id] = cell
        cell.task = asyncio.create_task(cell.run(python, stop), name=cell.cell_id)
        cell.task.add_done_callback(self._note_end)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cell %s failed", task.get_name(), exc_info=error)
        ended = [cell for cell in self._cells.values() if cell.has_ended]
        size = sum(cell.size for cell in ended)
        for place, cell in enumerate(ended[:-1]):
            if len(ended) - place <= MAX_ENDED and size <= self._max_bytes:
                break
            size -= cell.size
            del self._cells[cell.cell_id]

    def get(self, session_id: str, tape: int | None, cell_id: str) -> RunningCell:
        cell = self._cells.get(cell_id)
        if cell is None or (cell.session_id, cell.tape) != (session_id, tape):
            raise NotFound("cell", cell_id, hint="; a cell lives in the process that runs it")
        return cell

    def list(self, session_id: str, tape: int | None) -> list[RunningCell]:
        return [cell for cell in self._cells.values() if (cell.session_id, cell.tape) == (session_id, tape)]

    def forget(self, session_id: str) -> None:
        """Stop and drop the cells of a session whose workspace was deleted."""
        for cell in [cell for cell in self._cells.values() if cell.session_id == session_id]:
            cell.withdraw()
            del self._cells[cell.cell_id]

    def count_open(self, owner: str | None) -> int:
        return sum(cell.owner == owner and not cell.has_ended for cell in self._cells.values())

    async def wait(self) -> None:
        """Return when no cell runs."""
        if tasks := [cell.task for cell in self._cells.values() if cell.task and not cell.task.done()]:
            await asyncio.wait(tasks)


def make_jsonable(value: Any) -> Any:
    """Return the value with bytes as base64 text: pictures, mostly."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): make_jsonable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [make_jsonable(one) for one in value]
    return value
