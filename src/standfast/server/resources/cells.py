"""``/sessions/{id}/workspace/cells`` and files: run code in the workspaces of sessions."""

from collections.abc import AsyncIterator

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from standfast.base.errors import InvalidInput, Unsupported
from standfast.server.cells import RunningCell
from standfast.server.endpoints import READ_RUNS, WRITE, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.problems import RequestError, TooManyCells, UnknownMediaType
from standfast.server.streams import EventStream, format_event, read_position
from standfast.server.types import (
    CellEvents,
    CellInfo,
    CellInput,
    FilePath,
    InterruptInfo,
    NewCell,
    NewVersion,
    RestoreVersion,
    Upload,
)
from standfast.workspaces.session_python import SessionPython

endpoints = EndpointTable()

_WORKSPACE = "/sessions/{session_id}/workspace"
_CELL = f"{_WORKSPACE}/cells/{{cell_id}}"
MAX_UPLOADED_FILES = 1000


@endpoints.add("POST", f"{_WORKSPACE}/cells", WRITE, body=NewCell, result=CellInfo, status=201)
async def start_cell(exchange: Exchange) -> CellInfo:
    """Run code in the variables and files of a session, after the calls of its runs that are under way.

    It runs whether its events are read or not, and makes a version of the workspace when it ends.
    """
    service, new = exchange.service, exchange.body
    python = open_python(exchange)
    if not 0 < new.timeout <= service.limits.cell_seconds:
        raise InvalidInput(f"timeout must be above 0, and at most {service.limits.cell_seconds:g} seconds")
    if service.cells.count_open(exchange.principal.owner) >= service.limits.open_cells:
        raise TooManyCells(f"{service.limits.open_cells} cells run or wait: interrupt one, or wait for it")
    cell = RunningCell(exchange.session_id, exchange.tape, exchange.principal.owner, exchange.principal.subject, new)
    service.cells.start(cell, python, service.draining)
    return cell.info


@endpoints.add("GET", f"{_WORKSPACE}/cells", READ_RUNS, result=list[CellInfo])
async def list_cells(exchange: Exchange) -> list[CellInfo]:
    """List the cells that people run in a session, and the latest that have ended, of this process.

    Long code is cut here, and a long result left out.
    """
    return [cell.summary for cell in exchange.service.cells.list(exchange.session_id, exchange.tape)]


@endpoints.add("GET", _CELL, READ_RUNS, result=CellInfo)
async def get_cell(exchange: Exchange) -> CellInfo:
    """Show a cell with its result."""
    return find_cell(exchange).info


@endpoints.add("GET", f"{_CELL}/events", READ_RUNS, query=CellEvents, media_type="text/event-stream")
async def follow_cell(exchange: Exchange) -> EventStream:
    """Stream what a cell prints and shows, from its beginning: `output`, `display`, `input`, `result`, `error`.

    `Last-Event-ID`, or `after`, continues after the event with that number. An event `dropped` stands for `count` of a
    long output that are not kept any more. The last event is `end`.
    """
    cell, after = find_cell(exchange), read_position(exchange).after

    async def format_messages() -> AsyncIterator[bytes]:
        async for message in cell.log.follow(after, with_drops=True):
            yield format_event(message.data, event=message.kind, number=message.number)

    return EventStream(exchange, format_messages())


@endpoints.add("POST", f"{_CELL}/input", WRITE, body=CellInput, result=bool)
async def answer_cell(exchange: Exchange) -> bool:
    """Answer what a cell asks for; false if it does not wait for that any more."""
    body = exchange.body
    return await find_cell(exchange).answer(body.input_id, body.data, eof=body.eof)


@endpoints.add("POST", f"{_CELL}/interrupt", WRITE, result=InterruptInfo)
async def interrupt_cell(exchange: Exchange) -> InterruptInfo:
    """Stop a cell that runs, keeping its variables if possible."""
    stopped = await find_cell(exchange).interrupt()
    if stopped is None:
        return InterruptInfo(stopped=False, state="preserved")
    return InterruptInfo(stopped=stopped.stopped, state=stopped.state, reason=stopped.reason)


@endpoints.add("POST", f"{_WORKSPACE}/restart", WRITE)
async def restart_python(exchange: Exchange) -> None:
    """Replace the worker of a session after what it runs. Variables and files are as they were saved."""
    await open_python(exchange).restart()


@endpoints.add("POST", f"{_WORKSPACE}/restore", WRITE, body=RestoreVersion, result=NewVersion)
async def restore_workspace(exchange: Exchange) -> NewVersion:
    """Go back to a version of a workspace, which makes a new one. Those in between can be restored, too."""
    return NewVersion(version=await open_python(exchange).restore(exchange.body.version))


@endpoints.add("POST", f"{_WORKSPACE}/files", WRITE, body=Upload, result=list[str])
async def upload_files(exchange: Exchange) -> list[str]:
    """Write files into a workspace, all in one version. The file name of a part is the path of the file."""
    python = open_python(exchange)
    files = await read_files(exchange)
    await python.write_files(files)
    return sorted(files)


@endpoints.add("DELETE", f"{_WORKSPACE}/file", WRITE, query=FilePath)
async def remove_file(exchange: Exchange) -> None:
    """Remove a file of a workspace. Earlier versions keep it."""
    await open_python(exchange).remove_file(exchange.query.path)


def open_python(exchange: Exchange) -> SessionPython:
    if exchange.service.python is None:
        raise Unsupported("this server runs no code of its users: start it with --python, or create_app(python=)")
    return exchange.runtime.python(exchange.session_id, exchange.service.python)


def find_cell(exchange: Exchange) -> RunningCell:
    return exchange.service.cells.get(exchange.session_id, exchange.tape, exchange.path["cell_id"])


async def read_files(exchange: Exchange) -> dict[str, bytes]:
    """Return the files of a multipart body by their paths."""
    headers = exchange.request.headers
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise UnknownMediaType("send the files as multipart/form-data")
    parts = exchange.read_parts(exchange.service.limits.upload_bytes)
    try:
        form = await MultiPartParser(headers, parts, max_files=MAX_UPLOADED_FILES, max_fields=0).parse()  # type: ignore[arg-type]
    except (MultiPartException, KeyError) as problem:
        raise RequestError(f"the body is not multipart/form-data: {problem}") from None
    try:
        files = [(part.filename, await part.read()) for _, part in form.multi_items() if isinstance(part, UploadFile)]
    finally:
        await form.close()
    if not files or any(not name for name, _ in files):
        raise InvalidInput("send one part per file, with the path of the file as its file name")
    return {str(name): content for name, content in files}
