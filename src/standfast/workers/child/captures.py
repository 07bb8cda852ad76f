"""Capture the workspace of a worker in a copy of it, and restore a captured workspace.

The worker reads the files that have changed and forks; then it may run code again, while the copy pickles the variables
and sends what the host does not have yet. If the caller waited for the copy, a capture would take several times as long
as the fork. The copy exits with the last frame.
"""

import contextlib
import ctypes
import gc
import hashlib
import mmap
import os
import pickle
import signal
import socket
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from standfast.workers.child import random_generators, variable_groups, workspace_files
from standfast.workers.child.checkpoints import describe_variable
from standfast.workers.child.variable_groups import describe_problem
from standfast.workers.child.workspace_files import Directory, TooLarge, read_files
from standfast.workers.wire import manifests as wire
from standfast.workers.wire.manifests import (
    CHUNK_SIZE,
    DIGEST_SIZE,
    MAX_NAME_LENGTH,
    Content,
    VariableGroup,
    WorkspaceManifest,
)
from standfast.workers.wire.messages import CaptureMessage, NamespaceEntry, RestoreWorkspaceMessage

if TYPE_CHECKING:
    from standfast.workers.child.loop import WorkerLoop

_MAP_FIXED = 0x10
_PACK_SIZE = 32 << 10
_NICENESS = 5  # the worker may run code meanwhile, and its caller waits for that
_INTERNAL_NAMES = frozenset(
    ("__builtins__", "__name__", "__doc__", "__package__", "__loader__", "__spec__", "__warningregistry__")
)
_request_decoder = msgspec.msgpack.Decoder(wire.CaptureRequest)
_plan_decoder = msgspec.msgpack.Decoder(wire.RestorePlan)


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map a file privately. Nothing is copied before it is changed, and the descriptor may be closed afterwards."""
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    # Given the file itself, the object would keep a descriptor open.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=writable)
    place = ctypes.c_char.from_buffer(memory)
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    address = ctypes.addressof(place)
    if call(address, size, writable, mmap.MAP_PRIVATE | _MAP_FIXED, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, f"the content of the workspace cannot be mapped: {os.strerror(number)}")
    return memory


def capture(worker_loop: "WorkerLoop", message: CaptureMessage) -> None:
    """Read the files, fork a copy that captures the rest, and reply.

    Raises CannotCopy, TooLarge or RuntimeError, with nothing started.
    """
    channel = worker_loop.channel
    fds, channel.fds = channel.fds, []
    with contextlib.ExitStack() as stack:
        for fd in fds:
            stack.callback(os.close, fd)
        if len(fds) != 1:
            raise RuntimeError(f"a capture needs one descriptor, got {len(fds)}")
        variable_groups.prepare()
        stack.pop_all()
        sock = stack.enter_context(socket.socket(fileno=fds[0]))
        sock.setblocking(True)
        request = _request_decoder.decode(_receive_exactly(sock, _receive_length(sock)))
        directory = read_files(worker_loop.work_directory, request.files, request.max_bytes)
        if worker_loop.snapshots.fork_capture(message.capture_id):
            _run_copy(worker_loop, _Writer(sock, request), directory)
        channel.send(CaptureMessage(of=message.id))


def _run_copy(worker_loop: "WorkerLoop", writer: "_Writer", directory: Directory) -> NoReturn:
    """Capture the workspace and exit. What user code prints or sends while it is pickled goes nowhere."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2, worker_loop.channel.sock.fileno()):
            os.dup2(null, fd)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        with contextlib.suppress(OSError):
            os.nice(_NICENESS)
        gc.disable()
        try:
            _capture_workspace(worker_loop, writer, directory)
        except TooLarge as problem:
            writer.send(wire.TOO_LARGE, str(problem).encode())
        except BaseException as problem:  # noqa: BLE001 - the host raises it
            writer.send(wire.FAILED, describe_problem(problem).encode())
    finally:
        os._exit(0)


class _Writer:
    """Sends chunks that the host does not have, and counts all bytes."""

    def __init__(self, sock: socket.socket, request: wire.CaptureRequest) -> None:
        self.sock, self.request = sock, request
        self.size = 0
        self._known = {
            request.known[start : start + DIGEST_SIZE] for start in range(0, len(request.known), DIGEST_SIZE)
        }

    def send(self, kind: bytes, data: bytes | memoryview = b"", digest: bytes = bytes(DIGEST_SIZE)) -> None:
        self.sock.sendall(wire.FRAME_HEADER.pack(kind, len(data), digest))
        if data:
            self.sock.sendall(data)

    def count(self, size: int) -> None:
        self.size += size
        if self.size > self.request.max_bytes:
            raise TooLarge(str(self.size))

    def add(self, data: bytes | memoryview) -> Content:
        """Send the chunks of some content that are new."""
        view = memoryview(data).cast("B")
        self.count(view.nbytes)
        digests = []
        for start in range(0, view.nbytes, CHUNK_SIZE):
            chunk = view[start : start + CHUNK_SIZE]
            digest = hashlib.sha256(chunk).digest()
            if digest not in self._known:
                self.send(wire.CHUNK, chunk, digest)
                self._known.add(digest)
            digests.append(digest)
        return Content(view.nbytes, tuple(digests))


def _capture_workspace(worker_loop: "WorkerLoop", writer: _Writer, directory: Directory) -> None:
    state = _describe_state(worker_loop)
    files = []
    for file, data in directory.files:
        if data is None:
            writer.count(file.content.size)
        files.append(file if data is None else msgspec.structs.replace(file, content=writer.add(data)))
    namespace = worker_loop.namespace
    imports, values, unkept = _split_namespace(namespace)
    contents, groups = _store_groups(writer, variable_groups.pickle_groups(namespace, values, unkept))
    manifest = WorkspaceManifest(
        python=_get_python_version(),
        variables=tuple(_describe(name, namespace[name]) for name in (*imports, *values)),
        imports=imports,
        contents=tuple(contents),
        groups=tuple(groups),
        state=writer.add(pickle.dumps((state,), protocol=5)),
        files=tuple(files),
        unkept=unkept,
        unkept_files=directory.unkept,
        cell_count=worker_loop.cell_runner.count,
        size=writer.size,
    )
    writer.send(wire.MANIFEST, msgspec.msgpack.encode(manifest))


def _split_namespace(namespace: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[str, str]]:
    """Return the names that are imported again, the values to pickle, and the names of which neither is possible."""
    imports: dict[str, str] = {}
    values: dict[str, Any] = {}
    unkept: dict[str, str] = {}
    for name, value in list(namespace.items()):
        if type(name) is not str or not is_encodable(name):
            unkept[_describe_name(name)] = "its name is no text"
            continue
        if len(name) > MAX_NAME_LENGTH:
            unkept[f"{name[:200]}…"] = f"its name has more than {MAX_NAME_LENGTH} characters"
            continue
        if name in _INTERNAL_NAMES:
            continue
        try:
            path = variable_groups.find_import(value)
        except BaseException:  # noqa: BLE001 - attributes of user objects can raise anything
            path = ""
        if path:
            imports[name] = path
        else:
            values[name] = value
    return imports, values, unkept


def _describe_name(name: Any) -> str:
    try:
        return ascii(name)[:200]
    except BaseException:  # noqa: BLE001 - keys of the namespace can be objects of the user
        return type(name).__name__


def is_encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(name: str, value: Any) -> NamespaceEntry:
    entry = describe_variable(name, value)
    return msgspec.structs.replace(entry, type=entry.type[:200])


def _store_groups(
    writer: _Writer, pickled: Iterable[variable_groups.PickledGroup]
) -> tuple[list[Content], list[VariableGroup]]:
    """Send groups: a large one by itself, small ones in packs, since each chunk has its costs."""
    contents: list[Content] = []
    groups: list[VariableGroup] = []
    pack: list[variable_groups.PickledGroup] = []

    def flush() -> None:
        offset = 0
        for group in pack:
            groups.append(
                VariableGroup(
                    names=group.names,
                    content=len(contents),
                    offset=offset,
                    size=len(group.data),
                    buffers=tuple(writer.add(buffer) for buffer in group.buffers),
                )
            )
            offset += len(group.data)
        if pack:
            contents.append(writer.add(b"".join(group.data for group in pack)))
        pack.clear()

    for group in pickled:
        if pack and sum(len(member.data) for member in pack) + len(group.data) > _PACK_SIZE:
            flush()
        pack.append(group)
    flush()
    return contents, groups


def _get_python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _describe_state(worker_loop: "WorkerLoop") -> dict[str, Any]:
    """Return the state of the interpreter that is not in the namespace."""
    state: dict[str, Any] = {"definitions": worker_loop.cell_runner.definitions}
    with contextlib.suppress(OSError):
        state["directory"] = os.path.relpath(os.getcwd(), worker_loop.work_directory)
    return state | random_generators.describe_state()


# -- restoring


def restore(worker_loop: "WorkerLoop", message: RestoreWorkspaceMessage) -> None:
    """Restore what the host sends over the socket that comes with the message, and reply with a report."""
    channel = worker_loop.channel
    fds, channel.fds = channel.fds, []
    with contextlib.ExitStack() as stack:
        for fd in fds[1:]:
            stack.callback(os.close, fd)
        if not fds:
            raise RuntimeError("a restore needs a descriptor, got none")
        sock = stack.enter_context(socket.socket(fileno=fds[0]))
        sock.setblocking(True)
        plan = _plan_decoder.decode(_receive_exactly(sock, _receive_length(sock)))
        if len(plan.mapped) != len(fds) - 1:
            raise RuntimeError(f"the restore needs {len(plan.mapped)} memory files, got {len(fds) - 1}")
        receiver = _ContentReceiver(sock, dict(zip(plan.mapped, fds[1:], strict=True)))
        contents = [receiver.receive(size) for size in plan.contents]
        buffers = [
            tuple(receiver.receive(size, variable_groups.ArrayMemory) for size in group.buffers)
            for group in plan.groups
        ]
        state = bytes(receiver.receive(plan.state))
    if plan.remains is not None:
        for name in worker_loop.namespace.keys() - _INTERNAL_NAMES - {*plan.remains.names}:
            del worker_loop.namespace[name]
        workspace_files.keep_only(worker_loop.work_directory, {*plan.remains.paths})
        _forget_modules(worker_loop.work_directory)
    worker_loop.cell_runner.count = max(worker_loop.cell_runner.count, plan.cell_count)
    kept, lost = _restore_variables(worker_loop.namespace, plan, contents, buffers)
    if problem := _restore_state(worker_loop, state):
        lost["random"] = problem
    channel.send(RestoreWorkspaceMessage(of=message.id, kept=tuple(kept), lost=lost))


def _forget_modules(directory: str) -> None:
    """Forget the modules whose files are below the directory: they are imported again from what is there now."""
    for name, module in list(sys.modules.items()):
        path = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        if isinstance(path, str) and path.startswith(f"{directory}/"):
            del sys.modules[name]


class _ContentReceiver:
    """Gets the contents of a workspace in their order: from a memory file, or else from the socket."""

    def __init__(self, sock: socket.socket, mapped: dict[int, int]) -> None:
        self._sock, self._mapped = sock, mapped
        self._place = 0

    def receive(self, size: int, kind: type[bytearray] = bytearray) -> bytearray | memoryview:
        fd = self._mapped.get(self._place)
        self._place += 1
        return _receive_exactly(self._sock, size, kind(size)) if fd is None else memoryview(map_file(fd, size))


def _restore_variables(
    namespace: dict[str, Any],
    plan: wire.RestorePlan,
    contents: list[bytearray | memoryview],
    buffers: list[tuple[bytearray | memoryview, ...]],
) -> tuple[list[str], dict[str, str]]:
    kept: list[str] = []
    lost: dict[str, str] = {}
    for name, path in plan.imports.items():
        try:
            namespace[name] = variable_groups.import_value(path)
            kept.append(name)
        except BaseException as problem:  # noqa: BLE001 - importing runs any code
            lost[name] = describe_problem(problem)
    for group, own_buffers in zip(plan.groups, buffers, strict=True):
        data = memoryview(contents[group.content])[group.offset : group.offset + group.size]
        try:
            values = variable_groups.load_group(data, own_buffers)
            namespace.update(zip(group.names, values, strict=True))
            kept += group.names
        except BaseException as problem:  # noqa: BLE001 - unpickling runs any code
            lost.update(dict.fromkeys(group.names, describe_problem(problem)))
    return kept, lost


def _restore_state(worker_loop: "WorkerLoop", data: bytes) -> str:
    """Restore what is not in the namespace. Returns what could not be restored, or an empty string."""
    try:
        (state,) = variable_groups.load_group(data, ())
        worker_loop.cell_runner.definitions.update(state["definitions"])
        with contextlib.suppress(OSError):
            os.chdir(os.path.join(worker_loop.work_directory, state.get("directory", ".")))
        random_generators.restore_state(state)
    except BaseException as problem:  # noqa: BLE001
        return describe_problem(problem)
    return ""


def _receive_length(sock: socket.socket) -> int:
    (length,) = wire.LENGTH.unpack(_receive_exactly(sock, wire.LENGTH.size))
    return int(length)


def _receive_exactly(sock: socket.socket, size: int, data: bytearray | None = None) -> bytearray:
    data = bytearray(size) if data is None else data
    view = memoryview(data)
    while view:
        received = sock.recv_into(view)
        if not received:
            raise ConnectionAbortedError("the host closed the socket before everything was sent")
        view = view[received:]
    return data
